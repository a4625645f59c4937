"""The two platforms of a build: the one that compiles and the one that the image is for."""

from __future__ import annotations

import platform
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

Architecture = Literal["amd64", "arm64"]
"""As Docker and Debian name them."""

Platform = Literal["linux/amd64", "linux/arm64"]
"""An image's platform, as the OCI image specification and ``docker --platform`` name it."""

PLATFORMS: dict[Platform, Architecture] = {"linux/amd64": "amd64", "linux/arm64": "arm64"}
"""The architecture of each platform."""

_OF_ARCHITECTURE = {architecture: platform for platform, architecture in PLATFORMS.items()}

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
    def image(self) -> Platform:
        """The platform of the image: "linux/amd64"."""
        return _OF_ARCHITECTURE[self.target]

    @property
    def cross(self) -> bool:
        """Whether the compiler makes code for another platform than its own."""
        return self.build != self.target

    @property
    def triplet(self) -> str:
        """GNU's name of the target: "x86_64-linux-gnu"."""
        return GNU_TRIPLETS[self.target]

    @property
    def prefix(self) -> str:
        """What comes before the name of a compiler or linker: "x86_64-linux-gnu-", or nothing."""
        return f"{self.triplet}-" if self.cross else ""

    @property
    def both(self) -> tuple[Architecture, ...]:
        """The architectures, target first, each once."""
        return (self.target, self.build) if self.cross else (self.target,)


def of_target(packages: Iterable[str], target: Architecture) -> list[str]:
    """Debian packages with the target in place of "target": "libssl-dev:target" is the library
    that a program links, of the image's architecture also where another one compiles."""
    return [re.sub(r":target$", f":{target}", name) for name in packages]


def platform_of(machine: str) -> Platform | None:
    """The platform of a machine as ``uname -m`` names it; None where there are no images for it."""
    found = architecture(machine)
    return _OF_ARCHITECTURE[found] if found is not None else None


def architecture(machine: str | None = None) -> Architecture | None:
    """Docker's name for a machine as ``uname -m`` names it; None where it is neither."""
    return _MACHINES.get((machine or platform.machine()).lower())
