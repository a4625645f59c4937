"""The tables and the JSON of ``builder kernels``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from builder.cli.tables import counted, first_rows, table
from builder.cli.terminal import line, out, print_json

if TYPE_CHECKING:
    from builder.kernels.compare import Change, Comparison, State, Totals
    from builder.kernels.launches import Launches
    from builder.kernels.ledger import Ledger, Library
    from builder.tools.cubin import Kernel

DIGITS = 12  # of a digest
FIGURES = ("registers", "spills", "local", "shared", "threads", "cluster", "size")
STATES: tuple[State, ...] = ("added", "gone", "changed")


def print_ledger(
    ledger: Ledger, launched: Launches | None, *, as_json: bool, everything: bool
) -> None:
    """Print the libraries and kernels of an image; with launches, only the launched kernels.

    A terminal gets the summary last, and the first kernels unless it is to have ``everything``.
    """
    from builder.kernels.compare import library_name

    rows = [
        (library, kernel, launched.of(library_name(library.path), kernel.name) if launched else 0)
        for library in ledger.libraries
        for kernel in library.kernels
    ]
    if launched is not None:
        rows = [row for row in rows if row[2]]
    rows.sort(key=lambda row: (-(row[1].spills or 0), -row[1].local, -row[1].registers))
    if as_json:
        print_json(_ledger_json(ledger, rows, launched=launched is not None))
        return
    header: tuple[str, ...] = ("library", "kernel", *FIGURES, "digest")
    lines: list[tuple[str, ...]] = [
        (library_name(each.path), *_row(kernel)) for each, kernel, _ in rows
    ]
    if launched is not None:
        header = ("launches", *header)
        lines = [(f"{row[2]:,}", *cells) for row, cells in zip(rows, lines, strict=True)]
    _print_both(
        lambda: _print_libraries(ledger),
        lambda: _print_kernels(header, lines, everything=everything),
    )
    if launched is not None:
        _print_launches(launched, rows)


def _print_both(summary: Callable[[], None], kernels: Callable[[], None]) -> None:
    """Print the summary above the kernels; on a terminal below them, where it stays in sight."""
    first, last = (kernels, summary) if out().is_terminal else (summary, kernels)
    first()
    line("")
    last()


def _print_kernels(
    header: Sequence[str], rows: Sequence[Sequence[str]], *, everything: bool
) -> None:
    """Print a line for each kernel; only the first on a terminal, unless ``everything``."""
    first_rows(header, rows, "more kernel", "every kernel", everything=everything)


def _print_libraries(ledger: Ledger) -> None:
    from builder.kernels.compare import totals

    rows = []
    for library in ledger.libraries:
        sums = totals(library.kernels)
        codes = ", ".join(f"{count} {code}" for code, count in sorted(library.codes.items()))
        rows.append((library.path, codes, *_totals(sums)))
    header = ("library", "code", "kernels", "spilling", "spills", "size")
    table(header, rows, single_lines=True)


def _print_launches(launched: Launches, rows: Sequence[tuple[Library, Kernel, int]]) -> None:
    from builder.kernels.compare import library_name

    counts = launched.counts
    line(f"\n{len(counts)} kernels were launched {sum(counts.values()):,} times")
    known = {(library_name(library.path), kernel.name) for library, kernel, _ in rows}
    for library, kernel in launched.besides(known):
        line(f"not in the image's libraries: {' of '.join(filter(None, (kernel, library)))}")


def _row(kernel: Kernel) -> tuple[str, ...]:
    from builder.tools.demangle import demangled, short

    name = short(demangled(kernel.name))
    return (name, *_figures(kernel).values(), kernel.digest[:DIGITS])


def _figures(kernel: Kernel) -> dict[str, str]:
    """The figures of a kernel for people; a kernel of PTX has none yet."""
    if not kernel.digest:
        return dict.fromkeys(FIGURES, "") | {"threads": str(kernel.threads or "")}
    unlimited = {"threads": kernel.threads or "", "cluster": kernel.cluster or ""}
    spills = "unknown" if kernel.spills is None else kernel.spills
    values = {name: getattr(kernel, name) for name in FIGURES} | unlimited | {"spills": spills}
    return {
        name: f"{value:,}" if isinstance(value, int) else value for name, value in values.items()
    }


def _totals(sums: Totals) -> tuple[str, ...]:
    return f"{sums.kernels:,}", f"{sums.spilling:,}", f"{sums.spills:,}", f"{sums.size:,}"


def _kernel_json(kernel: Kernel) -> dict[str, Any]:
    from builder.tools.demangle import demangled

    return (
        {"mangled": kernel.name}
        | asdict(kernel)
        | {
            "name": demangled(kernel.name),
            "spills": kernel.spills,
        }
    )


def _ledger_json(
    ledger: Ledger, rows: Sequence[tuple[Library, Kernel, int]], *, launched: bool
) -> dict[str, Any]:
    return {
        "image": ledger.image,
        "digest": ledger.digest,
        "capability": str(ledger.card),
        "libraries": [{"path": each.path, "code": each.codes} for each in ledger.libraries],
        "kernels": [
            {"library": library.path}
            | _kernel_json(kernel)
            | ({"launches": count} if launched else {})
            for library, kernel, count in rows
        ],
    }


def print_comparison(
    first: Ledger, second: Ledger, *, as_json: bool, everything: bool
) -> list[Change]:
    """Print what differs, on a terminal like ``print_ledger``; give the kernels that spill more."""
    from builder.kernels.compare import compare

    found = compare(first.libraries, second.libraries)
    changes = [change for each in found for change in each.changes]
    if as_json:
        print_json(_comparison_json(first, second, found))
    elif not changes:
        _print_comparisons(found, changes)
    else:
        _print_both(
            lambda: _print_comparisons(found, changes),
            lambda: _print_changes(changes, everything=everything),
        )
    return [change for change in changes if change.spills > 0]


def _print_comparisons(found: Sequence[Comparison], changes: Sequence[Change]) -> None:
    header = ("library", "added", "gone", "changed", "kernels", "spilling", "spills", "size")
    rows = []
    for each in found:
        pairs = zip(_totals(each.before), _totals(each.after), strict=True)
        counts = [str(each.count(state)) for state in STATES]
        rows.append((each.library, *counts, *(_between(*pair) for pair in pairs)))
    table(header, rows, single_lines=True)
    line("\n" + (_ups_and_downs(changes) if changes else "no kernel differs"))


def _print_changes(changes: Sequence[Change], *, everything: bool) -> None:
    cells = [
        (each.state, each.library, each.name, *(arrow(each, name) for name in FIGURES))
        for each in changes
    ]
    _print_kernels(("", "library", "kernel", *FIGURES), cells, everything=everything)


def _ups_and_downs(changes: Sequence[Change]) -> str:
    up = [each.state for each in changes if each.spills > 0]
    down = [each.state for each in changes if each.spills < 0]
    more, fewer = (sum(1 for each in changes if sign * each.registers > 0) for sign in (1, -1))
    return (
        f"spills: up in {counted(len(up), 'kernel')} ({up.count('added')} of them added), "
        f"down in {len(down)} ({down.count('gone')} of them gone); "
        f"registers of kernels in both images: up in {more}, down in {fewer}"
    )


def arrow(change: Change, name: str) -> str:
    """A figure of a kernel before and after: ``0 -> 64``; once if it did not change."""
    before = _figures(change.before)[name] if change.before else ""
    after = _figures(change.after)[name] if change.after else ""
    if change.before is None or change.after is None:
        return before or after
    return _between(before, after)


def _between(before: str, after: str) -> str:
    return after if before == after else f"{before or 0} -> {after or 0}"


def _comparison_json(first: Ledger, second: Ledger, found: Sequence[Comparison]) -> dict[str, Any]:
    return {
        "images": [{"image": each.image, "digest": each.digest} for each in (first, second)],
        "capability": str(first.card),
        "libraries": [
            {"library": each.library, "before": asdict(each.before), "after": asdict(each.after)}
            for each in found
        ],
        "changes": [
            {
                "library": change.library,
                "name": change.name,
                "state": change.state,
                "before": _kernel_json(change.before) if change.before else None,
                "after": _kernel_json(change.after) if change.after else None,
            }
            for each in found
            for change in each.changes
        ],
    }
