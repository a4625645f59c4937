"""The result of a smoke test: a verdict, made of checks; for people, and for other programs."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import Self
from xml.etree import ElementTree

from builder.core import sizes
from builder.image.code_paths import CodePaths, KernelSummary, text_of
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
    errors: Mapping[str, float] = field(default_factory=dict)
    """The error of each case of the kernel test that passed, as ggml measures it."""

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


# Verdicts as Markdown, for the summary page of a job in a GitHub workflow, and as JUnit XML.

CELL_LIMIT = 300


def markdown(name: str, verdict: Verdict) -> str:
    """The verdict as Markdown: first the checks that did not pass, then all."""
    bad = [*verdict.failures, *verdict.untried]
    seconds = sum(check.seconds for check in verdict.checks)
    lines = [
        f"### {name}: {'verified' if verdict.good else '**not verified**'}",
        "",
        f"{len(verdict.checks)} checks in {seconds:.0f} s: {len(verdict.failures)} failed, "
        f"{len(verdict.untried)} untried, {len(verdict.skipped)} skipped. "
        f"{sizes.shown(verdict.download_size)} to download, "
        f"{sizes.shown(verdict.unpacked_size)} unpacked.",
        "",
        f"`{verdict.digest}`",
        "",
    ]
    lines += [f"On a simulated card: {cell(verdict.device.text)}", ""] if verdict.device else []
    lines += [f"Device code: {cell(text_of(verdict.code))}", ""] if verdict.code else []
    lines += _table(bad) if bad else []
    details = _table(verdict.checks)
    lines += ["<details><summary>All checks</summary>", "", *details, "</details>"]
    return "\n".join(lines) + "\n"


def append_to_summary(text: str) -> None:
    """Append to the summary of a job in a GitHub workflow; nothing elsewhere."""
    name = os.environ.get("GITHUB_STEP_SUMMARY")
    if name:
        with Path(name).open("a", encoding="utf-8") as stream:
            stream.write(text)


def _table(checks: Sequence[Check]) -> list[str]:
    rows = ["| | check | of | expected | found | took |", "|---|---|---|---|---|---|"]
    for check in checks:
        cells = (check.state, check.kind, check.subject, check.expected, check.found)
        rows.append("| " + " | ".join(map(cell, cells)) + f" | {check.seconds:.2f} s |")
    return [*rows, ""]


def cell(text: str) -> str:
    """A text in one line of at most ``CELL_LIMIT`` characters, Markdown and HTML escaped."""
    short = " ".join(text.split())
    short = short if len(short) <= CELL_LIMIT else short[: CELL_LIMIT - 3] + "..."
    for character in "\\`*_[]<>|~":
        short = short.replace(character, "\\" + character)
    return short


ILLEGAL = dict.fromkeys((*range(9), 11, 12, *range(14, 32)), "\N{REPLACEMENT CHARACTER}")
"""Characters that XML 1.0 does not allow (section 2.2)."""
ELEMENTS = {
    CheckState.FAILED: "failure",
    CheckState.UNTRIED: "error",
    CheckState.SKIPPED: "skipped",
}
MESSAGE_LIMIT = 300  # characters of a message attribute; the element's text has all of it


def junit(verdicts: Mapping[str, Verdict]) -> str:
    """Verdicts by name as JUnit XML, as Ant writes it: a suite for each, a case for each check."""
    root = ElementTree.Element("testsuites")
    for name, verdict in verdicts.items():
        suite = ElementTree.SubElement(
            root,
            "testsuite",
            name=name,
            tests=str(len(verdict.checks)),
            failures=str(len(verdict.failures)),
            errors=str(len(verdict.untried)),
            skipped=str(len(verdict.skipped)),
            time=f"{sum(check.seconds for check in verdict.checks):.3f}",
        )
        properties = ElementTree.SubElement(suite, "properties")
        for key in ("digest", "download_size", "unpacked_size"):
            value = str(getattr(verdict, key))
            ElementTree.SubElement(properties, "property", name=key, value=value)
        for check in verdict.checks:
            case = ElementTree.SubElement(
                suite,
                "testcase",
                classname=f"{name}.{check.kind}",
                name=f"{check.subject}: {check.expected}".translate(ILLEGAL),
                time=f"{check.seconds:.3f}",
            )
            if tag := ELEMENTS.get(check.state):
                text = check.comparison.translate(ILLEGAL)
                short = text[:MESSAGE_LIMIT]
                ElementTree.SubElement(case, tag, message=short, type=check.kind).text = text
    ElementTree.indent(root)
    return ElementTree.tostring(root, "unicode", xml_declaration=True) + "\n"


def write_junit(file: Path, verdicts: Mapping[str, Verdict]) -> None:
    """Write verdicts as JUnit XML; raises ``OSError``."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(junit(verdicts), encoding="utf-8")
