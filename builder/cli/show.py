"""``builder list`` and ``builder show``."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from builder.cli import options
from builder.cli.options import argument, catalog_at, flag
from builder.cli.terminal import counted, line, log, pairs, paragraph, print_json, table
from builder.core.errors import FetchError, RecipeError, WorldError
from builder.core.farm import farm_root
from builder.core.platforms import PLATFORMS, Platform

if TYPE_CHECKING:
    from builder.plan.plan import AnyPlan
    from builder.presets.catalog import PresetEntry, Presets
    from builder.presets.schema import Figures, Memory, Preset, Result
    from builder.recipes.catalog import Catalog


# Presets as tables: of ``builder list --presets`` and ``builder show PRESET``.


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
            (of.name, of.preset.recipe, _cards(of.preset), _speed(of.preset), of.preset.summary)
            for of in presets.valid()
        ]
        header = ("preset", "recipe", "card", "speed", "summary")
        table(header, rows, drops=("recipe", "card", "summary", "speed"), wraps="summary")
    if presets.problems():
        raise RecipeError("some presets are invalid", problems=presets.problems())


def print_one(entry: PresetEntry, recipes: Catalog, *, as_json: bool) -> None:
    """Print a preset: models, options, figures and caveats."""
    from builder.presets import command
    from builder.presets.schema import TABLES

    preset = entry.preset
    files = preset.files
    places = {
        place: file.repository or "" if file.whole else place.upper()
        for place, file in files.items()
    }
    words = command.arguments(preset, recipes.engine(preset.recipe).recipe, places)
    container = command.container_options(preset.container)
    if as_json:
        found = {"name": entry.name, "file": str(entry.file), **_dumped(preset)}
        print_json({**found, "command": words, "container_options": container})
        return
    environment = [f"{name}={value}" for name, value in preset.serve.environment.items()]
    pairs(
        {
            "name": entry.name,
            "summary": preset.summary,
            "recipe": preset.recipe,
            "card": _cards(preset),
            **{TABLES[place]: file.shown for place, file in files.items()},
            "arguments": shlex.join(words),
            "environment": shlex.join(environment),
            "container": shlex.join(container),
            "memory": _memory(preset.memory),
            "method": _method(preset),
            "loses to": preset.loses_to or "",
            "source": _source(preset),
        }
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


# ``builder list`` and ``builder show``.

BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")


def list_recipes(
    presets: bool = flag("--presets", "List the presets instead: published runs."),
    catalog: options.CatalogOption = None,
    as_json: options.JsonOption = False,
) -> None:
    """List all recipes: family, base, platforms, update, summary; with `--presets`, all presets.

    Problems of invalid recipes are printed to standard error; the exit code is then 3.
    """
    from builder.recipes.catalog import problems_of

    if presets:
        from builder.presets.catalog import with_recipes

        print_all(with_recipes(farm_root(catalog))[0], as_json=as_json)
        return
    found = catalog_at(catalog)
    if as_json:
        print_json(
            {
                "recipes": [
                    {
                        "name": name,
                        "recipe": entry.recipe.model_dump(mode="json") if entry.recipe else None,
                        "problems": [str(problem) for problem in problems_of(entry)],
                    }
                    for name, entry in found.engines.items()
                ],
                "bases": [
                    {"name": name, "problems": [str(problem) for problem in problems_of(base)]}
                    for name, base in found.bases.items()
                ],
            }
        )
    else:
        rows = [
            (
                name,
                entry.recipe.family,
                entry.recipe.base,
                " ".join(PLATFORMS[platform] for platform in entry.recipe.platform),
                f"{entry.recipe.budget.update} MB" if entry.recipe.budget.update else "",
                entry.recipe.summary,
            )
            for name, entry in found.engines.items()
            if entry.recipe is not None
        ]
        header = ("recipe", "family", "base", "for", "update", "summary")
        table(header, rows, drops=("update", "for", "base", "family"), wraps="summary")
    if found.problems():
        raise RecipeError("some recipes are invalid", problems=found.problems())


def show(
    recipe: str = argument(
        "RECIPE|PRESET",
        "Name of a recipe, of an engine that has only one recipe, or of a preset; the short name "
        "of a preset.",
        autocompletion=options.presets_and_recipes,
    ),
    catalog: options.CatalogOption = None,
    platform: options.PlatformOption = None,
    dockerfile: bool = flag("--dockerfile", "Print the rendered Dockerfile instead."),
    as_json: options.JsonOption = False,
) -> None:
    """Show the resolved plan of a recipe: all inputs, the base image and the build key.

    Nothing is downloaded or built. If a Docker engine answers, the plan is made for its
    architecture and its Debian root image. For a preset, show its models, options and figures.
    """
    from builder.presets import is_preset

    root = farm_root(catalog)
    target = recipe if is_preset(recipe) or _is_recipe(root, recipe) else _meant(root, recipe)
    if not is_preset(target):
        _show_recipe(root, target, platform, dockerfile=dockerfile, as_json=as_json)
        return
    from builder.presets.catalog import with_recipes

    if dockerfile:
        raise typer.BadParameter("a preset has no Dockerfile: name its recipe")
    presets, recipes = with_recipes(root)
    print_one(presets.preset(target), recipes, as_json=as_json)


def _is_recipe(root: Path, name: str) -> bool:
    """Whether a file is of the recipe, or of a version of the engine, with that name."""
    stems = [file.stem for file in (root / "recipes").glob("*.toml")]
    return any(stem == name or stem.startswith(f"{name}-") for stem in stems)


def _meant(root: Path, name: str) -> str:
    """The preset that a short name means on this machine."""
    from builder.core import settings
    from builder.presets.choose import of_farm, resolved

    return resolved(of_farm(root)[1], name, settings.load().state_dir, log)[0]


def _show_recipe(
    root: Path, recipe: str, platform: Platform | None, *, dockerfile: bool, as_json: bool
) -> None:
    from platform import machine

    from builder.build.roots import resolver_of
    from builder.core import settings
    from builder.engines.families import load_catalog
    from builder.plan.resolver import one_of

    recipes, own = load_catalog(root, only=[recipe]), settings.load()
    recipes.engine(recipe)  # reports a broken recipe also where no engine answers
    try:
        found = resolver_of(recipes, own, log, build_architecture()).plans(recipe, platform)
    except FetchError as error:
        log(f"{error.what}: the plan is shown without that digest, so its key differs")
        found = resolver_of(recipes, own, log, machine()).plans(recipe, platform)
    if dockerfile:
        one_of(found[0].recipe, platform)
        typer.echo(found[0].text, nl=False)
        return
    described = [_describe(plan) for plan in found]
    if as_json:
        print_json({"images": described} if len(described) > 1 else described[0])
        return
    for number, each in enumerate(described):
        if number:
            line("")
        _print_plan(each)


def build_architecture() -> str | None:
    """This machine's architecture if no engine answers; None if an engine can be asked."""
    from platform import machine

    from builder.docker import engine as docker

    try:
        docker.engine()
    except WorldError:
        return machine()
    return None


