"""Verdicts as JUnit XML, for CI systems."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from xml.etree import ElementTree

from builder.checks.verdict import Check, CheckState, Verdict

ILLEGAL = dict.fromkeys((*range(9), 11, 12, *range(14, 32)), "\N{REPLACEMENT CHARACTER}")
"""Characters that XML 1.0 does not allow (section 2.2)."""
ELEMENTS = {
    CheckState.FAILED: "failure",
    CheckState.UNTRIED: "error",
    CheckState.SKIPPED: "skipped",
}
MESSAGE_LIMIT = 300  # characters of a message attribute; the element's text has all of it


def junit(verdicts: Mapping[str, Verdict]) -> str:
    """Verdicts by name as JUnit XML: one suite for each, one test case for each check.

    The format follows Ant's JUnit reports: a failed check has ``failure``, an untried one
    ``error``, a skipped one ``skipped``, each with the expected and the found value.
    """
    root = ElementTree.Element("testsuites")
    root.extend(_suite(name, verdict) for name, verdict in verdicts.items())
    ElementTree.indent(root)
    return ElementTree.tostring(root, "unicode", xml_declaration=True) + "\n"


def write(file: Path, verdicts: Mapping[str, Verdict]) -> None:
    """Write verdicts as JUnit XML; raises ``OSError``."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(junit(verdicts), encoding="utf-8")


def _suite(name: str, verdict: Verdict) -> ElementTree.Element:
    suite = ElementTree.Element(
        "testsuite",
        name=name,
        tests=str(len(verdict.checks)),
        failures=str(len(verdict.failures)),
        errors=str(len(verdict.untried)),
        skipped=str(len(verdict.skipped)),
        time=f"{sum(check.seconds for check in verdict.checks):.3f}",
    )
    properties = ElementTree.SubElement(suite, "properties")
    facts = {
        "digest": verdict.digest,
        "download_size": str(verdict.download_size),
        "unpacked_size": str(verdict.unpacked_size),
    }
    for key, value in facts.items():
        ElementTree.SubElement(properties, "property", name=key, value=value)
    suite.extend(_case(name, check) for check in verdict.checks)
    return suite


def _case(name: str, check: Check) -> ElementTree.Element:
    case = ElementTree.Element(
        "testcase",
        classname=f"{name}.{check.kind}",
        name=_legal(f"{check.subject}: {check.expected}"),
        time=f"{check.seconds:.3f}",
    )
    tag = ELEMENTS.get(check.state)
    if tag is not None:
        text = _legal(check.comparison)
        child = ElementTree.SubElement(case, tag, message=text[:MESSAGE_LIMIT], type=check.kind)
        child.text = text
    return case


def _legal(text: str) -> str:
    return text.translate(ILLEGAL)
