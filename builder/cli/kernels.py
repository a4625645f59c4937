"""``builder kernels``."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from builder.cli.options import (
    CatalogOption,
    JsonOption,
    OnePlatformOption,
    build_options,
    build_session,
)

if TYPE_CHECKING:
    from builder.kernels.ledger import Ledger
    from builder.kernels.selection import Capability

NAMED = 10  # kernels that an error names


class FailOn(StrEnum):
    """What must not be in the second image."""

    SPILLS = "spills"


def kernels(
    image: Annotated[
        str, typer.Argument(metavar="RECIPE|IMAGE", help="Name of a recipe, or any image.")
    ],
    other: Annotated[
        str | None,
        typer.Argument(
            metavar="RECIPE|IMAGE",
            help="Image to compare the first one with.",
            show_default=False,
        ),
    ] = None,
    catalog: CatalogOption = None,
    platform: OnePlatformOption = None,
    card: Annotated[
        str,
        typer.Option(
            "--capability",
            metavar="X.Y",
            help="Compute capability of the card: its driver decides which code is taken.",
        ),
    ] = "12.0",
    library: Annotated[
        list[str] | None,
        typer.Option(
            "--library",
            metavar="NAME",
            help="Only libraries whose path ends in NAME, with or without a version. May be "
            "repeated.",
        ),
    ] = None,
    report: Annotated[
        Path | None,
        typer.Option(
            "--report",
            metavar="FILE",
            dir_okay=False,
            help="Output of `builder smoke --json`, or a report of a simulated card: list only the "
            "kernels that were launched there, with the number of launches.",
        ),
    ] = None,
    fail_on: Annotated[
        FailOn | None,
        typer.Option(
            "--fail-on",
            metavar="spills",
            help="Exit with 7 if a kernel of the second image spills more than in the first one.",
        ),
    ] = None,
    everything: Annotated[
        bool,
        typer.Option(
            "--all",
            help="Also list on a terminal every kernel. Output to a pipe or a file, and --json, "
            "always have all.",
        ),
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """List every kernel of an image with its resources, or compare two images.

    The figures are in the machine code itself; no GPU is needed and nothing is run. *registers*
    and *local* memory are those of a thread; *spills* are the bytes of the instructions that move
    registers to local memory and back; *shared* is the static shared memory of a block; *size* is
    the machine code in bytes. Kernels that spill most come first.

    With two images, the kernels that were added, are gone, or changed are listed.

    A terminal gets the first kernels and, last, a summary of each library; `--all` lists every
    kernel there.

    The exit code is 8 if the card runs no kernel of an image.
    """
    from builder.cli.kernel_tables import arrow, print_comparison, print_ledger
    from builder.errors import SmokeError
    from builder.images.kernels import ledger_of
    from builder.kernels.launches import launches

    chosen = _capability(card)
    if other is None and fail_on is not None:
        raise typer.BadParameter("--fail-on compares two images: give the second one")
    if other is not None and report is not None:
        raise typer.BadParameter("--report is for one image")
    launched = launches(report) if report else None
    session = build_session(catalog, build_options(platform=platform))
    first = _runnable(_only(ledger_of(session, image, chosen), library))
    if other is None:
        print_ledger(first, launched, as_json=as_json, everything=everything)
        return
    second = _runnable(_only(ledger_of(session, other, chosen), library))
    worse = print_comparison(first, second, as_json=as_json, everything=everything)
    if fail_on is FailOn.SPILLS and worse:
        raise SmokeError(
            f"{len(worse)} kernels of {other} spill more than in {image}",
            "\n".join(
                f"{each.library}: {each.name}: {arrow(each, 'spills')}" for each in worse[:NAMED]
            ),
        )


def _capability(text: str) -> Capability:
    from builder.kernels.selection import Capability

    try:
        return Capability.parse(text)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--capability") from error


def _only(ledger: Ledger, names: Sequence[str] | None) -> Ledger:
    from dataclasses import replace

    from builder.errors import UntriedError
    from builder.kernels.compare import library_name

    if not names:
        return ledger
    found = tuple(
        each
        for each in ledger.libraries
        if any(each.path.endswith(name) or library_name(each.path) == name for name in names)
    )
    if not found:
        raise UntriedError(
            f"{ledger.image} has no library {' or '.join(names)} with GPU code",
            "it has " + ", ".join(each.path for each in ledger.libraries),
            "name one of these, by its file name or its path, with --library",
        )
    return replace(ledger, libraries=found)


def _runnable(ledger: Ledger) -> Ledger:
    """The same ledger; raises ``UntriedError`` where the card can run none of its code."""
    from builder.errors import UntriedError

    if any(library.kernels for library in ledger.libraries):
        return ledger
    code = sorted({code for library in ledger.libraries for code in library.offered})
    raise UntriedError(
        f"no kernel of {ledger.image} runs on a card of compute capability {ledger.card}",
        f"its code is for {', '.join(code)}" if code else "",
        "name the compute capability of another card with --capability",
    )
