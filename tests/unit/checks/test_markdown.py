"""Verdicts as Markdown, for the summary page of a job."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest

from builder.checks import verdict as verdicts
from builder.checks.verdict import DeviceUse
from builder.image.code_paths import CodePaths
from support.verdicts import BAD, GOOD, SKIPPED, UNTRIED, verdict

WORDS = ["passed", "failed", "untried", "skipped"]


def test_a_summary_names_what_is_wrong_first_and_is_no_markup() -> None:
    text = verdicts.markdown("a-1", verdict(GOOD, SKIPPED, BAD, UNTRIED))
    assert text.startswith("### a-1: **not verified**")
    assert text.index("| failed |") < text.index("<details>")
    assert r"has \<mtp\> \| x" in text
    assert r"\[a\](b) \`c\`" in text
    assert "4 checks in 2 s: 1 failed, 1 untried, 1 skipped." in text
    wrong, every = text.split("<details>")
    assert [word for word in WORDS if f"| {word} |" in wrong] == ["failed", "untried"]
    assert [word for word in WORDS if f"| {word} |" in every] == WORDS
    assert "### a-1: verified" in verdicts.markdown("a-1", verdict(GOOD, SKIPPED))


def test_a_summary_has_the_figures_of_the_simulated_card_and_the_device_code() -> None:
    code = (CodePaths("/opt/_C.so", native=21_000_000),)
    use = DeviceUse("RTX_5090", 1 << 30, 1 << 21, 1 << 20, {}, {"k": 3}, {"sm_120": 3}, {}, 1)
    text = verdicts.markdown("a-1", replace(verdict(GOOD), device=use, code=code))
    assert "On a simulated card: 3 launches of 1 kernels (sm\\_120); peak 2.0 MiB" in text
    assert "simulated RTX\\_5090" in text
    assert "Device code: 21.0 MB runs as it is, 0.0 MB never runs\n" in text


def test_summaries_are_added_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = tmp_path / "page.md"
    page.write_text("before\n")
    verdicts.write_junit(tmp_path / "deep" / "j.xml", {"a-1": verdict(GOOD)})
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(page))
    for _ in range(2):
        verdicts.append_to_summary(verdicts.markdown("a-1", verdict(GOOD)))
    assert page.read_text().count("### a-1") == 2
    assert page.read_text().startswith("before")
    ElementTree.parse(tmp_path / "deep" / "j.xml")
