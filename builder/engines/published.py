"""Base family ``published``: an image that another project publishes, by digest."""

from __future__ import annotations

from collections.abc import Iterator

from builder.engines.family import BaseFamily, Finding
from builder.recipes.base import BaseRecipe, Stage


class Published(BaseFamily):
    """The image is used as it is."""

    name = "published"
    summary = "an image that another project publishes, by digest"
    template = "published.Dockerfile.j2"
    stages = {"runtime": "gzip"}
    required_tables = {"published": "a [published] table: image"}

    def rules(self, recipe: BaseRecipe) -> Iterator[Finding]:
        """Nothing is added to it."""
        if recipe.devel != Stage() or recipe.runtime != Stage():
            yield ("family",), "a published image is used unchanged: remove [devel] and [runtime]"
