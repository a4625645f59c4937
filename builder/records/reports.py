"""A verdict for other programs: JUnit XML for CI systems, Markdown for a job's summary page."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from xml.etree import ElementTree

from builder.records.table import Overview
from builder.smoke.verdict import Check, Verdict

ILLEGAL = dict.fromkeys((*range(9), 11, 12, *range(14, 32)), "�")  # XML 1.0, 2.2
SHOWN = 300  # characters of a cell of a table


def junit(name: str, verdict: Verdict) -> str:
    """The verdict as JUnit XML: one suite, one case a check.

    The format is that of the Ant task's reports as CI systems read them: a failed check has
    ``failure``, one that could not be tried ``error``, each with what was expected and found.
    """
    suite = ElementTree.Element(
        "testsuite",
        name=name,
        tests=str(len(verdict.checks)),
        failures=str(len(verdict.failures)),
        errors=str(len(verdict.untried)),
        skipped="0",
        time=f"{sum(check.seconds for check in verdict.checks):.3f}",
    )
    properties = ElementTree.SubElement(suite, "properties")
    for key, value in _facts(verdict):
        ElementTree.SubElement(properties, "property", name=key, value=value)
    for check in verdict.checks:
        suite.append(_case(name, check))
    root = ElementTree.Element("testsuites")
    root.append(suite)
    ElementTree.indent(root)
    return ElementTree.tostring(root, "unicode", xml_declaration=True) + "\n"


def _case(name: str, check: Check) -> ElementTree.Element:
    case = ElementTree.Element(
        "testcase",
        classname=f"{name}.{check.kind}",
        name=_legal(f"{check.subject}: {check.expected}"),
        time=f"{check.seconds:.3f}",
    )
    if not check.passed:
        kind = "error" if check.passed is None else "failure"
        what = _legal(f"expected {check.expected}; found {check.found}")
        child = ElementTree.SubElement(case, kind, message=what[:SHOWN], type=check.kind)
        child.text = what
    return case


def _legal(text: str) -> str:
    return text.translate(ILLEGAL)


def _facts(verdict: Verdict) -> list[tuple[str, str]]:
    return [
        ("digest", verdict.digest),
        ("download_size", str(verdict.download_size)),
        ("unpacked_size", str(verdict.unpacked_size)),
    ]


def summary(name: str, verdict: Verdict) -> str:
    """The verdict as Markdown for GitHub's step summary: what is wrong first, then all of it."""
    wrong = [*verdict.failures, *verdict.untried]
    seconds = sum(check.seconds for check in verdict.checks)
    state = "verified" if verdict.good else "**not verified**"
    lines = [
        f"### {name}: {state}",
        "",
        f"{len(verdict.checks)} checks in {seconds:.0f} s: {len(verdict.failures)} failed, "
        f"{len(verdict.untried)} could not be tried. "
        f"{verdict.download_size / 1e6:.1f} MB to download, "
        f"{verdict.unpacked_size / 1e6:.1f} MB unpacked.",
        "",
        f"`{verdict.digest}`",
        "",
    ]
    lines += _table(wrong) if wrong else []
    lines += ["<details><summary>All checks</summary>", "", *_table(verdict.checks), "</details>"]
    return "\n".join(lines) + "\n"


STATES = {True: "ok", False: "FAILED", None: "not tried"}


def _table(checks: Sequence[Check]) -> list[str]:
    rows = ["| | check | of | expected | found | took |", "|---|---|---|---|---|---|"]
    for check in checks:
        cells = (STATES[check.passed], check.kind, check.subject, check.expected, check.found)
        rows.append("| " + " | ".join(map(_cell, cells)) + f" | {check.seconds:.2f} s |")
    return [*rows, ""]


def _cell(text: str) -> str:
    """Text in a cell of a table: nothing in it is Markdown or HTML."""
    short = " ".join(text.split())
    short = short if len(short) <= SHOWN else short[: SHOWN - 3] + "..."
    for character in "\\`*_[]<>|~":
        short = short.replace(character, "\\" + character)
    return short


def write(name: str, verdict: Verdict, junit_file: Path | None, summaries: Sequence[Path]) -> None:
    """Write the JUnit file whole, and add to the files of summaries; raises ``OSError``."""
    if junit_file is not None:
        junit_file.parent.mkdir(parents=True, exist_ok=True)
        junit_file.write_text(junit(name, verdict), encoding="utf-8")
    add(summary(name, verdict), summaries)


def add(text: str, summaries: Sequence[Path]) -> None:
    """Add a text to each of the files; raises ``OSError``."""
    for file in summaries:
        with file.open("a", encoding="utf-8") as stream:
            stream.write(text)


def markdown(overview: Overview) -> str:
    """An overview as a table of Markdown under its title."""
    rows = [overview.header, ("---",) * len(overview.header)]
    lines = [f"| {' | '.join(row)} |" for row in rows]
    lines += [f"| {' | '.join(map(_cell, row))} |" for row in overview.rows]
    notes = [f"- {_cell(note)}\n" for note in overview.notes]
    return "\n".join([f"### {overview.title}", "", *lines, "", *notes]) + "\n"
