"""``builder list`` and ``builder show``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from builder.cli import completion, preset_tables
from builder.cli.options import (
    CatalogOption,
    JsonOption,
    PlatformOption,
    build_architecture,
    build_session,
    catalog_at,
)
from builder.cli.tables import counted, pairs, table
from builder.cli.terminal import line, log, print_json
from builder.errors import FetchError, RecipeError
from builder.platforms import PLATFORMS

if TYPE_CHECKING:
    from builder.plan.plan import AnyPlan


def list_recipes(
    presets: Annotated[
        bool, typer.Option("--presets", help="List the presets instead: published runs.")
    ] = False,
    catalog: CatalogOption = None,
    as_json: JsonOption = False,
) -> None:
    """List all recipes: family, base, platforms, update, summary; with `--presets`, all presets.

    Problems of invalid recipes are printed to standard error; the exit code is then 3.
    """
    from builder.presets import catalog as preset_files
    from builder.recipes.catalog import problems_of

    found = catalog_at(catalog)
    if presets:
        preset_tables.print_all(preset_files.load(found), as_json=as_json)
        return
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
    recipe: Annotated[
        str,
        typer.Argument(
            metavar="RECIPE|PRESET",
            help="Name of a recipe, of an engine that has only one recipe, or of a preset; the "
            "short name of a preset.",
            autocompletion=completion.presets_and_recipes,
        ),
    ],
    catalog: CatalogOption = None,
    platform: PlatformOption = None,
    dockerfile: Annotated[
        bool, typer.Option("--dockerfile", help="Print the rendered Dockerfile instead.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Show the resolved plan of a recipe: all inputs, the base image and the build key.

    Nothing is downloaded or built. If a Docker engine answers, the plan is made for its
    architecture and its Debian root image. For a preset, show its models, options and figures.
    """
    from platform import machine

    from builder import settings
    from builder.launch.described import LaunchRequest
    from builder.launch.short import resolved
    from builder.plan.resolver import one_of
    from builder.presets import catalog as preset_files

    recipes = catalog_at(catalog)
    state = settings.load().state_dir
    recipe = resolved(recipes, LaunchRequest(recipe), "auto", state, log).target
    if preset_files.is_preset(recipe):
        if dockerfile:
            raise typer.BadParameter("a preset has no Dockerfile: name its recipe")
        preset_tables.print_one(preset_files.load(recipes).preset(recipe), recipes, as_json=as_json)
        return
    session = build_session(catalog, platform=platform)
    try:
        plans = session.plans(recipe, build_architecture())
    except FetchError as error:
        log(f"{error.what}: the plan is shown without that digest, so its key differs")
        plans = session.plans(recipe, machine())
    if dockerfile:
        one_of(plans[0].recipe, platform)
        typer.echo(plans[0].text, nl=False)
        return
    described = [_describe(plan) for plan in plans]
    if as_json:
        print_json({"images": described} if len(plans) > 1 else described[0])
        return
    for number, each in enumerate(described):
        if number:
            line("")
        _print_plan(each)


def _describe(plan: AnyPlan) -> dict[str, Any]:
    return {
        "name": plan.name,
        "summary": plan.recipe.summary,
        "notes": list(getattr(plan.recipe, "notes", [])),
        "file": str(plan.file),
        "family": plan.recipe.family,
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
    import tomlkit

    if isinstance(value, Mapping):
        given = {key: each for key, each in value.items() if each not in (None, "", [], (), {})}
        table = tomlkit.inline_table()
        table.update(given)
        return str(table.as_string()) if given else ""
    if value is None or isinstance(value, str):
        return value or ""
    return str(tomlkit.item(value).as_string())
