"""Verdicts as JUnit XML."""

from __future__ import annotations

from xml.etree import ElementTree

from builder.checks import verdict as verdicts
from support.verdicts import BAD, GOOD, SKIPPED, UNTRIED, verdict

COUNTED = ("tests", "failures", "errors", "skipped", "time")
KINDS = ("runs", "option", "serves", "device")


def test_junit_counts_what_failed_apart_from_what_could_not_be_tried() -> None:
    root = ElementTree.fromstring(verdicts.junit({"a-1": verdict(GOOD, BAD, UNTRIED, SKIPPED)}))
    (suite,) = root
    counts = {name: suite.get(name) for name in COUNTED}
    assert counts == dict(zip(COUNTED, ("4", "1", "1", "1", "1.750"), strict=True))
    cases = suite.findall("testcase")
    assert [case.get("classname") for case in cases] == [f"a-1.{kind}" for kind in KINDS]
    failure = cases[1].find("failure")
    assert failure is not None
    assert failure.text == "expected: has <mtp> | x; found: none\ufffd [a](b) `c`"
    assert cases[2].find("error") is not None
    skipped = cases[3].find("skipped")
    assert skipped is not None
    assert skipped.text == "expected: starts; found: it is for arm64"
    assert list(cases[0]) == []
