"""``builder compare``."""

from __future__ import annotations

from typing import Annotated

import typer

from builder.cli.options import CatalogOption, JsonOption, build_session
from builder.platforms import Platform

KINDS = "RECIPE|IMAGE|PATH"


def compare(
    before: Annotated[
        str,
        typer.Argument(
            metavar=f"A={KINDS}",
            help="Name of a recipe, an image of Docker or of a registry, a directory, or a file.",
        ),
    ],
    after: Annotated[str, typer.Argument(metavar=f"B={KINDS}", help="What A is compared with.")],
    catalog: CatalogOption = None,
    platform: Annotated[
        Platform | None,
        typer.Option(
            "--platform",
            metavar="OS/ARCHITECTURE",
            help="Of images for several platforms, compare those for this one: linux/amd64 or "
            "linux/arm64. Default: linux/amd64.",
            show_default=False,
        ),
    ] = None,
    times: Annotated[
        bool,
        typer.Option(
            "--times",
            help="Also count modification times of files and dates of images as differences.",
        ),
    ] = False,
    everything: Annotated[
        bool,
        typer.Option(
            "--all",
            help="Also list on a terminal every difference. Output to a pipe or a file, and "
            "--json, always have all.",
        ),
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Compare two images, directories or files, down to each kernel.

    Files are compared by content, mode, owner, links and extended attributes; ELF files by linked
    libraries, dynamic symbols and sections; CUDA device code by PTX and SASS of every kernel, byte
    for byte. Of images, layers and configuration are compared, too. No program of an image is run.

    An image that Docker does not have is pulled from its registry and removed afterwards. A path
    that is also the name of a recipe is written with `./`.

    The exit code is 17 where something differs.
    """
    from builder.cli.compare_tables import print_comparison
    from builder.compare.summary import summary
    from builder.errors import DifferenceError
    from builder.images.compare import compare_named

    found = compare_named(build_session(catalog), before, after, platform)
    print_comparison(found, times=times, as_json=as_json, everything=everything)
    if not found.same(times=times):
        raise DifferenceError(f"{before} and {after} differ", summary(found, times=times)[0])
