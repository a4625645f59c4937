"""The tables of ``builder compare``, and its JSON."""

from __future__ import annotations

import posixpath
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from builder.cli.tables import first_rows
from builder.cli.terminal import line, print_json
from builder.core import sizes
from builder.image.code_paths import HEADER

if TYPE_CHECKING:
    from builder.image.entries import Node
    from builder.image.results import (
        Comparison,
        Difference,
        FileDifference,
        FunctionDifference,
        LayerDifference,
        LayerSide,
    )

DIGITS = 12  # of a digest
NAMED = 3  # paths that a row names
Row = tuple[str, ...]


def print_comparison(found: Comparison, *, times: bool, as_json: bool) -> None:
    """Print the verdict, then the differences; a terminal gets the first rows of each table."""
    from builder.image.compare_summary import summary

    if as_json:
        print_json(comparison_json(found, times=times))
        return
    for text in summary(found, times=times):
        line(text)
    found = replace(found, files=tuple(_named(each, found.after) for each in found.files))
    values = [*found.config, *(found.times if times else ())]
    tables: list[tuple[str, Row, list[Row]]] = [
        ("Files", ("", "path", "difference"), _files(found.differing(times=times), times=times)),
        ("ELF files", ("file", "part", "A", "B"), list(_elf(found.files))),
        ("Device code", CODE, list(_codes(found.files))),
        ("Device code on the card", ON_CARD, list(_on_card(found.files))),
        ("Kernels and device functions", KERNELS, list(_functions(found.files))),
        ("Other parts of modules", OTHERS, list(_others(found.files))),
        ("Configuration", ("value", "A", "B"), list(map(_value, values))),
        ("Layers", ("A", "B", "difference", "size", "made by"), list(map(_layer, found.layers))),
    ]
    for title, header, rows in tables:
        if rows:
            line(f"\n{title}")
            first_rows(header, rows)


def _named(each: FileDifference, name: str) -> FileDifference:
    return replace(each, path=name) if each.path == "/" else each


def _files(found: Sequence[FileDifference], *, times: bool) -> list[Row]:
    return [(each.state, _name(each), "; ".join(_aspects(each, times=times))) for each in found]


def _name(each: FileDifference) -> str:
    return f"{each.former} -> {each.path}" if each.former else each.path


def _aspects(of: FileDifference, *, times: bool) -> Iterator[str]:
    old, new = of.before, of.after
    if old is None or new is None:
        node = old or new
        if node is not None:
            yield f"{node.kind}, {node.size:,} bytes" if node.kind == "file" else node.kind
    else:
        for aspect in of.aspects:
            if aspect == "content":
                yield _content(of, old, new)
            elif aspect != "name" and (aspect != "time" or times):
                yield f"{aspect} {_shown(old, aspect)} -> {_shown(new, aspect)}"
    if of.unread:
        yield f"device code and sections not compared: {of.unread}"


def _content(of: FileDifference, old: Node, new: Node) -> str:
    text = f"content {_between(old.size, new.size)} bytes"
    return text + (f": {of.lines[0]!r} -> {of.lines[1]!r}" if of.lines else "")


def _shown(node: Node, aspect: str) -> str:
    match aspect:
        case "mode":
            return f"{node.mode:o}"
        case "owner":
            return f"{node.user}:{node.group}"
        case "attributes":
            return ", ".join(f"{name}={value}" for name, value in node.attributes) or "none"
        case "hard link":
            return node.same_file or "none"
        case "time":
            return f"{datetime.fromtimestamp(node.time, UTC):%Y-%m-%dT%H:%M:%SZ}"
        case _:
            return str(getattr(node, aspect))


def _between(before: int, after: int) -> str:
    return f"{after:,}" if before == after else f"{before:,} -> {after:,}"


def _elf(files: Sequence[FileDifference]) -> Iterator[Row]:
    for each in files:
        if each.elf is None:
            continue
        for value in each.elf.values:
            yield (each.path, *_value(value))
        for symbol in each.elf.symbols_removed:
            yield each.path, "symbol", symbol, ""
        for symbol in each.elf.symbols_added:
            yield each.path, "symbol", "", symbol
        for section in each.elf.sections:
            sizes = (section.before, section.after)
            yield each.path, section.name, *("" if n is None else f"{n:,} bytes" for n in sizes)


