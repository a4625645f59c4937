"""Two files with different content: where they differ, and how ELF files and device code do."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO

from builder.compare.device_code import compare_code
from builder.compare.elf import compare_elf
from builder.compare.entries import MALFORMED
from builder.compare.results import FileDifference
from builder.tools.elf import is_elf

BLOCK = 1 << 20
LARGEST_TEXT = 1 << 20  # bytes of a file whose lines are compared
LONGEST_LINE = 200  # characters that are kept of one


def compare_contents(of: FileDifference, before: Path | None, after: Path | None) -> FileDifference:
    """The difference of a path with what its content shows; a file that does not exist is None."""
    with ExitStack() as stack:
        old = stack.enter_context(before.open("rb")) if before else None
        new = stack.enter_context(after.open("rb")) if after else None
        if old and new:
            of = replace(of, first_byte=_first_byte(old, new))
        elves = [is_elf(_head(each)) for each in (old, new) if each]
        try:
            if old and new and all(elves):
                of = replace(of, elf=compare_elf(old, new))
            of = replace(of, code=compare_code(old, new))
        except MALFORMED as error:
            return replace(of, unread=str(error))
    if any(elves):
        return of
    if before and after and max(each.stat().st_size for each in (before, after)) <= LARGEST_TEXT:
        return replace(of, lines=_lines(before.read_bytes(), after.read_bytes()))
    return of


def _head(stream: BinaryIO) -> bytes:
    stream.seek(0)
    return stream.read(4)


def _first_byte(before: BinaryIO, after: BinaryIO) -> int:
    """The offset of the first byte that differs; the size of the shorter file if it is a start."""
    at = 0
    while (old := before.read(BLOCK)) == (new := after.read(BLOCK)) and old:
        at += len(old)
    differing = (n for n, (one, other) in enumerate(zip(old, new, strict=False)) if one != other)
    return at + next(differing, min(len(old), len(new)))


def _lines(before: bytes, after: bytes) -> tuple[str, str] | None:
    """The first line that differs; None where one is no UTF-8 text."""
    try:
        texts = before.decode(), after.decode()
    except UnicodeDecodeError:
        return None
    if any("\0" in text for text in texts):
        return None
    old, new = ([*text.splitlines(), ""] for text in texts)
    one, other = next(((a, b) for a, b in zip(old, new, strict=False) if a != b), ("", ""))
    return one[:LONGEST_LINE], other[:LONGEST_LINE]
