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

    @property
    def whole(self) -> int:
        """All of it."""
        return self.native + self.compiled + self.dead


def text_of(found: Sequence[CodePaths]) -> str:
    """The sums of an image's libraries, in one line; empty: none has device code."""
    if not found:
        return ""
    text = f"{sizes.shown(sum(each.native for each in found))} runs as it is"
    if late := [each for each in found if each.compiled]:
        size = sizes.shown(sum(each.compiled for each in late))
        names = ", ".join(posixpath.basename(each.path) for each in late)
        text += f", the driver compiles {size} at the first use ({names})"
    return f"{text}, {sizes.shown(sum(each.dead for each in found))} never runs"


def paths(path: str, modules: Sequence[Modules], card: Capability) -> CodePaths:
    """The device code of a library's modules on a card."""
    native = compiled = whole = 0
    for each in modules:
        stored = dict(zip(each.codes, each.sizes, strict=True))
        whole += sum(each.sizes)
        taken = preferred(each.codes, card)
        if taken is not None and taken.kind == "elf":
            native += stored[taken]
        elif taken is not None:
            compiled += stored[taken]
    return CodePaths(path, native, compiled, whole - native - compiled)
