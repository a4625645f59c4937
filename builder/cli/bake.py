"""``builder bake``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from builder.cli.options import (
    BuilderOption,
    CatalogOption,
    JsonOption,
    OfflineOption,
    build_architecture,
    build_options,
    build_session,
)
from builder.cli.terminal import line, print_json


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
            metavar="RECIPE", help="Names of recipes. Default: all whose inputs can be downloaded."
        ),
    ] = None,
    catalog: CatalogOption = None,
    builder: BuilderOption = None,
    offline: OfflineOption = False,
    as_json: JsonOption = False,
) -> None:
    """Write a bake file, so that one `docker buildx bake` builds several recipes.

    The directory contains all inputs except Debian packages: patched sources, wheels, rendered
    Dockerfiles. Base images are targets that the recipes share. Run `docker buildx bake` in the
    directory with any builder, with --load for the local engine or --push for a registry. The
    target on-BASE builds the recipes of one base, the target bases builds only the base images. The
    command ends after buildx has accepted the file.

    The images are tagged unverified-KEY because they have no verdict yet. If the engine has such an
    image, `builder build RECIPE` smoke-tests and tags it without compiling.
    """
    from builder.bake import bake as baking

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
        line(f"{name:28}  {reference}")
    for name, error in done.left_out.items():
        line(f"{name:28}  left out: {error.what}")
    line(f"written     {done.file}")
    line(f"next        cd {output} && docker buildx bake --load")
