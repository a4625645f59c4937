"""A recipe's name becomes a plan, once: its base's root chosen, its inputs resolved, its text
rendered.  Nothing is fetched."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any, get_args

from builder.core.errors import FetchError, RecipeError
from builder.core.farm import folder as folder_of
from builder.core.platforms import (
    GNU_TRIPLETS,
    PLATFORMS,
    Architecture,
    Platform,
    Platforms,
    of_target,
)
from builder.core.settings import RootWay
from builder.engines import families
from builder.plan import inputs
from builder.plan.plan import BasePlan, Plan
from builder.recipes import locks
from builder.recipes.catalog import Catalog, Entry
from builder.recipes.schema import BaseRecipe, PathSource, Published, Recipe, Root


@dataclass(frozen=True, slots=True)
class Resolver:
    """Resolves the recipes of a catalog, and asks neither engine nor registry.

    The root of a base is its pinned image, else mmdebstrap makes it, or, with the way "registry",
    it is an image without a digest.  ``build.roots`` has one that asks.
    """

    catalog: Catalog
    build: Architecture  # the architecture that compiles
    root_way: RootWay = "auto"  # the setting ``debian_root``
    namespace: str = ""  # before each image's repository: an account, or REGISTRY/ACCOUNT

    def plans(self, name: str, platform: Platform | None = None) -> tuple[Plan, ...]:
        """The plans of a recipe's images, in the recipe's order; only one with a ``platform``.

        ``name`` is a recipe's, or the name of an engine with one version.  Raises ``RecipeError``;
        ``FetchError`` where a source tree is missing, or no registry gives the digest of the image
        that a base starts from.
        """
        if platform is not None:
            return (self.resolve(name, platform),)
        entry = self.catalog.engine(name)
        return tuple(self._plan(entry, each) for each in entry.recipe.platform)

    def resolve(self, name: str, platform: Platform | None = None) -> Plan:
        """The plan of a recipe's image for one of its platforms; None: for the only one."""
        entry = self.catalog.engine(name)
        return self._plan(entry, inputs.one_of(entry.recipe, platform))

    def recipe_keys(self, name: str, platform: Platform) -> frozenset[str]:
        """The values of ``Plan.recipe_key`` of all ways to build an image; nobody is asked."""
        entry, found = self.catalog.engine(name), set()
        for build, way in product(dict.fromkeys((self.build, *GNU_TRIPLETS)), get_args(RootWay)):
            try:
                plan = Resolver(self.catalog, build, way, self.namespace)._plan(entry, platform)
                found.add(plan.recipe_key)
            except RecipeError:  # a family that is not cross-compiled
                if build == self.build:
                    raise
        return frozenset(found)

    def resolve_base(self, name: str, target: Architecture = "amd64") -> BasePlan:
        """The plan of a base.  Raises like ``plans``."""
        base = self._base(name, Platforms(self.build, target))
        base.require_acceptable()
        return base

    def root_of(self, base: str, platforms: Platforms) -> inputs.RootChoice:
        """The Debian root or the published image below a base."""
        entry, below = self.lowest(base)
        if isinstance(below, Published):
            return inputs.RegistryRoot(below.image, below.digest or "")
        if self.root_way != "mmdebstrap" and (below.digest or self.root_way == "registry"):
            return inputs.RegistryRoot(below.image, below.digest or "")
        return bootstrapped_root(entry, below, platforms)

    def lowest(self, base: str) -> tuple[Entry[BaseRecipe], Root | Published]:
        """The lowest base below ``base``, and what it starts from."""
        for name in self.catalog.chain(base):
            entry = self.catalog.base(name)
            if below := entry.recipe.published or entry.recipe.root:
                return entry, below
        what = f"the base {base} has neither a Debian root nor a published image below it"
        raise RecipeError(what)

    def _plan(self, entry: Entry[Recipe], platform: Platform) -> Plan:
        platforms = Platforms(self.build, PLATFORMS[platform])
        root = self.root_of(entry.recipe.base, platforms)
        name = families.ENGINES[entry.recipe.family].tools
        if name is not None and name not in self.catalog.bases:
            raise RecipeError(
                f"{entry.name} needs the base {name}: its entrypoint is compiled there",
                "the catalog has no such base",
                f"copy recipes/bases/{name}.toml and its lock from builder's own catalog",
            )
        tools = self._base(name, platforms) if name is not None else None
        found = plan(self.catalog, entry, platforms, root, tools, self.namespace)
        found.require_acceptable()
        return found

    def _base(self, name: str, platforms: Platforms) -> BasePlan:
        return plan_base(self.catalog, name, platforms, self.root_of(name, platforms))


