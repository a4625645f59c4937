"""What a card does with the device code of a library: it runs it, has it compiled, or cannot."""

from __future__ import annotations

import posixpath
from collections.abc import Sequence
from dataclasses import dataclass

from builder.kernels.selection import Capability, preferred
from builder.tools import sizes
from builder.tools.fatbin import Modules


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


LEAST = 50_000  # bytes of removed code that are shown as 0.1 MB: fewer align fat binaries
HEADER = ("device code", "runs as it is", "compiled by the driver", "never runs")


def rows(found: Sequence[CodePaths]) -> list[tuple[str, ...]]:
    """The rows of a table of libraries, below ``HEADER``; a path names its card if there are more.

    A size of nothing is empty.
    """
    several = len({each.card for each in found}) > 1
    return [
        (
            f"{each.path} ({each.card})" if several else each.path,
            *(
                sizes.shown(part) if part else ""
                for part in (each.native, each.compiled, each.dead)
            ),
        )
        for each in found
    ]


def text_of(found: Sequence[CodePaths]) -> str:
    """The sums of an image's libraries by card, in one line; empty: none has device code."""
    cards = dict.fromkeys(each.card for each in found)
    texts = {card: _sums([each for each in found if each.card == card]) for card in cards}
    if len(texts) < 2:
        return "".join(texts.values())
    return "; ".join(f"{card}: {text}" for card, text in texts.items())


def _sums(found: Sequence[CodePaths]) -> str:
    text = f"{sizes.shown(sum(each.native for each in found))} runs as it is"
    if late := [each for each in found if each.compiled]:
        size = sizes.shown(sum(each.compiled for each in late))
        names = ", ".join(posixpath.basename(each.path) for each in late)
        text += f", the driver compiles {size} at the first use ({names})"
    text += f", {sizes.shown(sum(each.dead for each in found))} never runs"
    without = ", ".join(posixpath.basename(each.path) for each in found if each.pathless)
    text += f" (all of {without})" if without else ""
    removed = sum(each.removed for each in found)
    return f"{text}, {sizes.shown(removed)} was removed" if removed >= LEAST else text


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
