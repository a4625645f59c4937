"""`doctor`."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from builder.cli.nightly import ways
from builder.core.settings import Settings
from builder.measure.doctor import Finding, State, can_build, can_run
from support.buildx_output import use_arm64_builder
from support.commands import Builder


def test_doctor_looks_at_everything(builder: Builder) -> None:
    found = {item["what"]: item for item in json.loads(builder("doctor", "--json").stdout)}
    assert {
        "buildx",
        "NVIDIA driver",
        "memory",
        "cores",
        "disk of the cache",
        "disk of the state",
        "mmdebstrap",
        "Debian packages",
    } <= found.keys()
    for item in found.values():
        assert item["state"] == "ok" or item["advice"], item


@pytest.mark.parametrize(
    ("script", "state", "found", "advice"),
    [
        ("exit 1", "optional", "nvidia-smi finds no GPU", "only needed to run an engine on a GPU"),
        ("echo A card, 12.0, 590.44.01, 32607", "ok", "590.44.01: A card", ""),
        (
            "echo A card, 8.6, 590.44.01, 24576",
            "optional",
            "590.44.01: A card",
            "the images are for RTX 50xx and cards of the same generation",
        ),
        (
            "echo A card, 12.0, 570.86, 32607",
            "optional",
            "570.86: A card",
            "of the images, CUDA 12 needs 570 or newer, CUDA 13 needs 580 or newer",
        ),
    ],
)
def test_the_driver_is_compared_with_the_cuda_of_the_images(
    builder: Builder,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    script: str,
    state: str,
    found: str,
    advice: str,
) -> None:
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "nvidia-smi").write_text(f"#!/bin/sh\n{script}\n")
    (folder / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    lines = json.loads(builder("doctor", "--json").stdout)
    (told,) = (each for each in lines if each["what"] == "NVIDIA driver")
    assert (told["state"], told["found"].rstrip(": "), told["advice"]) == (state, found, advice)


def test_the_answers_come_first(
    builder: Builder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/nothing")
    monkeypatch.setenv("BUILDER_STATE_DIR", "/proc/nope")
    done = builder("doctor")
    assert done.returncode == 4
    build, gpu, empty, first = done.stdout.splitlines()[:4]
    assert build.startswith("can build:         no: engine: Docker does not answer: ")
    assert "; state directory: /proc/nope: No such file or directory" in build
    assert (gpu, empty) == ("can run on a GPU:  no, because this machine has no NVIDIA GPU", "")
    assert first.startswith("missing   ")
    assert (
        "          -> set BUILDER_STATE_DIR to a directory that you can write to\n" in done.stdout
    )


def test_doctor_says_why_no_gpu_can_be_used() -> None:
    def finding(what: str, state: State, why: str = "") -> Finding:
        return Finding(what, state, "", "", why)

    good = [finding("NVIDIA driver", "ok"), finding("GPU runtime", "ok")]
    assert (can_build(good), can_run(good)) == ("yes", "yes")
    bad = [good[0], finding("GPU runtime", "optional", "Docker has no NVIDIA runtime")]
    assert (can_build(bad), can_run(bad)) == ("yes", "no, because Docker has no NVIDIA runtime")


def test_the_servers_of_debian_packages_are_named(
    builder: Builder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BUILDER_DEBIAN_MIRROR", "http://mirror.example.invalid")
    monkeypatch.setenv("BUILDER_DEBIAN_SNAPSHOT", "http://old.example.invalid")
    lines = json.loads(builder("doctor", "--json").stdout)
    (found,) = (each for each in lines if each["what"] == "Debian packages")
    names = "mirror.example.invalid (BUILDER_DEBIAN_MIRROR), else from http://old.example.invalid"
    assert (found["state"], found["found"]) == ("ok", f"from {names}")


def test_doctor_shows_the_way_to_each_platform(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_arm64_builder(tmp_path, monkeypatch)
    amd64, arm64 = ways(Settings(buildx="mac"))
    assert (amd64.what, amd64.state) == ("builds for linux/amd64", "missing")
    assert "remote cross: compiled on linux/arm64 for linux/amd64" in amd64.found
    assert (arm64.what, arm64.state) == ("builds for linux/arm64", "ok")
    assert arm64.found == "remote native: compiled on linux/arm64 by the builder mac"
    # Most recipes need no image for arm64.
    _, arm64 = ways(Settings(buildx="mac", compile_on="amd64"))
    assert (arm64.state, "qemu-user-static" in arm64.advice) == ("optional", True)