@dataclass(frozen=True, slots=True, kw_only=True)
class LockedResolver(Resolver):
    """Resolves the image of a lock as it was made, whatever this machine and registries have."""

    lock: inputs.Lock

    def plans(self, name: str, platform: Platform | None = None) -> tuple[Plan, ...]:
        """The plan of the lock's image."""
        return (self.resolve(name, platform),)

    def resolve(self, name: str, platform: Platform | None = None) -> Plan:
        """The plan of the lock's image; it has no other platform."""
        return self._plan(self.catalog.engine(name), platform or self.lock.platform)

    def root_of(self, base: str, platforms: Platforms) -> inputs.RootChoice:
        """The Debian root or the published image that was taken."""
        entry, below = self.lowest(base)
        found = self.lock.roots.get(entry.name, "")
        if found == "mmdebstrap" and isinstance(below, Root):
            return bootstrapped_root(entry, below, platforms)
        return inputs.RegistryRoot(below.image, found)

    def _plan(self, entry: Entry[Recipe], platform: Platform) -> Plan:
        lock = self.lock
        if platform != lock.platform:
            raise RecipeError(f"the lock of {entry.name} is of its image for {lock.platform}")
        found = Resolver._plan(self, entry, platform)
        if found.key == lock.key:
            return found
        made = f"{lock.builder}{f' ({lock.commit[:12]})' if lock.commit else ''}"
        raise RecipeError(
            f"the files of the lock of {entry.name} do not give its key {lock.key[:12]}",
            f"they give {found.short_key}: this builder reads them otherwise, or one was changed",
            f"builder {made} wrote it: check that version out, and repeat this with it",
        )


def bootstrapped_root(
    entry: Entry[BaseRecipe], root: Root, platforms: Platforms
) -> inputs.BootstrappedRoot:
    """The root that mmdebstrap makes for a base."""
    file, as_of = inputs.lock_file(entry), root.as_of or ""
    if file is not None:
        as_of = f"{locks.read(file, entry.name).as_of:%Y-%m-%d}"
    return inputs.BootstrappedRoot(root.suite, as_of, (*root.packages, *root.crossing(platforms)))


def plan_base(
    catalog: Catalog, name: str, platforms: Platforms, root: inputs.RootChoice
) -> BasePlan:
    """Resolve a base and the bases below it."""
    entry = catalog.base(name)
    packages = of_target(entry.recipe.devel.packages, platforms.target)
    devel = entry.recipe.devel.model_copy(update={"packages": packages})
    recipe = entry.recipe.model_copy(update={"devel": devel})
    family = families.BASES[recipe.family]
    below = plan_base(catalog, recipe.base, platforms, root) if recipe.base else None
    if below is not None:
        _require_stages(entry, below, *family.requires_stages)
    folder = folder_of(catalog.root, "dockerfiles")
    return BasePlan(
        recipe=recipe,
        family=family,
        file=entry.file,
        platforms=platforms,
        packages=family.packages(recipe, entry.file.parent, platforms),
        dockerfiles=folder,
        scripts=_hashed(folder / "scripts", family.scripts_of(recipe, platforms)),
        root=root if recipe.root or recipe.published else None,
        lock=inputs.lock_at(catalog.root),
        base=below,
        debian=inputs.debian_packages(
            entry, family.debian(recipe, platforms), inputs.suite_of(catalog, name)
        ),
    )


def plan(
    catalog: Catalog,
    entry: Entry[Recipe],
    platforms: Platforms,
    root: inputs.RootChoice,
    tools: BasePlan | None = None,
    namespace: str = "",
) -> Plan:
    """Resolve an engine's recipe; ``root`` is the root of its bases.

    ``tools`` is the base that its family compiles the entrypoint in, if it names one;
    ``namespace`` comes before the image's repository.
    """
    recipe = families.complete(entry.recipe.on(platforms.image))
    build = of_target(recipe.debian.build, platforms.target)
    debian = recipe.debian.model_copy(update={"build": build})
    recipe = recipe.model_copy(update={"debian": debian})
    _require_tree(entry, catalog.root)
    family = families.ENGINES[recipe.family]
    base = plan_base(catalog, recipe.base, platforms, root)
    _require_stages(entry, base, *family.requires_stages)
    folder = folder_of(catalog.root, "dockerfiles")
    own = folder / "entrypoint"  # older templates have none
    names = sorted(each.name for each in own.glob("*")) if family.runs else []
    name = recipe.image.repository
    return Plan(
        recipe=recipe,
        family=family,
        repository=f"{namespace}/{name}" if namespace else name,
        file=entry.file,
        platforms=platforms,
        source=inputs.resolve_source(recipe, catalog.root),
        patches=inputs.resolve_patches(entry, catalog.root),
        packages=family.packages(recipe, entry.file.parent, platforms),
        dockerfiles=folder,
        scripts=_hashed(folder / "scripts", family.scripts_of(recipe, platforms)),
        lock=inputs.lock_at(catalog.root),
        entrypoint=_hashed(own, names),
        base=base,
        tools=tools,
        debian=inputs.debian_packages(
            entry, family.debian(recipe, platforms), inputs.suite_of(catalog, recipe.base)
        ),
    )


def _require_stages(entry: Entry[Any], base: BasePlan, *stages: str) -> None:
    if missing := [stage for stage in stages if stage not in base.stages]:
        names = " and no stage ".join(missing)
        message = f"{base.name} has no stage {names} that {entry.name} needs"
        problem = entry.problem(("base",), message)
        raise RecipeError(f"{entry.name} cannot use the base {base.name}", problems=(problem,))


def _require_tree(entry: Entry[Recipe], root: Path) -> None:
    source = entry.recipe.source
    if isinstance(source, PathSource) and not (root / source.path).is_dir():
        message = f"there is no source tree {root / source.path}"
        raise FetchError(
            f"the source of {entry.name} is missing",
            str(entry.problem(("source", "path"), message)),
            f"correct path, a directory below {root}, or restore the directory",
        )


def _hashed(folder: Path, names: Iterable[str]) -> dict[str, str]:
    try:
        return {name: hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in names}
    except OSError as error:
        why = f"cannot read {error.filename}: {error.strerror}"
        raise RecipeError("a file that decides the image is missing", why) from error
