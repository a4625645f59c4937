"""The command line.  Heavy imports stand inside the commands, so that --help is quick."""

from __future__ import annotations

import errno
import json
import os
import signal
import sys
import time
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from builder import __version__
from builder.errors import (
    EXIT_CODES,
    INTERNAL,
    INTERRUPTED,
    BuilderError,
    Interrupted,
    RecipeError,
    SpaceError,
    WorldError,
)

if TYPE_CHECKING:
    from builder.catalogue import Catalogue
    from builder.pipeline import Run
    from builder.settings import Settings

EPILOG = "Exit codes: " + "; ".join(f"{code} {text}" for code, text in EXIT_CODES.items()) + "."

app = typer.Typer(
    name="builder",
    help="The image farm for sm_120 inference engines: recipes in, proved Docker images out.",
    epilog=EPILOG,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
)

EVERYDAY = "Everyday"
PLUMBING = "Plumbing"

RecipeName = Annotated[
    str, typer.Argument(metavar="RECIPE", help="Name of a recipe, or of an engine with one version")
]
CatalogueOption = Annotated[
    Path | None,
    typer.Option(
        "--catalogue",
        metavar="DIR",
        envvar="BUILDER_CATALOGUE",
        help="Repository that holds recipes/. Default: the one around the working directory, "
        "else the one that builder was installed from.",
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print the result as JSON, for programs.")]


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"builder {__version__}")
        raise typer.Exit


@app.callback()
def _main(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_version, is_eager=True, help="Print builder's version and exit."
        ),
    ] = False,
) -> None:
    """Take part in every command: nothing but --version."""


def _root(catalogue: Path | None) -> Path:
    if catalogue is not None:
        return catalogue.resolve()
    for start in (Path.cwd(), Path(__file__).resolve().parent):
        for folder in (start, *start.parents):
            if (folder / "recipes" / "bases").is_dir():
                return folder
    raise RecipeError(
        "there is no recipes/ directory here or above",
        hint="change into a checkout of the farm, or name one with --catalogue DIR",
    )


def _catalogue(folder: Path | None) -> Catalogue:
    from builder import catalogue, families

    engines = {name: family.check for name, family in families.ENGINES.items()}
    bases = {name: family.check for name, family in families.BASES.items()}
    return catalogue.load(_root(folder), engines, bases)


def _run(folder: Path | None, *, rebuild: bool = False, jobs: int | None = None) -> Run:
    from builder import console, settings
    from builder.pipeline import Run

    chosen: Settings = settings.load()
    if jobs is not None:
        chosen = chosen.model_copy(update={"jobs": jobs})
    progress = console.BuildProgress()
    return Run(_catalogue(folder), chosen, progress.say, progress.watch, rebuild=rebuild)


def _print_json(value: Any) -> None:
    typer.echo(json.dumps(value, indent=2))


@app.command("list", rich_help_panel=EVERYDAY)
def list_recipes(catalogue: CatalogueOption = None, as_json: JsonOption = False) -> None:
    """List all recipes: name, family, base and what the engine is.

    A recipe that is wrong is listed with what is wrong with it, and the exit code is 3.
    """
    found = _catalogue(catalogue)
    if as_json:
        _print_json(
            {
                "recipes": [
                    {
                        "name": entry.name,
                        "recipe": entry.recipe.model_dump(mode="json") if entry.recipe else None,
                        "problems": [str(problem) for problem in entry.problems],
                    }
                    for entry in found.engines.values()
                ],
                "bases": [
                    {"name": entry.name, "problems": [str(problem) for problem in entry.problems]}
                    for entry in found.bases.values()
                ],
            }
        )
    else:
        from builder import console

        rows = [
            (entry.name, entry.recipe.family, entry.recipe.base, entry.recipe.summary)
            for entry in found.engines.values()
            if entry.recipe is not None
        ]
        console.table(("recipe", "family", "base", "what it is"), rows)
    if found.problems():
        raise RecipeError("some recipes are wrong", problems=found.problems())


