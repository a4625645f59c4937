"""Which code of a fat binary the driver takes for a card.

CUDA Programming Guide, "Compute Capabilities", "Feature Set Compiler Targets", and nvcc's manual,
"Binary Compatibility":

- machine code runs on cards of its major version and of its own or a higher minor version;
- PTX is compiled by the driver for its own version and for every higher one;
- code with the suffix `a` is for exactly one compute capability, machine code or PTX;
- code with the suffix `f` is for its family: 10.0 and 10.3; 12.0 and 12.1; from its version up.

Code of the family has the same major version, so that one rule covers it.

A driver compiles PTX up to the version of its own CUDA: PTX ISA, "Release Notes", table "PTX
Release History".
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from itertools import takewhile
from typing import NamedTuple

from simulator.fatbin import Code, FatbinEntry


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


PTX = (
    {(8, minor): (12, minor) for minor in range(6)}
    | {(8, 6): (12, 7), (8, 7): (12, 8), (8, 8): (12, 9)}
    | {(9, minor): (13, minor) for minor in range(6)}
)
"""The CUDA that each version of the PTX ISA came with, since CUDA 12.0: to 9.1 by NVIDIA's
cuda-python, ``cuda/bindings/utils/_ptx_utils.py``; 9.5 by apache/tvm-tirx#241."""
DRIVERS = (
    {525: (12, 0), 530: (12, 1), 535: (12, 2), 545: (12, 3), 550: (12, 4), 555: (12, 5)}
    | {560: (12, 6), 565: (12, 7), 570: (12, 8), 575: (12, 9), 580: (13, 0), 590: (13, 1)}
    | {595: (13, 2), 610: (13, 3)}
)
"""The CUDA of each branch of the driver: CUDA Toolkit release notes, "CUDA Toolkit and
Corresponding Driver Versions"; the names of the installers, cuda_13.3.0_610.43.02_linux.run."""


def unread(ptx: str, driver: str) -> str:
    """Why a driver ("580.65.06") does not compile PTX of a version ("9.2"); empty: it does."""
    major, _, minor = ptx.partition(".")
    number = (int(major), int(minor)) if major.isdecimal() and minor.isdecimal() else None
    branch = int(driver.partition(".")[0])
    own = max((cuda for first, cuda in DRIVERS.items() if first <= branch), default=(0, 0))
    needed = PTX.get(number, (0, 0) if number < min(PTX) else None) if number else None
    if needed is None:
        return f"PTX {ptx or 'of no version'} belongs to no known CUDA"
    if needed <= own:
        return ""
    if branch > max(DRIVERS):
        return (
            f"it is not known whether driver {driver} compiles PTX {ptx} of CUDA {_dotted(needed)}"
        )
    return f"PTX {ptx} is of CUDA {_dotted(needed)}, and driver {driver} is of CUDA {_dotted(own)}"


def _dotted(version: tuple[int, int]) -> str:
    return f"{version[0]}.{version[1]}"


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


def runs_target(target: str, card: Capability) -> bool:
    """Whether a card can take PTX with this ``.target``, "sm_90a"."""
    if re.fullmatch(r"sm_\d+[af]?", target) is None:
        return False
    return runs(Code.named(target.replace("sm", "compute")), card)


def taken(entries: Sequence[FatbinEntry], card: Capability) -> FatbinEntry | None:
    """The entry that the driver takes; None if the card can run none of them."""
    code = preferred((entry.code for entry in entries), card)
    return next((entry for entry in entries if entry.code == code), None)


def preferred(codes: Iterable[Code], card: Capability) -> Code | None:
    """The code that the driver takes: machine code before PTX, the nearest version first.

    None if the card can run none of it.
    """
    return max(
        (code for code in codes if runs(code, card)),
        key=lambda code: (code.kind == "elf", code.arch, _SUFFIXES.index(code.suffix)),
        default=None,
    )
