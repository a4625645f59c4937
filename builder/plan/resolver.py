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

    def images(self, name: str) -> tuple[EngineImage, ...]:
        """The images of a recipe, one for each of its platforms, in the recipe's order.

        ``name`` is a recipe's, or that of an engine with one version.  Raises ``RecipeError``;
        ``FetchError`` where a source tree is missing, or no registry gives the digest of the image
        that a base starts from.
        """
        entry = self.catalog.engine(name)
        return tuple(self._image(entry, platform) for platform in entry.recipe.platform)

    def resolve(self, name: str, platform: Platform | None = None) -> EngineImage:
        """The image of a recipe for one of its platforms; None: for the only one.

        Raises like ``images``; ``RecipeError`` also where the recipe has no image for that
        platform, or several images and none is named.
        """
        entry = self.catalog.engine(name)
        return self._image(entry, one_of(entry.recipe, platform))

    def resolve_base(self, name: str, target: Architecture = "amd64") -> BaseImage:
        """The images of a base.  Raises like ``images``."""
        return render_base(self._base(name, Platforms(self.build, target)))

    def _image(self, entry: Entry[Recipe], platform: Platform) -> EngineImage:
        platforms = Platforms(self.build, PLATFORMS[platform])
        root = self.root_policy.choose(self.catalog, entry.recipe.base, platforms)
        tools = self._tools(entry.recipe, platforms)
        return render(plan(self.catalog, entry, platforms, root, tools), self.namespace)

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
