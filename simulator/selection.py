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
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, NamedTuple

Suffix = Literal["", "a", "f"]


class Capability(NamedTuple):
    """A compute capability: 12.0."""

    major: int
    minor: int

    def __str__(self) -> str:
        return f"{self.major}.{self.minor}"

    @classmethod
    def parse(cls, text: str) -> Capability:
        """Read ``12.0``; raises ``ValueError``."""
        found = re.fullmatch(r"(\d+)\.(\d)", text, re.ASCII)
        if found is None:
            raise ValueError(f"{text!r} is no compute capability, for example 12.0")
        return cls(int(found[1]), int(found[2]))

    @classmethod
    def of_arch(cls, text: str) -> Capability:
        """The one of an architecture as nvcc and cmake name it: ``120a``, ``120-real``."""
        return cls(*divmod(int(re.split(r"\D", text)[0]), 10))

    @property
    def arch(self) -> int:
        """The number of its architecture: 120."""
        return self.major * 10 + self.minor


@dataclass(frozen=True, slots=True)
class Code:
    """One image of device code in a fat binary; `arch` is 120 for compute capability 12.0."""

    kind: Literal["ptx", "elf"]
    arch: int
    suffix: Suffix = ""

    @classmethod
    def named(cls, name: str) -> Code:
        """The code with this ``name``: "sm_120a"."""
        prefix, _, rest = name.partition("_")
        suffix: Suffix = "a" if rest[-1] == "a" else "f" if rest[-1] == "f" else ""
        return cls("ptx" if prefix == "compute" else "elf", int(rest.rstrip("af")), suffix)

    @property
    def name(self) -> str:
        """The name that nvcc's `code=` has for it: "sm_120a" or, for PTX, "compute_120a"."""
        prefix = "compute" if self.kind == "ptx" else "sm"
        return f"{prefix}_{self.arch}{self.suffix}"


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
    found = re.fullmatch(r"(\d{1,9})\.(\d{1,9})", ptx, re.ASCII)
    number = (int(found[1]), int(found[2])) if found else (0, 0)
    if found and number < min(PTX):
        return ""
    if number not in PTX:
        return f"PTX {ptx or 'of no version'} belongs to no known CUDA"
    needed, branch = PTX[number], int(driver.partition(".")[0])
    own = max((cuda for first, cuda in DRIVERS.items() if first <= branch), default=(0, 0))
    if needed <= own:
        return ""
    cuda = "CUDA {}.{}".format(*needed)
    if branch > max(DRIVERS):
        return f"it is not known whether driver {driver} compiles PTX {ptx} of {cuda}"
    return "PTX {} is of {}, and driver {} is of CUDA {}.{}".format(ptx, cuda, driver, *own)


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


def preferred(codes: Iterable[Code], card: Capability) -> Code | None:
    """The code that the driver takes: machine code before PTX, the nearest version first.

    None if the card can run none of it.
    """
    return max(
        (code for code in codes if runs(code, card)),
        key=lambda code: (code.kind == "elf", code.arch, _SUFFIXES.index(code.suffix)),
        default=None,
    )
