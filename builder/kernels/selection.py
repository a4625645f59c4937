"""Which code of a fat binary the driver takes for a card.

CUDA Programming Guide, "Compute Capabilities", "Feature Set Compiler Targets", and nvcc's manual,
"Binary Compatibility":

- machine code runs on cards of its major version and of its own or a higher minor version;
- PTX is compiled by the driver for its own version and for every higher one;
- code with the suffix `a` is for exactly one compute capability, machine code or PTX;
- code with the suffix `f` is for its family: 10.0 and 10.3; 12.0 and 12.1; from its version up.

Code of the family has the same major version, so that one rule covers it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import takewhile
from typing import NamedTuple

from builder.tools.fatbin import Code, FatbinEntry


class Capability(NamedTuple):
    """A compute capability: 12.0."""

    major: int
    minor: int

    def __str__(self) -> str:
        return f"{self.major}.{self.minor}"

    @classmethod
    def parse(cls, text: str) -> Capability:
        """Read ``12.0``; raises ``ValueError``."""
        major, dot, minor = text.partition(".")
        if not (dot and major.isdecimal() and minor.isdecimal() and len(minor) == 1):
            raise ValueError(f"{text!r} is no compute capability, for example 12.0")
        return cls(int(major), int(minor))

    @classmethod
    def of_arch(cls, text: str) -> Capability:
        """The one of an architecture as nvcc and cmake name it: ``120a``, ``120-real``."""
        digits = "".join(takewhile(str.isdecimal, text))
        return cls(*divmod(int(digits), 10))

    @property
    def arch(self) -> int:
        """The number of its architecture: 120."""
        return self.major * 10 + self.minor


_SUFFIXES = ("", "f", "a")
"""The most specific last."""


def runs(code: Code, card: Capability) -> bool:
    """Whether a card can take this code, as it is or compiled by the driver."""
    same_major = code.arch // 10 == card.major
    if code.suffix == "a":
        return code.arch == card.arch
    if code.arch > card.arch:
        return False
    return same_major or (code.kind == "ptx" and not code.suffix)


def taken(entries: Sequence[FatbinEntry], card: Capability) -> FatbinEntry | None:
    """The entry that the driver takes; None if the card can run none of them."""
    code = preferred((entry.code for entry in entries), card)
    return next((entry for entry in entries if entry.code == code), None)


def preferred(codes: Iterable[Code], card: Capability) -> Code | None:
    """The code that the driver takes: machine code before PTX, the nearest version first.

    None if the card can run none of it.
    """
    return max((code for code in codes if runs(code, card)), key=_preference, default=None)


def _preference(code: Code) -> tuple[bool, int, int]:
    return code.kind == "elf", code.arch, _SUFFIXES.index(code.suffix)
