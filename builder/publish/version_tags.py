"""Which tags are version tags, which do not move."""

from __future__ import annotations

from collections.abc import Iterable

from builder.errors import RegistryError
from builder.families.layout import LABEL_RECIPE
from builder.publish.remote_image import remote_image
from builder.publish.tag_history import past_moves
from builder.publish.verdicts import Trust
from builder.recipes.schema import Recipe
from builder.tools.registry.client import Repository


def require_moving(
    recipes: Iterable[Recipe], repository: Repository, name: str, tag: str, trust: Trust
) -> None:
    """Raise ``RegistryError`` where a tag is a version tag, which does not move.

    ``name`` is the repository's name in the recipes.  They declare version tags and moving tags.
    For a tag that none of them has, the label with the version counts, then the tag's history,
    where replacements do not count.  A tag that exists and is not known to move does not move; a
    new tag may be any.  Raises ``FetchError``.
    """
    known = [recipe for recipe in recipes if recipe.image.repository == name]
    if any(tag in recipe.image.moving for recipe in known):
        return
    owners = [recipe.name for recipe in known if tag in recipe.image.tags]
    there = remote_image(repository, tag) if not owners else None
    if owners:
        raise _fixed(tag, owners[0])
    if there is None:
        return
    if tag == there.version:
        recipe = there.labels.get(LABEL_RECIPE) or f"an image of version {there.version}"
        raise _fixed(tag, f"{recipe}, whose recipe is not in this catalog")
    moved = (move.by != "replacement" for move in past_moves(repository, tag, trust))
    if not any(moved):
        raise RegistryError(
            f"{repository.name}:{tag} is not known to move",
            "no recipe of this catalog has it, and no move of it is noted",
            "add it to image.moving in the recipe; to replace the image of a version: "
            "`builder push --replace --reason TEXT`",
        )


def _fixed(tag: str, owner: str) -> RegistryError:
    return RegistryError(
        f"{tag} is the version tag of {owner}: it does not move",
        hint="to replace the image of that version: `builder push --replace --reason TEXT`",
    )
