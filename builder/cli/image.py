"""``builder kernels``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Annotated

import typer

from builder.cli import completion
from builder.cli.options import CatalogOption, JsonOption, OnePlatformOption, checked_capability
from builder.cli.tables import first_rows, table
from builder.cli.terminal import line, out, print_json

if TYPE_CHECKING:
    from simulator.cubin import Kernel
    from simulator.ledger import Ledger

DIGITS = 12  # of a digest
FIGURES = ("registers", "spills", "local", "shared", "threads", "cluster", "size")


def kernels(
    image: Annotated[
        str,
        typer.Argument(
            metavar="RECIPE|IMAGE",
            autocompletion=completion.recipes,
            help="Name of a recipe, or any image.",
        ),
    ],
    catalog: CatalogOption = None,
    platform: OnePlatformOption = None,
    card: Annotated[
        str,
        typer.Option(
            "--capability",
            metavar="MAJOR.MINOR",
            callback=checked_capability,
            help="Compute capability of the card, for which the driver chooses the code.",
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
    as_json: JsonOption = False,
) -> None:
    """List every kernel of an image with its resources.

    The figures come from the machine code; no GPU is needed and nothing is run. *registers*
    and *local* memory are counted for each thread; *spills* are the bytes of the instructions that
    move registers to local memory and back; *shared* is the static shared memory of a block; *size*
    is the machine code in bytes. Kernels that spill most come first. `builder compare` compares the
    kernels of two images.

    A terminal gets the first kernels and, last, a summary of each library; a pipe gets every
    kernel.

    *idle* kernels compute nothing: their body is empty, or only traps or prints a message. The exit
    code is 8 if no kernel of the image computes on the card.
    """
    from builder.build.lookup import ledger_of
    from builder.cli.session import build_session
    from simulator.selection import Capability

    session = build_session(catalog, platform=platform)
    ledger = ledger_of(session, image, Capability.parse(card))
    print_ledger(_runnable(_only(ledger, library)), as_json=as_json)


def _only(ledger: Ledger, names: Sequence[str] | None) -> Ledger:
    from builder.core.errors import UntriedError

    if not names:
        return ledger
    found = tuple(
        each
        for each in ledger.libraries
        if any(each.path.endswith(name) or each.name == name for name in names)
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
    from builder.core.errors import UntriedError

    found = [kernel for library in ledger.libraries for kernel in library.kernels]
    if not all(kernel.idle for kernel in found):
        return ledger
    if found:
        raise UntriedError(
            f"no kernel of {ledger.image} computes on a card of compute capability {ledger.card}",
            f"its {len(found)} kernels for it are empty, trap, or print a message",
            "name the compute capability of another card with --capability",
        )
    code = sorted({code for library in ledger.libraries for code in library.offered})
    raise UntriedError(
        f"no kernel of {ledger.image} runs on a card of compute capability {ledger.card}",
        f"its code is for {', '.join(code)}" if code else "",
        "name the compute capability of another card with --capability",
    )


def print_ledger(ledger: Ledger, *, as_json: bool) -> None:
    """Print the libraries and kernels of an image; a terminal gets the libraries last."""
    from simulator.demangle import demangled, short

    rows = [(library, kernel) for library in ledger.libraries for kernel in library.kernels]
    rows.sort(key=lambda row: (-(row[1].spills or 0), -row[1].local, -row[1].registers))
    if as_json:
        found = [
            {"library": library.path, "mangled": kernel.name}
            | asdict(kernel)
            | {"name": demangled(kernel.name), "spills": kernel.spills}
            for library, kernel in rows
        ]
        libraries = [
            {"path": each.path, "code": each.codes} | ({"ptx": each.ptx} if each.ptx else {})
            for each in ledger.libraries
        ]
        names = {"image": ledger.image, "digest": ledger.digest, "capability": str(ledger.card)}
        print_json({**names, "libraries": libraries, "kernels": found})
        return
    lines = [
        (
            library.name,
            short(demangled(each.name)),
            *_figures(each),
            each.idle,
            each.digest[:DIGITS],
        )
        for library, each in rows
    ]
    header = ("library", "kernel", *FIGURES, "idle", "digest")
    if out().is_terminal:
        first_rows(header, lines, "more kernel")
        line("")
        _print_libraries(ledger)
    else:
        _print_libraries(ledger)
        line("")
        table(header, lines)


def _print_libraries(ledger: Ledger) -> None:
    rows = []
    for library in ledger.libraries:
        spills = [kernel.spills for kernel in library.kernels if kernel.spills]
        size = sum(kernel.size for kernel in library.kernels)
        codes = ", ".join(f"{count} {code}" for code, count in sorted(library.codes.items()))
        codes += "".join(f", PTX {version}" for version in library.ptx)
        for idle in ("traps", "empty"):
            count = sum(kernel.idle == idle for kernel in library.kernels)
            codes += (
                f", {count} {'only trap or print' if idle == 'traps' else 'empty'}" if count else ""
            )
        figures = (len(library.kernels), len(spills), sum(spills), size)
        rows.append((library.path, codes, *(f"{figure:,}" for figure in figures)))
    header = ("library", "code", "kernels", "spilling", "spills", "size")
    table(header, rows, single_lines=True)


def _figures(kernel: Kernel) -> list[str]:
    """The figures of a kernel for people; a kernel of PTX has none yet."""
    unlimited = {name: getattr(kernel, name) or "" for name in ("threads", "cluster")}
    if not kernel.digest:
        return [str(unlimited["threads"]) if name == "threads" else "" for name in FIGURES]
    spills = "unknown" if kernel.spills is None else kernel.spills
    values = {name: getattr(kernel, name) for name in FIGURES} | unlimited | {"spills": spills}
    return [f"{value:,}" if isinstance(value, int) else value for value in values.values()]
