"""Verdicts and tables as Markdown, for a job's summary page."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from builder.checks.verdict import Check, Verdict
from builder.core import sizes
from builder.image.code_paths import text_of

CELL_LIMIT = 300  # characters


@dataclass(frozen=True, slots=True)
class Overview:
    """A table with a title, for the terminal and for Markdown."""

    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    notes: tuple[str, ...] = ()
    """Lines below the table."""


def of_verdict(name: str, verdict: Verdict) -> str:
    """The verdict as Markdown: first the checks that did not pass, then all."""
    bad = [*verdict.failures, *verdict.untried]
    seconds = sum(check.seconds for check in verdict.checks)
    state = "verified" if verdict.good else "**not verified**"
    lines = [
        f"### {name}: {state}",
        "",
        f"{len(verdict.checks)} checks in {seconds:.0f} s: {len(verdict.failures)} failed, "
        f"{len(verdict.untried)} untried, {len(verdict.skipped)} skipped. "
        f"{sizes.shown(verdict.download_size)} to download, "
        f"{sizes.shown(verdict.unpacked_size)} unpacked.",
        "",
        f"`{verdict.digest}`",
        "",
    ]
    lines += [f"On a simulated card: {_cell(verdict.device.text)}", ""] if verdict.device else []
    lines += [f"Device code: {_cell(text_of(verdict.code))}", ""] if verdict.code else []
    lines += _check_table(bad) if bad else []
    details = _check_table(verdict.checks)
    lines += ["<details><summary>All checks</summary>", "", *details, "</details>"]
    return "\n".join(lines) + "\n"


def of_table(overview: Overview) -> str:
    """A table with its title and notes."""
    rows = [overview.header, ("---",) * len(overview.header)]
    lines = [f"| {' | '.join(row)} |" for row in rows]
    lines += [f"| {' | '.join(map(_cell, row))} |" for row in overview.rows]
    notes = [f"- {_cell(note)}\n" for note in overview.notes]
    return "\n".join([f"### {overview.title}", "", *lines, "", *notes]) + "\n"


def append_to_summary(text: str) -> None:
    """Append to the summary of a job in a GitHub workflow; nothing elsewhere.  Raises ``OSError``.

    https://docs.github.com/actions/reference/workflows-and-actions/variables, GITHUB_STEP_SUMMARY
    """
    name = os.environ.get("GITHUB_STEP_SUMMARY")
    if name:
        with Path(name).open("a", encoding="utf-8") as stream:
            stream.write(text)


def _check_table(checks: Sequence[Check]) -> list[str]:
    rows = ["| | check | of | expected | found | took |", "|---|---|---|---|---|---|"]
    for check in checks:
        cells = (check.state, check.kind, check.subject, check.expected, check.found)
        rows.append("| " + " | ".join(map(_cell, cells)) + f" | {check.seconds:.2f} s |")
    return [*rows, ""]


def _cell(text: str) -> str:
    """Text for a table cell, with Markdown and HTML escaped."""
    short = " ".join(text.split())
    short = short if len(short) <= CELL_LIMIT else short[: CELL_LIMIT - 3] + "..."
    for character in "\\`*_[]<>|~":
        short = short.replace(character, "\\" + character)
    return short
