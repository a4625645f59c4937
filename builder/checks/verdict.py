"""The result of a smoke test: a verdict, made of checks."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Self

from builder.image.code_paths import CodePaths, KernelSummary
from builder.presets.schema import PresetUse
from simulator.report import mib
from simulator.work import WorkPath


class CheckState(StrEnum):
    """How a check ended."""

    PASSED = "passed"
    FAILED = "failed"
    UNTRIED = "untried"
    """It could not be run, which says nothing about the image."""
    SKIPPED = "skipped"
    """It does not apply to the image; ``Check.found`` is the reason."""


@dataclass(frozen=True, slots=True)
class Check:
    """One check of an image; ``seconds`` is how long it took."""

    kind: str
    subject: str
    expected: str
    found: str
    state: CheckState
    seconds: float = 0.0

    @classmethod
    def of(cls, kind: str, subject: str, expected: str, found: str, passed: bool) -> Self:
        """A check that was run."""
        state = CheckState.PASSED if passed else CheckState.FAILED
        return cls(kind, subject, expected, found, state)

    @classmethod
    def untried(cls, kind: str, subject: str, expected: str, why: object) -> Self:
        """A check that could not be run."""
        return cls(kind, subject, expected, str(why), CheckState.UNTRIED)

    @classmethod
    def skipped(cls, kind: str, subject: str, expected: str, why: object) -> Self:
        """A check that does not apply to the image."""
        return cls(kind, subject, expected, str(why), CheckState.SKIPPED)

    @property
    def passed(self) -> bool:
        """Whether it was run, and passed."""
        return self.state is CheckState.PASSED

    @property
    def comparison(self) -> str:
        """The expected and the found text, in one line."""
        return f"expected: {self.expected}; found: {self.found}"


def timed(checks: Iterable[Check]) -> Iterator[Check]:
    """The checks, each with the seconds since the one before."""
    started = time.monotonic()
    for check in checks:
        yield replace(check, seconds=round(time.monotonic() - started, 3))
        started = time.monotonic()


@dataclass(frozen=True, slots=True)
class DeviceUse:
    """A server's use of the simulated card; sizes are bytes."""

    card: str
    memory: int
    peak: int
    context: int
    by_kind: Mapping[str, int]
    launches: Mapping[str, int]
    code: Mapping[str, int]
    """Launches by the code that the card would run: "sm_120a"."""
    called: Mapping[str, int]
    implemented: int
    """Functions that the simulator implements by hand."""
    paths: tuple[WorkPath, ...] = ()
    stated: str = ""
    """What the engine's own log says of its choices; empty: nothing that is read."""

    @property
    def text(self) -> str:
        """The figures in one line."""
        kinds = ", ".join(f"{kind} {mib(size)}" for kind, size in self.by_kind.items())
        code = ", ".join(sorted(self.code)) or "no code"
        return (
            f"{sum(self.launches.values())} launches of {len(self.launches)} kernels ({code}); "
            f"peak {mib(self.peak)} of {mib(self.memory)}: "
            f"{', '.join(filter(None, (kinds, f'context {mib(self.context)}')))}; "
            f"simulated {self.card}"
        )


@dataclass(frozen=True, slots=True)
class Verdict:
    """All checks of one image, with its sizes."""

    digest: str
    checks: tuple[Check, ...]
    download_size: int
    """Bytes of the compressed layers, manifest and configuration."""
    unpacked_size: int
    kernels: KernelSummary | None = None
    """The engine's own kernels; None: it has none."""
    device: DeviceUse | None = None
    presets: Mapping[str, PresetUse] = field(default_factory=dict)
    code: tuple[CodePaths, ...] = ()
    """The device code of all libraries, whoever built them, the largest first."""

    @property
    def good(self) -> bool:
        """Whether no check failed or could not be run, and there is at least one."""
        return bool(self.checks) and not self.failures and not self.untried

    @property
    def failures(self) -> tuple[Check, ...]:
        """The checks that failed."""
        return self._of(CheckState.FAILED)

    @property
    def untried(self) -> tuple[Check, ...]:
        """The checks that could not be run."""
        return self._of(CheckState.UNTRIED)

    @property
    def skipped(self) -> tuple[Check, ...]:
        """The checks that do not apply to the image."""
        return self._of(CheckState.SKIPPED)

    @property
    def passed_by_kind(self) -> dict[str, int]:
        """The number of checks that passed, by kind."""
        return dict(Counter(check.kind for check in self._of(CheckState.PASSED)))

    @property
    def failed_by_kind(self) -> dict[str, int]:
        """The number of checks that failed, by kind."""
        return dict(Counter(check.kind for check in self.failures))

    def _of(self, state: CheckState) -> tuple[Check, ...]:
        return tuple(check for check in self.checks if check.state is state)
