"""A verdict as JUnit XML, for CI systems."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

from builder.smoke.verdict import Check, Verdict

ILLEGAL = dict.fromkeys((*range(9), 11, 12, *range(14, 32)), "\N{REPLACEMENT CHARACTER}")
"""Characters that XML 1.0 does not allow (section 2.2)."""
MESSAGE_LIMIT = 300  # characters of a message attribute; the element's text has all of it


def junit(name: str, verdict: Verdict) -> str:
    """The verdict as JUnit XML: one suite, one test case per check.

    The format is that of Ant's JUnit reports: a failed check has ``failure``, one that could not
    be run has ``error``, each with the expected and the found value.
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
    facts = {
        "digest": verdict.digest,
        "download_size": str(verdict.download_size),
        "unpacked_size": str(verdict.unpacked_size),
    }
    for key, value in facts.items():
        ElementTree.SubElement(properties, "property", name=key, value=value)
    suite.extend(_case(name, check) for check in verdict.checks)
    root = ElementTree.Element("testsuites")
    root.append(suite)
    ElementTree.indent(root)
    return ElementTree.tostring(root, "unicode", xml_declaration=True) + "\n"


def write(file: Path, name: str, verdict: Verdict) -> None:
    """Write the verdict as JUnit XML; raises ``OSError``."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(junit(name, verdict), encoding="utf-8")


def _case(name: str, check: Check) -> ElementTree.Element:
    case = ElementTree.Element(
        "testcase",
        classname=f"{name}.{check.kind}",
        name=_legal(f"{check.subject}: {check.expected}"),
        time=f"{check.seconds:.3f}",
    )
    if not check.passed:
        tag = "error" if check.passed is None else "failure"
        text = _legal(check.comparison)
        child = ElementTree.SubElement(case, tag, message=text[:MESSAGE_LIMIT], type=check.kind)
        child.text = text
    return case


def _legal(text: str) -> str:
    return text.translate(ILLEGAL)
