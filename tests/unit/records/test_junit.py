"""Verdicts as JUnit XML."""

from __future__ import annotations

from xml.etree import ElementTree

from builder.records import junit as junit_xml
from support.verdicts import BAD, GOOD, UNTRIED, verdict


def test_junit_counts_what_failed_apart_from_what_could_not_be_tried() -> None:
    root = ElementTree.fromstring(junit_xml.junit({"a-1": verdict(GOOD, BAD, UNTRIED)}))
    (suite,) = root
    counts = {name: suite.get(name) for name in ("tests", "failures", "errors", "time")}
    assert counts == {"tests": "3", "failures": "1", "errors": "1", "time": "1.750"}
    cases = suite.findall("testcase")
    assert [case.get("classname") for case in cases] == ["a-1.runs", "a-1.option", "a-1.serves"]
    failure = cases[1].find("failure")
    assert failure is not None
    assert failure.text == "expected: has <mtp> | x; found: none\ufffd [a](b) `c`"
    assert cases[2].find("error") is not None
    assert list(cases[0]) == []
