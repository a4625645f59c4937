"""The code table of the simulated card: a text file with the kernels that a card would find."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from builder.kernels.ledger import FatBinary
from builder.tools.cubin import Kernel


def code_table(libraries: Mapping[str, Iterable[FatBinary]]) -> str:
    """The text for the fat binaries of an image's files, by their paths.

    A line `fatbin PATH ADDRESS CODE`, then one for each of its kernels: its mangled name, and
    figures of a thread (registers, bytes of local memory), of a block (bytes of static shared
    memory, threads at most) and of a cluster (blocks); 0: no limit, or unknown.  Single spaces
    separate the words; a space in a path is written ``%20``.
    """
    return "".join(f"{line}\n" for path in libraries for line in _lines(path, libraries[path]))


def _lines(path: str, binaries: Iterable[FatBinary]) -> Iterator[str]:
    for binary in binaries:
        yield f"fatbin {path.replace(' ', '%20')} {binary.address:#x} {binary.code}"
        for kernel in binary.kernels:
            yield _line(kernel)


def _line(kernel: Kernel) -> str:
    return (
        f"kernel {kernel.name} registers={kernel.registers} shared={kernel.shared} "
        f"local={kernel.local} threads={kernel.threads} cluster={kernel.cluster} "
        f"spills={kernel.spills or 0}"
    )
