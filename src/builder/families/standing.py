"""What the families of bases share."""

from __future__ import annotations

from collections.abc import Iterator

from builder.schema import BaseRecipe

TABLES = {
    "root": "[root]",
    "wheel": "[[wheel]]",
    "published": "[published]",
    "python": "[python]",
}
"""Parts of a base that only some families know."""


def foreign(
    recipe: BaseRecipe, family: str, *known: str
) -> Iterator[tuple[tuple[str | int, ...], str]]:
    """The tables of a base that its family, which knows those named, would pass over."""
    for name, table in TABLES.items():
        if name not in known and getattr(recipe, name):
            yield (name,), f"the family {family} has no use for {table}"
