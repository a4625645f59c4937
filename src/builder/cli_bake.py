"""The command that writes a bake file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from builder.command import (
    PLUMBING,
    BuilderOption,
    CatalogueOption,
    JsonOption,
    OfflineOption,
    app,
    build_architecture,
    new_run,
    print_json,
)


@app.command(rich_help_panel=PLUMBING)
def bake(
    output: Annotated[
        Path,
        typer.Option(
            "--output",
            metavar="DIR",
            file_okay=False,
            help="Where docker-bake.json and contexts/ are written; an earlier one is replaced.",
        ),
    ],
    recipes: Annotated[
        list[str] | None,
        typer.Argument(metavar="RECIPE", help="Default: all whose inputs can be had."),
    ] = None,
    catalogue: CatalogueOption = None,
    builder: BuilderOption = None,
    offline: OfflineOption = False,
    as_json: JsonOption = False,
) -> None:
    """Write a bake file of recipes, for `docker buildx bake`: one command builds them all.

    It holds everything but Debian's packages: sources with their patches applied, wheels, rendered
    Dockerfiles. Bases are targets that the recipes on them share. Run it in DIR, on whatever
    buildx builds with, with --load for the engine or --push for a registry; `docker buildx bake
    on-BASE` takes the recipes on one base, `bases` the bases alone. buildx has read the file when
    this is done.

    What is baked is named unproved-KEY, because nothing has proved it. Once the engine has such an
    image, `builder build RECIPE` proves it and gives it its tags, and compiles nothing.
    """
    from builder import baking, console

    run = new_run(catalogue, builder=builder, offline=offline)
    done = baking.bake(run, recipes or [], output.absolute(), build_architecture())
    if as_json:
        print_json(
            {
                "file": str(done.file),
                "groups": done.groups,
                "images": done.candidates,
                "left_out": {name: str(error) for name, error in done.left_out.items()},
            }
        )
        return
    for name, reference in done.candidates.items():
        console.line(f"{name:28}  {reference}")
    for name, error in done.left_out.items():
        console.line(f"{name:28}  left out: {error.what}")
    console.line(f"written     {done.file}")
    console.line(f"next        cd {output} && docker buildx bake --load")
