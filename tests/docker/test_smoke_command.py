"""The command `smoke`: its report files, and images of the engine by name."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from builder.docker import engine as docker
from support.commands import Builder
from support.smoke_tests import SmokeTest, small

pytestmark = pytest.mark.docker


def test_both_files_are_written_and_an_untried_gpu_leaves_the_good_verdict(
    builder: Builder, hello: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(hello["state"] / "records", tmp_path / "state" / "records")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(tmp_path / "page.md"))
    junit = tmp_path / "j.xml"
    done = builder("smoke", "hello-sm120", "--gpu", "--junit", junit, "--json")
    assert done.returncode == 8, done.stderr
    assert "the earlier good verdict stays recorded" in done.stderr
    assert "nvidia-ctk runtime configure --runtime=docker" in done.stderr
    again = builder("build", "hello-sm120", "--json")
    assert again.returncode == 0, again.stderr
    assert json.loads(again.stdout)["checked"] is False  # it was verified
    checks = json.loads(done.stdout)["verdict"]["checks"]
    (untried,) = [check for check in checks if check["state"] == "untried"]
    assert untried["kind"] == "gpu"
    assert "could not select device driver" in untried["found"]
    suite = ElementTree.parse(junit).getroot()[0]
    assert int(suite.get("tests") or 0) == len(checks) > 60
    assert "could not select device driver" in (tmp_path / "page.md").read_text()


def test_any_image_can_be_smoked(
    builder: Builder, images: dict[str, str], smoke_test: SmokeTest
) -> None:
    done = builder("smoke", images["small"], "--json")
    assert done.returncode == 7, done.stderr
    assert "architectures: /: expected: GPU code for sm_120; found: none at all" in done.stderr
    assert "and 1 of " in done.stderr
    assert "output" not in kinds(done.stdout)
    # Against the recipe in its label.
    labeled = smoke_test.build(small(images, "LABEL builder.recipe=hello-sm120-0.1.0\n"))
    done = builder("smoke", labeled, "--json")
    assert done.returncode == 7, done.stderr
    assert "output" in kinds(done.stdout)


def kinds(output: str) -> set[str]:
    return {check["kind"] for check in json.loads(output)["verdict"]["checks"]}


def test_a_name_that_is_no_image_is_refused(builder: Builder, tmp_path: Path) -> None:
    (model := tmp_path / "model.gguf").touch()
    done = builder("smoke", "no-such-image:1", "--model", model)
    assert (
        "--model and --draft are not used" in done.stderr
    ) is not docker.engine().has_nvidia_runtime
    assert done.returncode == 4
    assert "neither a recipe nor an image" in done.stderr
    assert "`docker pull no-such-image:1`" in done.stderr
    done = builder("smoke", "hello-sm12")
    assert done.returncode == 4
    assert "that Docker has; did you mean hello-sm120" in done.stderr
