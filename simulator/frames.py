"""The frames of a report with the names of their functions."""

from __future__ import annotations

import posixpath
import re
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from simulator import library
from simulator.demangle import function_of
from simulator.elf import MalformedElf
from simulator.report import Report

Files = Callable[[str], Path | None]
"""The copy of a file of the image, by its path in it; None where there is none."""
OFFSET = re.compile("0x[0-9a-f]{1,16}")


@dataclass(frozen=True, slots=True)
class Frame:
    """One call of a stack; ``function`` is empty where no symbol table names it."""

    file: str
    offset: int
    function: str

    def __str__(self) -> str:
        return self.function or f"{posixpath.basename(self.file)}+{self.offset:#x}"


def named(report: Report, files: Files = lambda _: None) -> list[list[Frame]]:
    """The stacks of a report, innermost frame first.

    A frame that the dynamic symbols do not name is looked up in the symbol table of its file.
    """
    symbols = _Symbols(files)
    return [[symbols.frame(text) for text in stack] for stack in report.stacks]


def caller_of(stack: Sequence[Frame], skipped: Sequence[str] = ()) -> str:
    """The innermost frame with a name that does not begin with one of ``skipped``."""
    wanted = [
        frame for frame in stack if frame.function and not frame.function.startswith((*skipped,))
    ]
    return str(next(iter(wanted or stack), "unknown"))


class _Symbols:
    """The functions of each file, read when first needed."""

    def __init__(self, files: Files) -> None:
        self._files = files
        self._functions: dict[str, list[library.Function]] = {}

    def frame(self, text: str) -> Frame:
        place, _, symbol = text.partition(" ")
        file, _, offset = place.rpartition("+")
        at = int(offset, 16) if OFFSET.fullmatch(offset) else 0
        name = symbol.strip() or self._name(file, at)
        return Frame(file, at, function_of(name) if name else "")

    def _name(self, file: str, offset: int) -> str:
        if file not in self._functions:
            self._functions[file] = self._read(file)
        functions = self._functions[file]
        index = bisect_right(functions, (offset, 1 << 64, "")) - 1
        if index >= 0 and functions[index].start <= offset < functions[index].end:
            return functions[index].name
        return ""

    def _read(self, file: str) -> list[library.Function]:
        copy = self._files(file)
        if copy is None:
            return []
        try:
            with copy.open("rb") as stream:
                return library.read_functions(stream)
        except (OSError, MalformedElf):
            return []
