"""What a card does with the device code of a library: it runs it, has it compiled, or cannot."""

from __future__ import annotations

import posixpath
from collections.abc import Sequence
from dataclasses import dataclass

from builder.core import sizes
from simulator.fatbin import Modules
from simulator.selection import Capability, preferred


@dataclass(frozen=True, slots=True)
class CodePaths:
    """The device code of a library; sizes are bytes in the file."""

    path: str
    """Where the library is in the image."""
    native: int = 0
    """Machine code that the card runs."""
    compiled: int = 0
    """PTX of modules without such machine code: the driver compiles it at the first use."""
    dead: int = 0
    """Code that the card never runs: for other cards, or PTX beside machine code."""
    card: str = ""
    """Its compute capability, ``12.0``; empty: the recipe's first one."""
    removed: int = 0
    """Code that the build removed from a wheel."""

    @property
    def pathless(self) -> bool:
        """Whether the card runs none of it."""
        return not self.native and not self.compiled

    @property
    def whole(self) -> int:
        """All of it."""
        return self.native + self.compiled + self.dead


@dataclass(frozen=True, slots=True)
class CodeSums:
    """The device code of all libraries of an image for a card; sizes are as in ``CodePaths``."""

    card: str
    native: int
    compiled: int
    dead: int
    removed: int
    late: tuple[str, ...] = ()
    """The files of which the driver compiles something, without their directories."""
    pathless: tuple[str, ...] = ()
    """The files of which the card runs nothing, without their directories."""

    @property
    def text(self) -> str:
        """The sums in one line."""
        text = f"{sizes.shown(self.native)} runs as it is"
        if self.late:
            size, names = sizes.shown(self.compiled), ", ".join(self.late)
            text += f", the driver compiles {size} at the first use ({names})"
        text += f", {sizes.shown(self.dead)} never runs"
        text += f" (all of {', '.join(self.pathless)})" if self.pathless else ""
        return f"{text}, {self.shown_removed} was removed" if self.shown_removed else text

    @property
    def shown_removed(self) -> str:
        """The size of the removed code; empty where there is so little that it aligns the rest."""
        return sizes.shown(self.removed) if self.removed >= LEAST else ""


LEAST = 50_000  # bytes of removed code that are shown as 0.1 MB: fewer align fat binaries
HEADER = ("device code", "runs as it is", "compiled by the driver", "never runs")


def rows(found: Sequence[CodePaths]) -> list[tuple[str, ...]]:
    """The rows of a table of libraries, below ``HEADER``; a path names its card if there are more.

    A size of nothing is empty.
    """
    several = len({each.card for each in found}) > 1
    return [
        (f"{each.path} ({each.card})" if several else each.path, *shown_parts(each))
        for each in found
    ]


def shown_parts(found: CodePaths | CodeSums) -> tuple[str, ...]:
    """The sizes below the last columns of ``HEADER``; a size of nothing is empty."""
    parts = (found.native, found.compiled, found.dead)
    return tuple(sizes.shown(part) if part else "" for part in parts)


def text_of(found: Sequence[CodePaths]) -> str:
    """The sums of an image's libraries by card, in one line; empty: none has device code."""
    return text_of_sums(sums(found))


def text_of_sums(found: Sequence[CodeSums]) -> str:
    """The sums by card, in one line."""
    if len(found) < 2:
        return "".join(each.text for each in found)
    return "; ".join(f"{each.card}: {each.text}" for each in found)


def sums(found: Sequence[CodePaths]) -> tuple[CodeSums, ...]:
    """The sums of an image's libraries, by card."""
    by_card: dict[str, list[CodePaths]] = {}
    for each in found:
        by_card.setdefault(each.card, []).append(each)
    return tuple(
        CodeSums(
            card,
            native=sum(each.native for each in libraries),
            compiled=sum(each.compiled for each in libraries),
            dead=sum(each.dead for each in libraries),
            removed=sum(each.removed for each in libraries),
            late=tuple(posixpath.basename(each.path) for each in libraries if each.compiled),
            pathless=tuple(posixpath.basename(each.path) for each in libraries if each.pathless),
        )
        for card, libraries in by_card.items()
    )


def paths(path: str, modules: Sequence[Modules], card: Capability, removed: int = 0) -> CodePaths:
    """The device code of a library's modules on a card; ``removed`` as in ``CodePaths``."""
    native = compiled = whole = 0
    for each in modules:
        stored = dict(zip(each.codes, each.sizes, strict=True))
        whole += sum(each.sizes)
        taken = preferred(each.codes, card)
        if taken is not None and taken.kind == "elf":
            native += stored[taken]
        elif taken is not None:
            compiled += stored[taken]
    return CodePaths(path, native, compiled, whole - native - compiled, str(card), removed)
