"""The result of a smoke test: a verdict, made of checks."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Check:
    """One check of an image; ``seconds`` is how long it took."""

    kind: str
    subject: str
    expected: str
    found: str
    passed: bool | None
    """None: the check could not be run, which says nothing about the image."""
    seconds: float = 0.0

    @property
    def comparison(self) -> str:
        """What was expected and what was found, in one line."""
        return f"expected: {self.expected}; found: {self.found}"


@dataclass(frozen=True, slots=True)
class Verdict:
    """All checks of one image, with its sizes."""

    digest: str
    checks: tuple[Check, ...]
    download_size: int
    """Bytes of the compressed layers, manifest and configuration."""
    unpacked_size: int
    """Bytes of the files."""

    @property
    def good(self) -> bool:
        """Whether all checks were run and passed, and there is at least one."""
        return bool(self.checks) and all(check.passed for check in self.checks)

    @property
    def failures(self) -> tuple[Check, ...]:
        """The checks that failed."""
        return tuple(check for check in self.checks if check.passed is False)

    @property
    def untried(self) -> tuple[Check, ...]:
        """The checks that could not be run."""
        return tuple(check for check in self.checks if check.passed is None)
