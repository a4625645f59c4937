"""A recipe's name becomes a plan: looked up, resolved and rendered, once."""

from __future__ import annotations

from dataclasses import dataclass

from builder import families
from builder.errors import RecipeError
from builder.plan.base_image import RootPolicy
from builder.plan.plan import BasePlan, Plan
from builder.plan.resolve import plan, plan_base
from builder.platforms import PLATFORMS, Architecture, Platform, Platforms
from builder.recipes.catalog import Catalog, Entry
from builder.recipes.schema import Recipe


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
            "add it to `platform` in the recipe, or choose one that is there",
        )
    return platform or first
