"""Presets as tables: of ``builder list --presets`` and ``builder show PRESET``."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Any

from builder.cli.tables import filled, pairs, paragraph, table
from builder.cli.terminal import line, print_json
from builder.core.errors import RecipeError

if TYPE_CHECKING:
    from builder.presets.catalog import PresetEntry, Presets
    from builder.presets.figures import Figures, Memory, Result
    from builder.presets.schema import Preset
    from builder.recipes.catalog import Catalog


def print_all(presets: Presets, *, as_json: bool) -> None:
    """Print all presets; raises ``RecipeError`` if some are invalid."""
    if as_json:
        print_json(
            {
                "presets": [
                    {
                        "name": name,
                        "preset": _dumped(entry.preset) if entry.preset else None,
                        "problems": [str(problem) for problem in entry.problems],
                    }
                    for name, entry in presets.entries.items()
                ]
            }
        )
    else:
        rows = [
            (
                entry.name,
                entry.preset.recipe,
                _cards(entry.preset),
                _speed(entry.preset),
                entry.preset.summary,
            )
            for entry in presets.valid()
        ]
        header = ("preset", "recipe", "card", "speed", "summary")
        table(header, rows, drops=("recipe", "card", "summary", "speed"), wraps="summary")
    if presets.problems():
        raise RecipeError("some presets are invalid", problems=presets.problems())


def print_one(entry: PresetEntry, recipes: Catalog, *, as_json: bool) -> None:
    """Print a preset: models, options, figures and caveats."""
    from builder.presets import command, model_files

    preset = entry.preset
    files = model_files.of_preset(preset)
    places = {
        place: file.repository or "" if file.whole else place.upper()
        for place, file in files.items()
    }
    words = command.arguments(preset, recipes.engine(preset.recipe).recipe, places)
    options = command.container_options(preset.container)
    if as_json:
        found = {"name": entry.name, "file": str(entry.file), **_dumped(preset)}
        print_json({**found, "command": words, "container_options": options})
        return
    environment = [f"{name}={value}" for name, value in preset.serve.environment.items()]
    pairs(
        filled(
            {
                "name": entry.name,
                "summary": preset.summary,
                "recipe": preset.recipe,
                "card": _cards(preset),
                **{model_files.TABLES[place]: file.shown for place, file in files.items()},
                "arguments": shlex.join(words),
                "environment": shlex.join(environment),
                "container": shlex.join(options),
                "memory": _memory(preset.memory),
                "method": _method(preset),
                "loses to": preset.loses_to or "",
                "source": _source(preset),
            }
        )
    )
    if preset.result:
        line("")
        header = ("context", "tokens/s", "runs", "accepted", "baseline", "memory", "differs")
        table(header, [_row(preset, result) for result in preset.result])
    paragraph("Caveats", [each.shown for each in preset.caveat])
    paragraph("Unverified", [f"{key}: {why}" for key, why in preset.unverified.items()])


def _dumped(preset: Preset) -> dict[str, Any]:
    return preset.model_dump(mode="json", exclude_defaults=True)


def _cards(preset: Preset) -> str:
    return f"{preset.cards} x {preset.card}" if preset.cards > 1 else preset.card


def _speed(preset: Preset) -> str:
    """With its unit: a table that is not for a terminal has no header."""
    if preset.published is None:
        return ""
    return f"{_figures(preset.published.tokens_per_second)} tokens/s"


def _figures(found: Figures | None) -> str:
    if found is None:
        return ""
    if found.mean is None and not found.runs:
        return f"{found.least:g}-{found.most:g}"
    spread = f" ({found.least:g}-{found.most:g})" if found.least < found.most else ""
    return f"{round(found.middle, 2):g}{spread}"


def _memory(found: Memory | None) -> str:
    if found is None:
        return ""
    parts = ", ".join(f"{kind} {size:g}" for kind, size in found.kinds.items())
    total = f"{found.total:g} {found.unit}" if found.total is not None else ""
    return ": ".join(filter(None, (total, parts if total else f"{parts} {found.unit}")))


def _method(preset: Preset) -> str:
    given = preset.method.model_dump(exclude_defaults=True)
    given |= {"seeds": " ".join(map(str, given["seeds"]))} if "seeds" in given else {}
    task = given.pop("task", "")
    named = [f"{name.replace('_', '-')} {value}" for name, value in given.items()]
    return ", ".join(filter(None, [task, *named]))


def _source(preset: Preset) -> str:
    found = preset.source
    if found is None:
        return ""
    return "  ".join(filter(None, (found.title, found.published, found.url)))


def _row(preset: Preset, result: Result) -> tuple[str, ...]:
    speeds = result.tokens_per_second
    differs = [shlex.join(result.arguments), result.differs or "", result.task or ""]
    accepted = _figures(result.acceptance)
    if not accepted and result.accepted_share is not None:
        accepted = f"{result.accepted_share:.1f}"
    return (
        str(preset.context_of(result) or ""),
        _figures(speeds),
        str(speeds.count or len(speeds.runs) or ""),
        f"{accepted} %" if accepted else "",
        f"{result.baseline:g}" if result.baseline else "",
        _memory(result.memory),
        "; ".join(filter(None, differs)),
    )