def _describe(plan: AnyPlan) -> dict[str, Any]:
    recipe = plan.recipe
    return {
        "name": plan.name,
        "summary": recipe.summary,
        "notes": list(getattr(recipe, "notes", [])),
        "file": str(plan.file),
        "family": recipe.family,
        "key": plan.key,
        **plan.inputs(),
        "base": _describe(plan.base) if plan.base else None,
    }


def _print_plan(plan: dict[str, Any]) -> None:
    apart = {"base", "debian", "labels", "notes", "packages", "patches", "platforms", "scripts"}
    build, target = plan["platforms"]
    lines = [(name, _plain(value)) for name, value in plan.items() if name not in apart]
    lines += [("platform", target if build == target else f"{target}, compiled on {build}")]
    lines += [("patch", _plain(patch)) for patch in plan.get("patches", [])]
    lines += [("note", note) for note in plan["notes"]]
    for context, files in plan["packages"].items():
        lines += [(context, f"{name} {version}  sha256:{sha}") for name, version, sha in files]
    for stage, packages in (plan.get("debian") or {}).items():
        lines.append(("debian", f"{stage}: {counted(len(packages), 'package')}; see --json"))
    lines += [("script", f"{name}  sha256:{sha}") for name, sha in plan["scripts"].items()]
    lines += [("label", f"{name}={value}") for name, value in plan.get("labels", {}).items()]
    pairs([(name, value) for name, value in lines if value])
    if plan["base"] is not None:
        line(f"\nbased on {plan['base']['name']}:")
        _print_plan(plan["base"])


def _plain(value: Any) -> str:
    """A text as it is, any other value as TOML writes it, without empty parts."""
    if isinstance(value, Mapping):
        value = {key: each for key, each in value.items() if each not in (None, "", [], (), {})}
    if value is None or isinstance(value, str):
        return value or ""
    return _as_toml(value) if value != {} else ""


def _as_toml(value: Any) -> str:
    """``value`` in one line of TOML, which has no null; importing tomlkit takes too long here."""
    if isinstance(value, Mapping):
        given = [(key, each) for key, each in value.items() if each is not None]
        named = [(key if BARE_KEY.fullmatch(key) else json.dumps(key), each) for key, each in given]
        return "{" + ", ".join(f"{key} = {_as_toml(each)}" for key, each in named) + "}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_as_toml, value))}]"
    return json.dumps(value, ensure_ascii=False, default=str)
