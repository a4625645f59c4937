"""The paths that engines took for their work on simulated cards: from records and ``trials/``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from builder.errors import WorldError
from builder.kernels.work import WorkPath
from builder.records import record, trials

TEST_MODEL = "the smoke test's model"


@dataclass(frozen=True, slots=True)
class EnginePaths:
    """The paths of the newest verified image of a recipe."""

    recipe: str
    by_model: Mapping[str, tuple[WorkPath, ...]]
    """By preset; the small model of the smoke test first."""
    stated: str = ""
    """What the engine's own log says of its choices with the small model."""


def paths_of(root: Path, recipe: str, state: Path) -> EnginePaths:
    """The paths of this machine's image; of presets also those that the repository keeps.

    Raises ``WorldError`` where none are known, ``RecipeError`` where the file of ``trials/`` is
    invalid.
    """
    kept, own = trials.kept_of(root, recipe), record.newest_good(state, recipe)
    device = own.verdict.device if own else None
    uses = {**(kept.presets if kept else {}), **(own.verdict.presets if own else {})}
    found = {TEST_MODEL: device.paths if device else ()}
    found |= {name: use.paths for name, use in sorted(uses.items())}
    known = {model: paths for model, paths in found.items() if paths}
    if not known:
        raise WorldError(
            f"the paths of {recipe} are not known",
            "no record has any: its server was not started on a simulated card by this version of "
            "builder, or launched no kernel that builder/kernels/work.toml has",
            f"`builder smoke {recipe}` starts it, after `builder build {recipe}`",
        )
    return EnginePaths(recipe, known, device.stated if device else "")
