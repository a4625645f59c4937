"""The command line.  Heavy imports stand inside the commands, so that --help is quick."""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from builder import __version__
from builder.cli import (
    bake,  # noqa: F401  (these register their commands)
    bench,  # noqa: F401
    bisect,  # noqa: F401
    ccache,  # noqa: F401
    hub,  # noqa: F401
    locks,  # noqa: F401
    matrix,  # noqa: F401
    nights,  # noqa: F401
    prune,  # noqa: F401
    publish,  # noqa: F401
    sbom,  # noqa: F401
    smoke,  # noqa: F401
    sources,  # noqa: F401
)
from builder.cli.options import (
    EVERYDAY,
    BuilderOption,
    CatalogOption,
    JsonOption,
    JunitOption,
    OfflineOption,
    RecipeName,
    SummaryOption,
    app,
    build_architecture,
    build_options,
    build_session,
    catalog_at,
    print_json,
    recipe_group,
    reporter,
    run,
)
from builder.errors import (
    INTERNAL,
    INTERRUPTED,
    BuilderError,
    FetchError,
    Interrupted,
    RecipeError,
    WorldError,
    as_started,
)
from builder.records import crashes

if TYPE_CHECKING:
    from builder.plan.rendered import BaseImage, EngineImage


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


@app.command("list", rich_help_panel=EVERYDAY)
def list_recipes(catalog: CatalogOption = None, as_json: JsonOption = False) -> None:
    """List all recipes: name, family, base and what the engine is.

    The problems of a wrong recipe are listed too; then the exit code is 3.
    """
    from builder.recipes.catalog import problems_of

    found = catalog_at(catalog)
    if as_json:
        print_json(
            {
                "recipes": [
                    {
                        "name": entry.name,
                        "recipe": entry.recipe.model_dump(mode="json") if entry.recipe else None,
                        "problems": [str(problem) for problem in problems_of(entry)],
                    }
                    for entry in found.engines.values()
                ],
                "bases": [
                    {"name": base.name, "problems": [str(problem) for problem in problems_of(base)]}
                    for base in found.bases.values()
                ],
            }
        )
    else:
        from builder.cli import console

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
    catalog: CatalogOption = None,
    dockerfile: Annotated[
        bool, typer.Option("--dockerfile", help="Print the rendered Dockerfile instead.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Show the resolved plan of a recipe: every input, the base, the key.

    Nothing is fetched or built. If a Docker engine answers, the plan is made for its platform and
    with the Debian root that it has.
    """
    import platform

    from builder.cli import console

    session = build_session(catalog)
    try:
        image = session.resolve(recipe, build_architecture())
    except FetchError as error:
        console.log(f"{error.what}: shown without its digest, and the key will be another")
        image = session.resolve(recipe, platform.machine())
    if dockerfile:
        typer.echo(image.text, nl=False)
        return
    described = _describe(image)
    if as_json:
        print_json(described)
    else:
        console.plan(described)


def _describe(image: EngineImage | BaseImage) -> dict[str, Any]:
    plan = image.plan
    described: dict[str, Any] = {
        "name": plan.name,
        "summary": plan.recipe.summary,
        "notes": list(getattr(plan.recipe, "notes", [])),
        "file": str(plan.file),
        "family": plan.recipe.family,
        "key": image.key,
        "platforms": {"build": plan.platforms.build, "target": plan.platforms.target},
        **plan.inputs(),
    }
    described["base"] = _describe(image.base) if image.base else None
    return described


@recipe_group.command()
def explain(recipe: RecipeName, catalog: CatalogOption = None, as_json: JsonOption = False) -> None:
    """Explain what the image of a recipe is made of, and why.

    It shows the source; the patches, each with its reason and when it can be dropped; every cmake
    definition with its origin (builder, the family, or the recipe); the base; and the checks that
    the image must pass. Nothing is fetched or built.
    """
    from builder.cli import console
    from builder.plan.explain import explained

    told = explained(catalog_at(catalog), recipe)
    if as_json:
        print_json(told)
    else:
        console.explanation(told)


@app.command(rich_help_panel=EVERYDAY)
def build(
    recipe: RecipeName,
    catalog: CatalogOption = None,
    rebuild: Annotated[
        bool,
        typer.Option(
            "--rebuild",
            help="Build again an image that exists. The compiler cache is used, bases are kept.",
        ),
    ] = False,
    jobs: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=4096,
            help="Number of parallel compile jobs. Default: as many as the cores and the memory of "
            "the machine that compiles allow.",
        ),
    ] = None,
    builder: BuilderOption = None,
    offline: OfflineOption = False,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            metavar="DIR",
            file_okay=False,
            help="Also write an artifact's files (a library, not an engine) to this directory.",
        ),
    ] = None,
    junit: JunitOption = None,
    summary: SummaryOption = None,
    as_json: JsonOption = False,
) -> None:
    """Build the image of a recipe, smoke-test it, and give it its tags.

    The command fetches and verifies every input, builds the base if it is missing, compiles
    without network, and checks the image against the recipe. An image that was
    built and verified with the same inputs is not built again. After Ctrl-C the next run starts
    clean.
    """
    from builder import pipeline
    from builder.cli import console
    from builder.images import export
    from builder.smoke.gpu import GpuTest

    options = build_options(
        gpu_test=GpuTest(), rebuild=rebuild, offline=offline, jobs=jobs, builder=builder
    )
    with reporter(junit, summary) as progress:
        session = build_session(catalog, options, progress)
        if output is not None:
            export.require_artifact(session.catalog.engine(recipe).recipe, output)
        image = session.resolve(recipe)
        outcome = pipeline.build(image, options, progress)
    made = outcome.record
    files = [] if output is None else export.deliver(image.plan.recipe, made.references[0], output)
    if as_json:
        delivered = [str(file) for file in files]
        done = {"built": outcome.built, "checked": outcome.checked}
        print_json({**done, **made.as_json(), "delivered": delivered})
    else:
        console.summary(outcome)
        for file in files:
            console.line(f"written     {file}")


@app.command(rich_help_panel=EVERYDAY)
def doctor(as_json: JsonOption = False) -> None:
    """Show what this machine has and lacks for building, and what to do about it.

    The exit code is 4 when the machine lacks something that every build needs.
    """
    from dataclasses import asdict

    from builder import settings
    from builder.host import doctor

    findings = list(doctor.examine(settings.load()))
    if as_json:
        print_json([asdict(finding) for finding in findings])
    else:
        from builder.cli import console

        rows = [
            (finding.state, finding.what, finding.found, finding.advice) for finding in findings
        ]
        console.table(("", "what", "found", "what to do"), rows)
    if any(finding.state == "lacks" for finding in findings):
        raise typer.Exit(WorldError.exit_code)


@recipe_group.command()
def schema(
    base: Annotated[
        bool, typer.Option("--base", help="Print the schema of bases instead.")
    ] = False,
) -> None:
    """Print the JSON Schema of recipes, for editors.

    An editor with TOML support finds it by the first line of a recipe:
    #:schema schemas/recipe.schema.json
    """
    from builder.recipes.schema import json_schema

    print_json(json_schema(base))


def _explain(error: BuilderError) -> None:
    lines = [f"builder: {error.what}"]
    lines += [f"  {line}" for line in error.why.splitlines()]
    if error.hint:
        lines.append(f"  -> {error.hint}")
    typer.echo(as_started("\n".join(lines)), err=True)


def _crash(error: BaseException) -> None:
    """Write a report of a fault of our own, and say where it is."""
    typer.echo(
        f"builder: this is a fault of builder itself: {type(error).__name__}: {error}\n"
        f"  the report is {crashes.write_report(error)}",
        err=True,
    )


def _terminate(signum: int, frame: Any) -> NoReturn:  # noqa: ARG001
    raise Interrupted


def main() -> NoReturn:
    """Run the command line: every exception becomes a message and an exit code here."""
    signal.signal(signal.SIGINT, _terminate)
    signal.signal(signal.SIGTERM, _terminate)
    try:
        run()
    except Interrupted:
        typer.echo("builder: interrupted; the next run starts clean", err=True)
        sys.exit(INTERRUPTED)
    except Exception as error:
        known = crashes.as_builder_error(error)
        if known is None:
            _crash(error)
            sys.exit(INTERNAL)
        _explain(known)
        sys.exit(known.exit_code)
    sys.exit(0)
