"""A recipe's name becomes an image to build: looked up, planned and rendered, once."""

from __future__ import annotations

from dataclasses import dataclass

from builder import families
from builder.errors import RecipeError
from builder.plan.base_image import RootPolicy
from builder.plan.dockerfile import render, render_base
from builder.plan.inputs import BasePlan
from builder.plan.rendered import BaseImage, EngineImage
from builder.plan.resolve import plan, plan_base
from builder.platforms import Platforms
from builder.recipes.catalog import Catalog
from builder.recipes.schema import Recipe


@dataclass(frozen=True, slots=True)
class Resolver:
    """Resolves the recipes of a catalog for two platforms.

    ``namespace`` comes before each image's repository: an account, or REGISTRY/ACCOUNT.
    """

    catalog: Catalog
    platforms: Platforms
    root_policy: RootPolicy
    namespace: str = ""

    def resolve(self, name: str) -> EngineImage:
        """The image of a recipe, or of an engine with one version.

        Raises ``RecipeError``; ``FetchError`` where a source tree is missing, or no registry gives
        the digest of the image that a base starts from.
        """
        entry = self.catalog.engine(name)
        root = self.root_policy.choose(self.catalog, entry.recipe.base, self.platforms)
        tools = self._tools(entry.recipe)
        return render(plan(self.catalog, entry, self.platforms, root, tools), self.namespace)

    def resolve_base(self, name: str) -> BaseImage:
        """The images of a base.  Raises like ``resolve``."""
        return render_base(self._base(name))

    def _tools(self, recipe: Recipe) -> BasePlan | None:
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
        return self._base(name)

    def _base(self, name: str) -> BasePlan:
        root = self.root_policy.choose(self.catalog, name, self.platforms)
        return plan_base(self.catalog, name, self.platforms, root)
