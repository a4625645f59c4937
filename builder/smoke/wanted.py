"""What is kept of the files of an image while it is read."""

from __future__ import annotations

import fnmatch
import posixpath
from dataclasses import dataclass

from builder.kernels.selection import Capability
from builder.smoke.contents import File

LARGEST_TEXT = 16 << 20  # bytes of a file whose text is kept
LOADER = ("/etc/ld.so.conf", "/etc/ld.so.conf.d/*")


@dataclass(frozen=True, slots=True)
class WantedCode:
    """Which device code is unpacked while reading."""

    card: Capability
    """What this card takes."""
    above: int = 0
    """Not that of so many lowest layers."""
    outside: str = ""
    """Not that of files below this directory."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which texts, symbols and kernels are kept while reading."""

    texts: frozenset[str] = frozenset()
    """Paths of files whose text is kept; ``*`` is a wildcard."""
    symbols: frozenset[str] = frozenset()
    """Prefixes of libraries whose symbols are kept."""
    code: WantedCode | None = None
    """None: no kernels are kept."""

    def text(self, path: str) -> bool:
        """Whether the text of a file is kept."""
        return any(fnmatch.fnmatchcase(path, glob) for glob in (*LOADER, *self.texts))

    def symbol(self, path: str) -> bool:
        """Whether the symbols of a library are kept."""
        return any(posixpath.basename(path).startswith(name) for name in self.symbols)

    def lacks(self, file: File) -> bool:
        """Whether a text or symbols of a file are wanted that were not kept."""
        if file.kind != "file" or file.shares or file.malformed:
            return False
        if file.elf is not None:
            return file.symbols is None and self.symbol(file.path)
        return file.text is None and file.size <= LARGEST_TEXT and self.text(file.path)
