"""The command `smoke`: its report files, and images of the engine by name."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any
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


def test_a_gpu_that_is_not_there_is_untried_and_the_good_verdict_stays(
    builder: Builder, hello: dict[str, Any], tmp_path: Path
) -> None:
    shutil.copytree(hello["state"] / "records", tmp_path / "state" / "records")
    done = builder("smoke", "hello-sm120", "--gpu", "--json")
    assert done.returncode == 8, done.stderr
    assert "the earlier good verdict stays recorded" in done.stderr
    assert "nvidia-ctk runtime configure --runtime=docker" in done.stderr
    again = builder("build", "hello-sm120", "--json")
    assert again.returncode == 0, again.stderr
    assert json.loads(again.stdout)["checked"] is False  # it was verified
    checks = json.loads(done.stdout)["verdict"]["checks"]
    (untried,) = [check for check in checks if check["passed"] is None]
    assert untried["kind"] == "gpu"
    assert "could not select device driver" in untried["found"]


def test_a_name_that_is_no_image_is_refused(builder: Builder) -> None:
    done = builder("smoke", "no-such-image:1")
    assert done.returncode == 4
    assert "neither a recipe nor an image" in done.stderr
