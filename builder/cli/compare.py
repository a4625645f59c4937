"""``builder compare``."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from builder.cli.options import CatalogOption, JsonOption
from builder.cli.tables import counted, first_rows
from builder.cli.terminal import line, print_json
from builder.core.platforms import Platform

if TYPE_CHECKING:
    from builder.build.session import BuildSession
    from builder.checks.cases import CaseResult

KINDS = "RECIPE|IMAGE|PATH"


def compare(
    before: Annotated[
        str,
        typer.Argument(
            metavar=f"A={KINDS}",
            help="Name of a recipe, an image of Docker or of a registry, a directory, or a file.",
        ),
    ],
    after: Annotated[str, typer.Argument(metavar=f"B={KINDS}", help="Compared with A.")],
    catalog: CatalogOption = None,
    platform: Annotated[
        Platform | None,
        typer.Option(
            "--platform",
            metavar="OS/ARCHITECTURE",
            help="Compare the images for this platform: linux/amd64 or "
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
    numbers: Annotated[
        bool,
        typer.Option(
            "--numbers",
            help="Compare instead the results of the kernels of two recipes' images.",
        ),
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Compare two images, directories or files, down to each kernel.

    Files are compared by content, mode, owner, links and extended attributes; ELF files by linked
    libraries, dynamic symbols and sections; CUDA device code by PTX and SASS of every kernel, byte
    for byte. Layers and configuration of images are compared, too. No program of an image is run.
    A terminal gets the first rows of each table; a pipe, a file and --json get all of them.

    With --numbers, A and B are recipes. The cases of the check `numbers`, and answers of the
    servers, are computed for both images on a simulated card. Cases with another outcome are
    listed, the first cases with the first launch that stores other bytes.

    An image that Docker does not have is pulled from its registry and removed afterwards. A path
    that is also the name of a recipe is written with `./`.

    The exit code is 17 if something differs.
    """
    from builder.build.compare import compare_named
    from builder.cli.compare_tables import print_comparison
    from builder.cli.session import build_session
    from builder.core.errors import DifferenceError
    from builder.image.compare_summary import summary

    if numbers:
        if platform is not None or times:
            raise typer.BadParameter("--numbers takes neither --platform nor --times")
        _compare_numbers(build_session(catalog), before, after, as_json=as_json)
        return
    found = compare_named(build_session(catalog), before, after, platform)
    print_comparison(found, times=times, as_json=as_json)
    if not found.same(times=times):
        raise DifferenceError(f"{before} and {after} differ", summary(found, times=times)[0])


def _compare_numbers(session: BuildSession, before: str, after: str, *, as_json: bool) -> None:
    from builder.build.compare_numbers import compare_numbers
    from builder.core.errors import DifferenceError

    found = compare_numbers(session, before, after)
    if as_json:
        print_json(asdict(found))
    else:
        line(f"{counted(found.same, 'case')} with the same outcome, {len(found.parted)} without")
        rows = [
            (each.name, _said(each.before), _said(each.after), each.launch) for each in found.parted
        ]
        if rows:
            first_rows(("case", "A", "B", "first launch that differs"), rows)
    if found.parted:
        raise DifferenceError(
            f"{before} and {after} compute different numbers", f"{len(found.parted)} cases differ"
        )


def _said(result: CaseResult | None) -> str:
    if result is None:
        return "no such case"
    return f"{result.outcome}: {result.why}" if result.why else result.outcome
