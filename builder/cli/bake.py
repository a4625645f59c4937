"""The command that writes a bake file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from builder.cli.options import (
    OTHERS,
    BuilderOption,
    CatalogOption,
    JsonOption,
    OfflineOption,
    app,
    build_architecture,
    build_options,
    build_session,
    print_json,
)


@app.command(rich_help_panel=OTHERS)
def bake(
    output: Annotated[
        Path,
        typer.Option(
            "--output",
            metavar="DIR",
            file_okay=False,
            help="Directory for docker-bake.json and contexts/; an earlier bake in it is replaced.",
        ),
    ],
    recipes: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="RECIPE", help="Names of recipes. Default: all whose inputs can be fetched."
        ),
    ] = None,
    catalog: CatalogOption = None,
    builder: BuilderOption = None,
    offline: OfflineOption = False,
    as_json: JsonOption = False,
) -> None:
    """Write a bake file of recipes, for `docker buildx bake`: one command builds them all.

    The directory contains everything but Debian's packages: patched sources, wheels, rendered
    Dockerfiles. Each base is a target that its recipes share. Run `docker buildx bake` in DIR with
    any builder, with --load for the engine or --push for a registry. The target on-BASE builds the
    recipes of one base, the target bases only the bases. The command ends after buildx has
    accepted the file.

    The images are tagged unverified-KEY, because they have no verdict yet. When the engine has
    such an image, `builder build RECIPE` smoke-tests and tags it without compiling.
    """
    from builder.bake import bake as baking
    from builder.cli import console

    session = build_session(catalog, build_options(builder=builder, offline=offline))
    done = baking.bake(session, recipes or [], output.absolute(), build_architecture())
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