def _value(value: Difference[tuple[str, ...]]) -> Row:
    return value.name, " ".join(value.before), " ".join(value.after)


CODE = ("file", "code", "entries", "equal", "changed", "added", "removed")


def _codes(files: Sequence[FileDifference]) -> Iterator[Row]:
    for each in files:
        if each.code is None:
            continue
        for total in each.code.totals:
            states = Counter(of.state for of in each.code.functions if of.code == total.code)
            counts = (f"{states[state]:,}" for state in ("changed", "added", "removed"))
            entries = _between(total.before, total.after)
            yield each.path, total.code, entries, f"{total.equal:,}", *counts


ON_CARD = ("file", "card", *HEADER[1:])


def _on_card(files: Sequence[FileDifference]) -> Iterator[Row]:
    """The files of whose code the card runs, compiles or leaves out another part than before."""
    for each in files:
        if each.on_card is None:
            continue
        old, new = each.on_card
        pairs = ((old.native, new.native), (old.compiled, new.compiled), (old.dead, new.dead))
        texts = [[sizes.shown(size) if size else "0" for size in pair] for pair in pairs]
        if any(was != now for was, now in texts):
            shown = (" -> ".join(dict.fromkeys(pair)) for pair in texts)
            yield each.path, new.card or old.card, *shown


KERNELS = ("", "file", "code", "differs in", "size", "registers", "spills", "name")


def _functions(files: Sequence[FileDifference]) -> Iterator[Row]:
    for each in files:
        for of in each.code.functions if each.code else ():
            name = posixpath.basename(each.path)
            figures = [_figure(of, figure) for figure in ("size", "registers", "spills")]
            yield of.state, name, of.code, _parts(of), *figures, of.name


def _parts(of: FunctionDifference) -> str:
    """The sections that differ; a function's other sections follow from its SASS."""
    return "SASS" if "SASS" in of.parts else ", ".join(of.parts)


def _figure(of: FunctionDifference, name: str) -> str:
    values = [getattr(side, name) if side else None for side in (of.before, of.after)]
    texts = ["" if value is None else f"{value:,}" for value in values]
    return texts[1] if texts[0] == texts[1] else " -> ".join(filter(None, texts))


OTHERS = ("file", "code", "part", "modules", "bytes")


def _others(files: Sequence[FileDifference]) -> Iterator[Row]:
    for each in files:
        for of in each.code.others if each.code else ():
            size = _between(of.before, of.after)
            yield posixpath.basename(each.path), of.code, of.name, f"{of.modules:,}", size


def _layer(of: LayerDifference) -> Row:
    side = of.after or of.before
    size = sizes.shown(side.size) if side else ""
    row = _place(of.before), _place(of.after), _state(of), size
    return (*row, side.created_by if side else "")


def _state(of: LayerDifference) -> str:
    if not of.paths:
        return of.state
    more = f" and {len(of.paths) - NAMED:,} more" if len(of.paths) > NAMED else ""
    return f"{of.state}: {', '.join(of.paths[:NAMED])}{more}"


def _place(side: LayerSide | None) -> str:
    return f"{side.number} {side.digest.partition(':')[2][:DIGITS]}" if side else ""


def comparison_json(found: Comparison, *, times: bool) -> dict[str, Any]:
    """The comparison, with the verdict first; a mode is octal, as in ``chmod``."""
    from builder.image.compare_summary import summary

    plain = asdict(found)
    for difference, each in zip(plain["files"], found.files, strict=True):
        difference["state"] = each.state
        for side in filter(None, (difference["before"], difference["after"])):
            side["mode"] = f"{side['mode']:o}"
            del side["head"]
        if each.code:
            rows = zip(difference["code"]["functions"], each.code.functions, strict=True)
            for function, of in rows:
                function["state"] = of.state
    return {
        "same": found.same(times=times),
        "same_device_code": found.same_code,
        "summary": summary(found, times=times),
        **plain,
    }
