"""The command `smoke`: its report files, and images of the engine by name."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest

from support.commands import Builder

pytestmark = pytest.mark.docker


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
