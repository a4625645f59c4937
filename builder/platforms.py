"""The two platforms of a build: the one that compiles and the one that the image is for."""

from __future__ import annotations

import platform
from dataclasses import dataclass
from typing import Literal

Architecture = Literal["amd64", "arm64"]
"""As Docker and Debian name them."""

_MACHINES: dict[str, Architecture] = {
    "x86_64": "amd64",
    "amd64": "amd64",
    "aarch64": "arm64",
    "arm64": "arm64",
}
GNU_TRIPLETS: dict[Architecture, str] = {
    "amd64": "x86_64-linux-gnu",
    "arm64": "aarch64-linux-gnu",
}


@dataclass(frozen=True, slots=True)
class Platforms:
    """``build`` is where the compiler runs, ``target`` where the image will."""

    build: Architecture
    target: Architecture = "amd64"

    @property
    def cross(self) -> bool:
        """Whether the compiler makes code for another platform than its own."""
        return self.build != self.target

    @property
    def both(self) -> tuple[Architecture, ...]:
        """The architectures, target first, each once."""
        return (self.target, self.build) if self.cross else (self.target,)


def architecture(machine: str | None = None) -> Architecture | None:
    """Docker's name for a machine as ``uname -m`` names it; None where it is neither."""
    return _MACHINES.get((machine or platform.machine()).lower())
