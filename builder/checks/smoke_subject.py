"""An image of the engine, and all that its recipe asks of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from builder.checks.speed import RunSettings
from builder.core.log import Log
from builder.core.platforms import Platform
from builder.docker import engine as docker
from builder.presets.cards import Card
from builder.presets.schema import Preset
from builder.recipes.schema import Recipe

RUNS, WARM_UPS = 10, 2
TOKENS, TINY_TOKENS = 2000, 256


@dataclass(frozen=True, slots=True)
class GpuTest:
    """The checks on a GPU.  Without ``model``, the test model with random weights is used."""

    model: Path | None = None
    draft: Path | None = None
    runs: int = RUNS
    warm_ups: int = WARM_UPS
    wanted: bool | None = None
    """None: if the engine offers a GPU."""

    def due(self) -> bool:
        """Whether to run the checks; raises ``WorldError`` if the engine does not answer."""
        return docker.engine().has_nvidia_runtime if self.wanted is None else self.wanted

    @property
    def settings(self) -> RunSettings:
        """The runs of the collapse test."""
        if self.model is None:
            prompt, tokens = "Hello", TINY_TOKENS
            return RunSettings(prompt=prompt, tokens=tokens, runs=self.runs, warm_ups=self.warm_ups)
        return RunSettings(tokens=TOKENS, runs=self.runs, warm_ups=self.warm_ups)


@dataclass(frozen=True, slots=True)
class DeviceTest:
    """The checks on simulated cards, and where the simulator's libraries are kept."""

    card: Card | None
    """None: no card that is known runs the recipe's code."""
    cache: Path
    log: Log
    cards: Mapping[str, Card] = field(default_factory=dict)
    """The cards of the recipe's presets, by the name of their file; unknown ones are absent."""


@dataclass(frozen=True, slots=True)
class NumbersTest:
    """The sources of the numbers of an image: PTX to compute, and a program to compare with."""

    ptx: Path
    """A directory with the PTX of its machine code: ``DIGEST.ptx``."""
    program: Path | str
    """The test-backend-ops of its source tree (``builder.checks.program``), or why there is none.
    """


@dataclass(frozen=True, slots=True)
class Subject:
    """An image of the engine, and all that its recipe asks of it."""

    reference: str
    digest: str
    """Its manifest's."""
    recipe: Recipe | None = None
    """None: only the checks that hold for every image are made."""
    platform: Platform = "linux/amd64"
    labels: Mapping[str, str] = field(default_factory=dict)
    devel: str | None = None
    """The base's image to compile in, with the driver's stub; an engine with ``vmm = true`` does
    not start without it."""
    gpu_test: GpuTest | None = None
    device_test: DeviceTest | None = None
    extended: docker.Image | None = None
    """The published image that it extends; some checks leave out its files."""
    cache: Path | None = None
    """The cache directory, which keeps scans of layers; None: they are not kept."""
    presets: Mapping[str, Preset] = field(default_factory=dict)

    @property
    def published(self) -> docker.Image | None:
        """The image that it extends, if that is not a base of ours: those have ``devel``."""
        return self.extended if self.devel is None else None