@app.command(rich_help_panel=EVERYDAY)
def show(
    recipe: RecipeName,
    catalogue: CatalogueOption = None,
    dockerfile: Annotated[
        bool, typer.Option("--dockerfile", help="Print the rendered Dockerfile instead.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Show the resolved plan of a recipe: every input, the base, the key.

    Nothing is fetched or built. Where a Docker engine answers, the plan is for its platform and
    stands on the Debian root that it has.
    """
    from builder import pipeline

    rendered = pipeline.resolve(_run(catalogue), recipe, _build_architecture())
    if dockerfile:
        typer.echo(rendered.text, nl=False)
        return
    described = _describe(rendered)
    if as_json:
        _print_json(described)
    else:
        from builder import console

        console.plan(described)


def _build_architecture() -> str | None:
    """None where the engine can be asked; this machine's own where there is none."""
    import platform

    from builder.tools import docker

    try:
        docker.engine()
    except WorldError:
        return platform.machine()
    return None


def _describe(rendered: Any) -> dict[str, Any]:
    plan = rendered.plan
    described: dict[str, Any] = {
        "name": plan.name,
        "summary": plan.recipe.summary,
        "notes": list(getattr(plan.recipe, "notes", [])),
        "file": str(plan.file),
        "family": plan.recipe.family,
        "key": rendered.key,
        "platforms": {"build": plan.platforms.build, "target": plan.platforms.target},
        **plan.inputs(),
    }
    described["base"] = _describe(rendered.base) if rendered.base else None
    return described


@app.command(rich_help_panel=EVERYDAY)
def build(
    recipe: RecipeName,
    catalogue: CatalogueOption = None,
    rebuild: Annotated[
        bool,
        typer.Option(
            "--rebuild",
            help="Build although the image is there. The compiler cache still helps; bases stay.",
        ),
    ] = False,
    jobs: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=4096,
            help="Compile jobs at once. Default: what cores and memory of the machine that "
            "compiles carry.",
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Build the image of a recipe, prove it, and give it its tags.

    Fetches and verifies every input, builds the base where it is missing, compiles without
    network, and checks the finished image against what the recipe promises. An image whose key is
    already there, proved, is not built again. Ctrl-C leaves nothing that the next run trips over.
    """
    from builder import console, pipeline

    run = _run(catalogue, rebuild=rebuild, jobs=jobs)
    with console.BuildProgress() as progress:
        run.say, run.watch = progress.say, progress.watch
        outcome = pipeline.build(run, recipe)
    if as_json:
        _print_json({"built": outcome.built, **outcome.record.as_json()})
    else:
        console.summary(outcome.record, outcome.built)


@app.command(rich_help_panel=EVERYDAY)
def smoke(
    recipe: RecipeName, catalogue: CatalogueOption = None, as_json: JsonOption = False
) -> None:
    """Prove the image of a recipe again, and print every check.

    The image must have been built. It is read without running it, then its programs are run
    without network, on a read-only root, as the image's own user.
    """
    from builder import pipeline

    record = pipeline.prove(_run(catalogue), recipe)
    if as_json:
        _print_json(record.as_json())
    else:
        from builder import console

        console.verdict(record)
    if not record.verdict.good:
        raise pipeline.proof_error(record.recipe, record.references[0], record.verdict)


@app.command(rich_help_panel=EVERYDAY)
def doctor(as_json: JsonOption = False) -> None:
    """Tell what this machine has and lacks for building, and what to do about each.

    The exit code is 4 when something is lacking without which nothing can be built.
    """
    from dataclasses import asdict

    from builder import doctor, settings

    findings = list(doctor.examine(settings.load()))
    if as_json:
        _print_json([asdict(finding) for finding in findings])
    else:
        from builder import console

        rows = [
            (finding.state, finding.what, finding.found, finding.advice) for finding in findings
        ]
        console.table(("", "what", "found", "what to do"), rows)
    if any(finding.state == "lacks" for finding in findings):
        raise typer.Exit(WorldError.exit_code)


@app.command(rich_help_panel=PLUMBING)
def schema(
    base: Annotated[
        bool, typer.Option("--base", help="The schema of a base instead of an engine's.")
    ] = False,
) -> None:
    """Print the JSON Schema of recipes, for editors.

    Editors that know TOML take it from the first line of a recipe:
    #:schema ../schemas/recipe.schema.json
    """
    from builder.schema import json_schema

    _print_json(json_schema(base))


def _explain(error: BuilderError) -> None:
    lines = [f"builder: {error.what}"]
    lines += [f"  {line}" for line in error.why.splitlines()]
    if error.hint:
        lines.append(f"  -> {error.hint}")
    typer.echo("\n".join(lines), err=True)


def _crash(error: BaseException) -> None:
    """Write a report of a fault of our own, and say where it is."""
    from platformdirs import user_state_path

    text = "".join(traceback.format_exception(error))
    try:
        folder = user_state_path("builder") / "crashes"
        folder.mkdir(parents=True, exist_ok=True)
        report = folder / f"{time.strftime('%Y%m%dT%H%M%S')}-{os.getpid()}.txt"
        report.write_text(f"builder {__version__}, Python {sys.version}\n{text}")
        where = str(report)
    except OSError:
        where = text
    typer.echo(
        f"builder: this is a fault of builder itself: {type(error).__name__}: {error}\n"
        f"  the report is {where}",
        err=True,
    )


def _terminate(signum: int, frame: Any) -> NoReturn:  # noqa: ARG001
    raise Interrupted


def main() -> NoReturn:
    """Run the command line: every exception becomes a message and an exit code here."""
    signal.signal(signal.SIGINT, _terminate)
    signal.signal(signal.SIGTERM, _terminate)
    try:
        app()
    except BuilderError as error:
        _explain(error)
        sys.exit(error.exit_code)
    except Interrupted:
        typer.echo("builder: interrupted; the next run starts clean", err=True)
        sys.exit(INTERRUPTED)
    except OSError as error:
        if error.errno == errno.ENOSPC:
            full = SpaceError("the disk is full", str(error), "free some, then build again")
            _explain(full)
            sys.exit(full.exit_code)
        if isinstance(error, PermissionError):
            denied = WorldError("something may not be read or written", str(error))
            _explain(denied)
            sys.exit(denied.exit_code)
        _crash(error)
        sys.exit(INTERNAL)
    except Exception as error:
        _crash(error)
        sys.exit(INTERNAL)
    sys.exit(0)
