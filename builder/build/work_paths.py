"""The paths that engines took for their work on simulated cards: from records and ``trials/``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from builder.build import record, trials
from builder.checks.simulated import why_never
from builder.core.errors import WorldError
from builder.recipes.catalog import Catalog
from simulator.work import WorkPath

TEST_MODEL = "the smoke test's model"


@dataclass(frozen=True, slots=True)
class EnginePaths:
    """The paths of the newest verified image of a recipe."""

    recipe: str
    by_model: Mapping[str, tuple[WorkPath, ...]]
    """By preset; the small model of the smoke test first."""
    stated: str = ""
    """What the engine's own log says of its choices with the small model."""
    kept: bool = False
    """Whether the small model was started on another machine: ``trials/`` has it, no record."""


def paths_of(catalog: Catalog, recipe: str, state: Path) -> EnginePaths:
    """The paths of this machine's image; where it has none, those that the repository keeps.

    Raises ``WorldError`` where none are known, ``RecipeError`` where there is no such recipe, or
    the file of ``trials/`` is invalid.
    """
    kept, own = trials.kept_of(catalog.root, recipe), record.newest_good(state, recipe)
    device = own.verdict.device if own else None
    started = device or kept
    uses = {**(kept.presets if kept else {}), **(own.verdict.presets if own else {})}
    found = {TEST_MODEL: started.paths if started else ()}
    found |= {name: use.paths for name, use in sorted(uses.items())}
    known = {model: paths for model, paths in found.items() if paths}
    if not known:
        raise _unknown(catalog, recipe)
    stated = started.stated if started else ""
    return EnginePaths(recipe, known, stated, kept=device is None and TEST_MODEL in known)


def _unknown(catalog: Catalog, name: str) -> WorldError:
    what, recipe = f"the paths of {name} are not known", catalog.engine(name).recipe
    never = why_never(catalog, recipe)
    if not never:
        return WorldError(
            what,
            f"neither a record of this machine nor {trials.FOLDER}/ has any: its server was not "
            "started on a simulated card by this version of builder, or launched no kernel that "
            "builder/kernels/work.toml has",
            f"`builder smoke {name}` starts it, after `builder build {name}`",
        )
    others = [
        each.recipe.name
        for each in catalog.engines.values()
        if each.recipe
        and each.recipe.engine == recipe.engine
        and not why_never(catalog, each.recipe)
    ]
    hint = "on a GPU, the log of the engine or a profiler shows its choices"
    if others:
        names = " and ".join(f"`builder paths {each}`" for each in others)
        hint = f"{names}: other images of {recipe.engine}, which are started on one; {hint}"
    return WorldError(what, f"its server is never started on a simulated card: {never}", hint)
