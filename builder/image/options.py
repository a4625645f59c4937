"""The parts of an image's files that are kept while it is read."""

from __future__ import annotations

import fnmatch
import posixpath
from dataclasses import dataclass

from builder.image.contents import File
from simulator.selection import Capability

LARGEST_TEXT = 16 << 20  # bytes of a file whose text is kept
TORCH_VERSION = "/torch/version.py"
TRITON_COMPILER = "/triton/backends/nvidia/compiler.py"
FLASHINFER_CONTEXT = "/flashinfer/compilation_context.py"
TOOLKIT_VERSION = "/version.json"
ALWAYS = (
    *("/etc/ld.so.conf", "/etc/ld.so.conf.d/*"),
    *(f"*{TORCH_VERSION}", f"*{TRITON_COMPILER}"),
    *(f"*{FLASHINFER_CONTEXT}", "*/flashinfer*/_build_meta.py"),
    *("*/bin/nvcc", "*/bin/ptxas*", f"*{TOOLKIT_VERSION}"),
)
"""Files whose text is kept of every image."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions:
    """Which texts, symbols and kernels are kept while reading."""

    texts: frozenset[str] = frozenset()
    """Paths of files whose text is kept; ``*`` is a wildcard."""
    symbols: frozenset[str] = frozenset()
    """Prefixes of libraries whose symbols are kept."""
    card: Capability | None = None
    """The device code that this card takes is unpacked; None: none is."""
    code_above: int = 0
    """The code of so many lowest layers is not unpacked."""
    code_outside: str = ""
    """The code of files below this directory is not unpacked."""

    def text(self, path: str) -> bool:
        """Whether the text of a file is kept."""
        return any(fnmatch.fnmatchcase(path, glob) for glob in (*ALWAYS, *self.texts))

    def symbol(self, path: str) -> bool:
        """Whether the symbols of a library are kept."""
        return any(posixpath.basename(path).startswith(name) for name in self.symbols)

    def lacks(self, file: File) -> bool:
        """Whether a text or symbols of a file are wanted that were not kept."""
        if file.kind != "file" or not file.digest or file.malformed:
            return False
        if file.elf is not None:
            return file.symbols is None and self.symbol(file.path)
        return file.text is None and file.size <= LARGEST_TEXT and self.text(file.path)
