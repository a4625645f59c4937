"""Base family ``debian-root``: a minimal Debian system, the lowest base."""

from __future__ import annotations

from collections.abc import Iterator

from builder.core.platforms import Platforms
from builder.engines.debian import StagePackages, compiling
from builder.engines.family import BaseFamily, Finding, required
from builder.recipes.base import BaseRecipe


class DebianRoot(BaseFamily):
    """Its only stage is the root of all others."""

    name = "debian-root"
    summary = "a minimal Debian system, from a registry or made by mmdebstrap"
    template = "debian-root.Dockerfile.j2"
    scripts = ("reproducible",)
    stages = {"root": "gzip"}
    required_tables = {"root": "a [root] table"}

    def rules(self, recipe: BaseRecipe) -> Iterator[Finding]:
        """Its packages have one date."""
        if recipe.root is not None and (recipe.root.as_of is None) == (recipe.debian is None):
            message = "a root has the date of its packages: as_of in [root], or lock in [debian]"
            yield ("root",), message

    def debian(self, recipe: BaseRecipe, platforms: Platforms) -> list[StagePackages]:
        """A root for each of both platforms; with a cross compiler, one for the build platform."""
        root = required(recipe.root, recipe)
        cross = root.crossing(platforms)
        if cross:
            return [compiling("root", "", [*root.packages, *cross], platforms)]
        return [StagePackages("root", "", each, tuple(root.packages)) for each in platforms.both]
