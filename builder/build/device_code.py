"""What cards do with the device code of a recipe's image: from records and ``trials/``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from builder.build import record, trials
from builder.core.platforms import Platform
from builder.image.code_paths import CodePaths, CodeSums, sums


@dataclass(frozen=True, slots=True)
class ImageCode:
    """The device code of one image."""

    key: str
    """The build key of the image."""
    created: str
    """As in ``Record``."""
    source: str
    """Where it is from: "the record of this machine", "trials/RECIPE.json"."""
    sums: tuple[CodeSums, ...]
    libraries: tuple[CodePaths, ...] = ()
    """Each library, the largest first; empty: only a record has them."""


def code_of(root: Path, recipe: str, platform: Platform, state: Path) -> ImageCode | None:
    """The code of the newest verified image of this machine; without one, what the repository has.

    None where neither has any.  Raises ``RecipeError`` where the file of ``trials/`` is invalid.
    """
    own = record.newest_good(state, recipe, platform=platform)
    if own is not None and own.verdict.code:
        code = own.verdict.code
        return ImageCode(own.key, own.created, "the record of this machine", sums(code), code)
    kept = trials.kept_of(root, recipe)
    if kept is None or kept.platform != platform or not kept.device_code:
        return None
    source = f"{trials.FOLDER}/{recipe}.json"
    return ImageCode(kept.key, kept.created, source, kept.device_code)
