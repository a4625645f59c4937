"""The result of a comparison: frozen values without a formatting of their own.

In every difference, ``before`` is the first thing compared and ``after`` the second one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Generic, Literal, TypeVar

from builder.image.code_paths import CodePaths
from builder.image.layers import Node

DifferenceState = Literal["added", "removed", "changed"]
Aspect = Literal[
    "name", "kind", "content", "target", "mode", "owner", "attributes", "hard link", "time"
]

LayerState = Literal["equal", "compression", "times", "order", "tar", "files", "added", "removed"]


T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Difference(Generic[T]):
    """A named value, or a list of values; empty or None where a side has none."""

    name: str
    before: T
    after: T


Values = tuple[Difference[tuple[str, ...]], ...]


def _state(before: object, after: object) -> DifferenceState:
    if before is None:
        return "added"
    return "removed" if after is None else "changed"


@dataclass(frozen=True, slots=True)
class ElfDifference:
    """How two ELF files differ."""

    values: Values
    """The values that differ: of ``machine``, ``type``, ``interpreter``, ``soname``, ``needed``,
    ``runpath``, ``rpath`` and ``build id``."""
    symbols_added: tuple[str, ...]
    """Dynamic symbols, ``cudaFree@libcudart.so.13``; ``U`` before an undefined one."""
    symbols_removed: tuple[str, ...]
    sections: tuple[Difference[int | None], ...]
    """Bytes of sections that differ, or that one file lacks, in the order of the files."""


@dataclass(frozen=True, slots=True)
class FunctionCode:
    """A kernel or device function in one of the modules of a file."""

    module: int
    """Number of the fat binary in the file, from 1."""
    size: int
    """Bytes of SASS, or of PTX text."""
    digest: str
    """sha256 (hex) of them."""
    registers: int | None = None
    """For each thread; None for PTX and for device functions."""
    spills: int | None = None
    """Bytes of spill stores and loads; None also where the compiler did not mark them."""


@dataclass(frozen=True, slots=True)
class FunctionDifference:
    """A kernel or device function that differs for one code (``sm_120a``, ``compute_120``)."""

    code: str
    name: str
    """Demangled."""
    before: FunctionCode | None
    after: FunctionCode | None
    parts: tuple[str, ...]
    """The parts that differ: ``SASS``, ``PTX``, or sections of the kernel, such as ``.nv.info`` and
    ``.nv.constant0``."""

    @property
    def state(self) -> DifferenceState:
        """Which of both sides has it, or whether it differs."""
        return _state(self.before, self.after)

    @property
    def more_spills(self) -> int:
        """Bytes of spills that it has more; a side that is absent or not known counts 0."""
        old, new = (side.spills or 0 if side else 0 for side in (self.before, self.after))
        return new - old


@dataclass(frozen=True, slots=True)
class CodeTotals:
    """One kind of code of a file (``sm_120a``, ``compute_120``), by its fat binary entries."""

    code: str
    before: int
    """Entries."""
    after: int
    equal: int
    """Entries whose unpacked bytes are equal."""


@dataclass(frozen=True, slots=True)
class OtherDifference:
    """A difference of modules outside of their functions: a section, or PTX."""

    code: str
    name: str
    modules: int
    """In so many modules."""
    before: int
    """Bytes in these modules."""
    after: int


@dataclass(frozen=True, slots=True)
class CodeDifference:
    """The device code of two files."""

    totals: tuple[CodeTotals, ...]
    functions: tuple[FunctionDifference, ...] = ()
    others: tuple[OtherDifference, ...] = ()

    @property
    def same(self) -> bool:
        """Whether every entry has an equal one in the other file, byte for byte."""
        return all(each.before == each.after == each.equal for each in self.totals)


@dataclass(frozen=True, slots=True)
class FileDifference:
    """A path that differs; ``time`` is among the aspects where only that differs, too."""

    path: str
    before: Node | None
    after: Node | None
    former: str = ""
    """The path of the first one, where a library has another version in its name."""
    aspects: tuple[Aspect, ...] = ()
    """The differences of a path that both have."""
    lines: tuple[str, str] | None = None
    """The first line that differs in two texts."""
    elf: ElfDifference | None = None
    """The differences of two ELF files."""
    code: CodeDifference | None = None
    """Set where one of the files has device code."""
    on_card: tuple[CodePaths, CodePaths] | None = None
    """With ``code``: what the card does with the device code of both files."""
    unread: str = ""
    """Why ELF sections or device code could not be compared."""

    @property
    def state(self) -> DifferenceState:
        """Which of both sides has it, or whether it differs."""
        return _state(self.before, self.after)

    @property
    def only_time(self) -> bool:
        """Whether nothing but the modification time differs."""
        return self.aspects == ("time",)


@dataclass(frozen=True, slots=True)
class LayerSide:
    """A layer of an image."""

    number: int
    """From 1, the lowest."""
    digest: str
    size: int
    """Bytes of the blob."""
    created_by: str
    """The instruction that made it, from the image's history."""


@dataclass(frozen=True, slots=True)
class LayerDifference:
    """Two layers, or one layer without a counterpart.

    ``state`` names the difference: none; the compression of the same tar; the modification times,
    the order of the entries, or other bytes of the tar, of the same files; or the files.
    """

    before: LayerSide | None
    after: LayerSide | None
    state: LayerState
    paths: tuple[str, ...] = ()
    """With ``times`` and ``files``: the paths that differ."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two trees, or two images, compared.

    Two images with one digest are equal: nothing else is read.
    """

    before: str
    """Name."""
    after: str
    digests: tuple[str, str] | None
    """The manifests' of two images."""
    equal: int
    """Paths that are equal, apart from times."""
    files: tuple[FileDifference, ...]
    """The files that differ, by path; also files that differ in their time only."""
    config: Values = ()
    """Values of two images' configurations, ``config.Env``; values with times are in ``times``."""
    times: Values = ()
    """Times in two images' configurations: ``created``, ``history``."""
    layers: tuple[LayerDifference, ...] = ()
    """All layers of two images, also equal ones."""

    def differing(self, *, times: bool = False) -> list[FileDifference]:
        """The files that differ; with ``times`` also files that differ in their time only."""
        return [each for each in self.files if times or not each.only_time]

    def same(self, *, times: bool = False) -> bool:
        """Whether files and configuration are equal, with ``times`` also all times."""
        return not self.differing(times=times) and not self.config and not (times and self.times)

    @property
    def codes(self) -> Iterator[tuple[FileDifference, CodeDifference]]:
        """The files whose device code was compared."""
        return ((each, each.code) for each in self.files if each.code is not None)

    @property
    def unread(self) -> list[FileDifference]:
        """The files whose sections or device code could not be compared."""
        return [each for each in self.files if each.unread]

    @property
    def same_code(self) -> bool:
        """Whether the device code is the same, byte for byte; False where some is unread."""
        return all(code.same for _, code in self.codes) and not self.unread
