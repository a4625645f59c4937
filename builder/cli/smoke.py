"""The commands that check recipes and images."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from builder.cli.options import (
    EVERYDAY,
    CatalogOption,
    JsonOption,
    JunitOption,
    SummaryOption,
    app,
    build_options,
    build_session,
    catalog_at,
    print_json,
    recipe_group,
    reporter,
)
from builder.errors import RecipeError

GPU = "With a GPU"


@app.command(rich_help_panel=EVERYDAY)
def smoke(
    target: Annotated[
        str,
        typer.Argument(
            metavar="RECIPE|IMAGE", help="Name of a recipe whose image was built, or any image"
        ),
    ],
    catalog: CatalogOption = None,
    recipe: Annotated[
        str | None,
        typer.Option(
            metavar="RECIPE",
            help="Check the image against this recipe. Default: the recipe in its label "
            "builder.recipe; without one, only what every image must fulfil is checked.",
        ),
    ] = None,
    gpu: Annotated[
        bool | None,
        typer.Option(
            "--gpu/--no-gpu",
            help="Also run the checks on the GPU. Default: if the engine has NVIDIA's runtime.",
            rich_help_panel=GPU,
            show_default=False,
        ),
    ] = None,
    model: Annotated[
        Path | None,
        typer.Option(
            exists=True,
            dir_okay=False,
            help="Model for the collapse test. Default: a tiny one with random weights.",
            rich_help_panel=GPU,
        ),
    ] = None,
    draft: Annotated[
        Path | None,
        typer.Option(exists=True, dir_okay=False, help="Its draft model.", rich_help_panel=GPU),
    ] = None,
    runs: Annotated[
        int, typer.Option(min=3, max=1000, help="Runs that count.", rich_help_panel=GPU)
    ] = 10,
    warm_ups: Annotated[
        int,
        typer.Option("--warm-ups", min=0, max=1000, help="Runs before them.", rich_help_panel=GPU),
    ] = 2,
    junit: JunitOption = None,
    summary: SummaryOption = None,
    as_json: JsonOption = False,
) -> None:
    """Smoke-test an image, and print every check: what was expected, what was found.

    The image is read without running it, then its programs are run without network, on a
    read-only root, as the image's own user; its server serves a tiny model, and is stopped. With
    a GPU: the device, the model on it, and the *collapse test*, runs of one prompt that must not
    become slower. Exit code 7: a check failed; 8: a check could not be run.
    """
    from builder.images import lookup
    from builder.images.check import smoke_error
    from builder.smoke.gpu import GpuTest

    options = build_options(gpu_test=GpuTest(model, draft, runs, warm_ups, gpu))
    session = build_session(catalog, options, reporter(junit, summary))
    found = lookup.smoke_test(session, target, recipe)
    if as_json:
        print_json(found.as_json())
    else:
        from builder.cli import console

        console.verdict(found.verdict)
    if not found.verdict.good:
        raise smoke_error(found.name, found.reference, found.verdict)


@recipe_group.command()
def check(
    recipes: Annotated[
        list[str] | None, typer.Argument(metavar="RECIPE", help="Default: all")
    ] = None,
    catalog: CatalogOption = None,
    strict: Annotated[
        bool, typer.Option("--strict", help="Warnings are errors: for CI of a catalog.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Check recipes without building: format, plan, Dockerfile, and what no probe covers.

    A warning names a patch without a probe, or a server that is never started. The exit code is
    3 where a recipe is wrong, with --strict also where there is a warning.
    """
    from builder.cli import console
    from builder.plan import lint

    found_recipes = catalog_at(catalog)
    names = recipes or list(found_recipes.engines)
    found = [lint.check(found_recipes, name) for name in names]
    if as_json:
        print_json(
            [
                {
                    "name": each.name,
                    "error": each.error,
                    "warnings": [str(warning) for warning in each.warnings],
                }
                for each in found
            ]
        )
    else:
        for each in found:
            for line in each.error.splitlines():
                console.line(line)
            for warning in each.warnings:
                console.line(f"{warning} (warning)")
    wrong = [each.name for each in found if each.error or (strict and each.warnings)]
    if wrong:
        raise RecipeError(f"{len(wrong)} of {len(found)} recipes are wrong: {', '.join(wrong)}")
    console.log("1 recipe is right" if len(found) == 1 else f"{len(found)} recipes are right")
