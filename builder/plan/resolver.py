"""A recipe's name becomes a plan, once: its base's root chosen, its inputs resolved, its text
rendered."""

from __future__ import annotations

from dataclasses import dataclass

from builder import families
from builder.errors import FetchError, RecipeError
from builder.families.layout import LABEL_KEY
from builder.plan import published_image
from builder.plan.inputs import RegistryRoot, RootChoice
from builder.plan.plan import BasePlan, Plan
from builder.plan.resolve import bootstrapped_root, plan, plan_base
from builder.platforms import PLATFORMS, Architecture, Platform, Platforms
from builder.recipes.catalog import Catalog, Entry
from builder.recipes.schema import BaseRecipe, Recipe, Root
from builder.settings import RootWay
from builder.tools.docker import engine as docker
from builder.tools.docker import imagetools
from builder.tools.log import Log


@dataclass(frozen=True, slots=True)
class Resolver:
    """Resolves the recipes of a catalog.

    ``build`` is the architecture that compiles; ``namespace`` comes before each image's repository:
    an account, or REGISTRY/ACCOUNT.
    """

    catalog: Catalog
    build: Architecture
    root_policy: RootPolicy
    namespace: str = ""

    def plans(self, name: str) -> tuple[Plan, ...]:
        """The plans of a recipe's images, one for each of its platforms, in the recipe's order.

        ``name`` is a recipe's, or the name of an engine with one version.  Raises ``RecipeError``;
        ``FetchError`` where a source tree is missing, or no registry gives the digest of the image
        that a base starts from.
        """
        entry = self.catalog.engine(name)
        return tuple(self._plan(entry, platform) for platform in entry.recipe.platform)

    def resolve(self, name: str, platform: Platform | None = None) -> Plan:
        """The plan of a recipe's image for one of its platforms; None: for the only one.

        Raises like ``plans``; ``RecipeError`` also where the recipe has no image for that
        platform, or several images and none is named.
        """
        entry = self.catalog.engine(name)
        return self._plan(entry, one_of(entry.recipe, platform))

    def resolve_base(self, name: str, target: Architecture = "amd64") -> BasePlan:
        """The plan of a base.  Raises like ``plans``."""
        base = self._base(name, Platforms(self.build, target))
        base.require_acceptable()
        return base

    def _plan(self, entry: Entry[Recipe], platform: Platform) -> Plan:
        platforms = Platforms(self.build, PLATFORMS[platform])
        root = self.root_policy.choose(self.catalog, entry.recipe.base, platforms)
        tools = self._tools(entry.recipe, platforms)
        found = plan(self.catalog, entry, platforms, root, tools, self.namespace)
        found.require_acceptable()
        return found

    def _tools(self, recipe: Recipe, platforms: Platforms) -> BasePlan | None:
        """The base that the recipe's family compiles the entrypoint in, if it names one."""
        name = families.ENGINES[recipe.family].tools
        if name is None:
            return None
        if name not in self.catalog.bases:
            raise RecipeError(
                f"{recipe.name} needs the base {name}: its entrypoint is compiled there",
                "the catalog has no such base",
                f"copy recipes/bases/{name}.toml and its lock from builder's own catalog",
            )
        return self._base(name, platforms)

    def _base(self, name: str, platforms: Platforms) -> BasePlan:
        root = self.root_policy.choose(self.catalog, name, platforms)
        return plan_base(self.catalog, name, platforms, root)


def one_of(recipe: Recipe, platform: Platform | None) -> Platform:
    """The platform of one image of a recipe; raises ``RecipeError`` where it is not clear."""
    first, *others = recipe.platform
    if platform is None and others:
        raise RecipeError(
            f"{recipe.name} has images for {' and '.join(recipe.platform)}",
            hint=f"name one of them: --platform {first}",
        )
    if platform is not None and platform not in recipe.platform:
        raise RecipeError(
            f"{recipe.name} has no image for {platform}",
            f"its platform is {' and '.join(recipe.platform)}",
            "add it to `platform` in the recipe, or choose another platform",
        )
    return platform or first


def in_engine(plan: BasePlan, stage: str) -> docker.Image | None:
    """The complete image of a base's stage, where the engine has it."""
    found = docker.image(plan.references[stage])
    return found if found and found.labels.get(LABEL_KEY) == plan.key else None


def root_recipe(catalog: Catalog, base: str) -> Entry[BaseRecipe]:
    """The base of the Debian root, or of the published image, below ``base``.

    Raises ``RecipeError`` where there is none.
    """
    for name in catalog.chain(base):
        entry = catalog.base(name)
        if entry.recipe.root is not None or entry.recipe.published is not None:
            return entry
    raise RecipeError(f"the base {base} has neither a Debian root nor a published image below it")


@dataclass(frozen=True, slots=True)
class RootPolicy:
    """How the root of a base is chosen; ``way`` is the setting ``debian_root``.

    Without ``ask`` neither engine nor registry is asked: the pinned image, else mmdebstrap.
    ``offline`` asks no registry.
    """

    way: RootWay = "auto"
    log: Log = lambda _: None
    ask: bool = True
    offline: bool = False

    def choose(self, catalog: Catalog, base: str, platforms: Platforms) -> RootChoice:
        """The root of a base.

        "auto" prefers the root that the engine has, so that a registry that comes or goes does not
        change the key of every engine; else it tries the registry, then mmdebstrap.  Raises
        ``RecipeError`` where the base has no root, ``FetchError`` when "registry" is asked for and
        does not answer.
        """
        entry = root_recipe(catalog, base)
        recipe = entry.recipe
        if recipe.published is not None:
            ask, offline = self.ask, self.offline
            return published_image.choose(recipe.published, self.log, ask=ask, offline=offline)
        if recipe.root is None:
            raise RecipeError(f"{recipe.name} has neither a Debian root nor a published image")
        return self._debian(catalog, entry, recipe.root, platforms)

    def _debian(
        self, catalog: Catalog, entry: Entry[BaseRecipe], root: Root, platforms: Platforms
    ) -> RootChoice:
        bootstrapped = bootstrapped_root(entry, root, platforms)
        pinned = RegistryRoot(root.image, root.digest) if root.digest else None
        if self.way == "mmdebstrap":
            return bootstrapped
        if not self.ask:
            return pinned or bootstrapped
        if self.way == "auto":
            for choice in (pinned, bootstrapped):
                if choice is not None:
                    plan = plan_base(catalog, entry.name, platforms, choice)
                    if in_engine(plan, "root"):
                        return choice
        found = pinned if self.offline else _from_registry(root, self.log)
        if found is not None:
            return found
        if self.offline:
            return bootstrapped
        if self.way == "registry":
            raise FetchError(
                f"no registry answers for {root.image}",
                hint='set debian_root = "mmdebstrap" (BUILDER_DEBIAN_ROOT) to need no registry',
            )
        self.log(f"no registry answers for {root.image}: mmdebstrap makes the Debian root")
        return bootstrapped


def _from_registry(root: Root, log: Log) -> RegistryRoot | None:
    reference = f"{root.image}@{root.digest}" if root.digest else root.image
    digest = imagetools.digest(reference, published_image.PATIENCE)
    if digest is None:
        return None
    if root.digest is None:
        log(f"{root.image} is not pinned; its digest today is {digest}")
    return RegistryRoot(root.image, root.digest or digest)
