"""Verdicts for other programs."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest
from rich.console import Console
from rich.text import Text

from builder.bench.results import Generation
from builder.cli import console, tables
from builder.errors import UntriedError
from builder.images.check import smoke_error
from builder.nightly.history import Night
from builder.nightly.status import Status
from builder.publish.remote_image import Served
from builder.records import junit as junit_xml
from builder.records import markdown
from builder.smoke import gpu
from builder.smoke.verdict import Check, Verdict
from builder.tools.docker import gpus
from support.commands import Builder

GOOD = Check("runs", "server --version", "exit status 0", "0", True, 0.25)
BAD = Check("option", "--spec-type", "has <mtp> | x", "none\x00 [a](b) `c`", False, 0.5)
UNTRIED = Check("serves", "starts", "healthy", "no container", None, 1.0)


def verdict(*checks: Check) -> Verdict:
    return Verdict("sha256:" + "0" * 64, checks, 10_000_000, 20_000_000)


def test_junit_counts_what_failed_apart_from_what_could_not_be_tried() -> None:
    root = ElementTree.fromstring(junit_xml.junit("a-1", verdict(GOOD, BAD, UNTRIED)))
    (suite,) = root
    counts = {name: suite.get(name) for name in ("tests", "failures", "errors", "time")}
    assert counts == {"tests": "3", "failures": "1", "errors": "1", "time": "1.750"}
    cases = suite.findall("testcase")
    assert [case.get("classname") for case in cases] == ["a-1.runs", "a-1.option", "a-1.serves"]
    failure = cases[1].find("failure")
    assert failure is not None
    assert failure.text == "expected has <mtp> | x; found none\ufffd [a](b) `c`"
    assert cases[2].find("error") is not None
    assert list(cases[0]) == []


def test_a_summary_names_what_is_wrong_first_and_is_no_markup() -> None:
    text = markdown.of_verdict("a-1", verdict(GOOD, BAD))
    assert text.startswith("### a-1: **not verified**")
    assert text.index("FAILED") < text.index("<details>")
    assert r"has \<mtp\> \| x" in text
    assert r"\[a\](b) \`c\`" in text
    assert "### a-1: verified" in markdown.of_verdict("a-1", verdict(GOOD))


def test_summaries_are_added_to(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("before\n")
    junit_xml.write(tmp_path / "deep" / "j.xml", "a-1", verdict(GOOD))
    markdown.append(markdown.of_verdict("a-1", verdict(GOOD)), [page, page])
    assert page.read_text().count("### a-1") == 2
    assert page.read_text().startswith("before")
    ElementTree.parse(tmp_path / "deep" / "j.xml")


def test_a_failure_and_what_could_not_be_tried_exit_differently() -> None:
    failed = smoke_error("a-1", "a:1", verdict(GOOD, BAD, UNTRIED))
    assert (failed.exit_code, failed.what) == (7, "a-1 is built, and 1 of 3 checks failed")
    untried = smoke_error("a-1", "a:1", verdict(GOOD, UNTRIED))
    assert untried.exit_code == 8
    assert "no container" in untried.why


@pytest.mark.docker
@pytest.mark.usefixtures("hello")
def test_the_command_writes_both_and_finds_githubs_page_by_itself(
    builder: Builder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(tmp_path / "page.md"))
    page, junit = tmp_path / "mine.md", tmp_path / "j.xml"
    done = builder("smoke", "hello-sm120", "--junit", junit, "--summary", page, "--json")
    assert done.returncode == 0, done.stderr
    count = len(json.loads(done.stdout)["verdict"]["checks"])
    suite = ElementTree.parse(junit).getroot()[0]
    assert int(suite.get("tests") or 0) == count > 60
    assert (tmp_path / "page.md").read_text() == page.read_text()


@pytest.mark.docker
def test_any_image_can_be_smoked_and_a_gpu_that_is_not_there_is_untried(
    builder: Builder, hello: dict[str, list[str]]
) -> None:
    image = hello["references"][0]
    done = builder("smoke", image, "--gpu", "--json")
    assert done.returncode == 8, done.stderr
    checks = json.loads(done.stdout)["verdict"]["checks"]
    (untried,) = [check for check in checks if check["passed"] is None]
    assert untried["kind"] == "gpu"
    assert "could not select device driver" in untried["found"]
    done = builder("smoke", "no-such-image:1")
    assert done.returncode == 4
    assert "neither a recipe nor an image" in done.stderr


def test_a_patch_without_a_probe_is_a_warning_and_with_strict_an_error(builder: Builder) -> None:
    done = builder("recipe", "check")
    assert done.returncode == 0, done.stderr
    assert "atomic-b8995.toml:" in done.stdout
    assert "pull 6 has no probe" in done.stdout
    done = builder("recipe", "check", "--strict")
    assert done.returncode == 3
    assert "3 of 26 recipes are wrong: atomic-b8995" in done.stderr
    assert builder("recipe", "check", "--strict", "beellama-0.1.1").returncode == 0
    done = builder("recipe", "check", "nobody")
    assert done.returncode == 3
    assert "no recipe is named nobody" in done.stderr


TABLE = "NVIDIA GeForce RTX 5090, 12.0, 580.95.05, 32607\nNVIDIA H200, 9.0, 580.95.05, 143771\n"


def test_what_nvidia_smi_tells_is_held_to_the_recipe() -> None:
    from support.smoke_tests import hello_recipe

    found = gpus.read(TABLE)
    assert [gpu.memory for gpu in found] == [32607, 143771]
    recipe = hello_recipe()
    right = list(gpu._devices(found, recipe, "580"))
    assert [(check.subject, check.passed) for check in right] == [
        ("device", True),
        ("driver", True),
    ]
    wrong = list(gpu._devices(found[1:], recipe, "590"))
    assert [check.passed for check in wrong] == [False, False]
    assert wrong[0].expected == "compute capability 12.0"
    assert wrong[0].found == "NVIDIA H200 (9.0)"
    assert [check.passed for check in gpu._devices((), recipe, "580")] == [False]
    for text in ("No devices were found\n", "a, b\n"):
        with pytest.raises(UntriedError, match="something unknown"):
            gpus.read(text)


@pytest.mark.parametrize(
    ("arch", "capability"),
    [("120", "12.0"), ("120a-real", "12.0"), ("90", "9.0"), ("121f", "12.1")],
)
def test_an_architecture_is_a_compute_capability(arch: str, capability: str) -> None:
    assert gpu.capability_of(arch) == capability


def runs(*speeds: float, accepted: tuple[int, ...] = ()) -> list[Generation]:
    shares = accepted or (7,) * len(speeds)
    return [
        Generation(100, speed, 10, 1.0, seed, drafted=10, accepted=share)
        for seed, (speed, share) in enumerate(zip(speeds, shares, strict=True))
    ]


def test_the_collapse_test_says_which_it_is() -> None:
    speed, drafts = gpu.check_runs(runs(53, 55, 11), "steady")
    assert not speed.passed
    assert speed.found.startswith("collapse: 2 fast, 1 slow: 54 and 11; mean 39.67 t/s")
    assert "(53.0 55.0 11.0)" in speed.found
    assert drafts.passed
    speed, drafts = gpu.check_runs(runs(50, 51, 50, 49, accepted=(7, 7, 0, 0)), "steady")
    assert speed.passed
    assert not drafts.passed
    assert drafts.found.startswith("collapse: runs 3 to 4 have 0, 0% of the 0.7 of runs 1 to 2")


def test_a_status_fits_a_terminal_and_tells_the_last_night(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    good = Night("vllm-nightly", "nightly", "moved", "2026-11-20T03:10:00+00:00", 1.0)
    reason = "vllm-nightly-3f2a91c0d1aa is built, and 1 of 40 checks failed\nclosure: " + "x" * 200
    failed = replace(good, outcome="failed", started="2026-11-21T03:10:00+00:00", reason=reason)
    served = Served(f"sha256:{'7' * 64}", "2026-11-20T03:52:00+00:00", {})
    status = Status(
        "vllm-tokenspeed-preview",
        "registry.example.org:5000/farm/vllm-sm120",
        "tokenspeed-preview",
        channel=True,
        served=served,
        upstream="vllm/vllm-openai:nightly",
        commit=f"sha256:{'a' * 64}",
        commits=12,
        days=11,
        limit=13,
        good=good,
        failed=failed,
        problem="what upstream has is not known: " + "y" * 200,
    )
    said = io.StringIO()
    terminal = Console(file=said, force_terminal=True, width=120, soft_wrap=True, no_color=True)
    monkeypatch.setattr(console, "out", terminal)
    overview = tables.of_statuses([status])
    console.table(overview.header, overview.rows)
    lines = [*Text.from_ansi(said.getvalue()).plain.splitlines(), *overview.notes]
    assert len(lines) == 5
    assert max(map(len, lines)) <= 120
    told = "last night 2026-11-21 03:10: failed; last good: 2026-11-20 03:10"
    assert overview.notes[0].endswith(told)
    assert overview.notes[1].endswith("is built, and 1 of 40 checks failed")
    assert told in markdown.of_table(overview)
    (note,) = tables.of_statuses([replace(status, failed=None, problem="")]).notes
    assert note.endswith("last night 2026-11-20 03:10: moved")
