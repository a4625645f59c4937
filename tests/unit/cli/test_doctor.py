"""`doctor`."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from builder.cli.nightly import ways
from builder.core.settings import Settings
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
        "mmdebstrap",
        "Debian packages",
    } <= found.keys()
    for item in found.values():
        assert item["state"] == "has" or item["advice"], item


@pytest.mark.parametrize(
    ("script", "state", "found", "advice"),
    [
        ("exit 1", "could", "nvidia-smi finds no GPU", "only needed to run an engine on a GPU"),
        ("echo A card, 12.0, 590.44.01, 32607", "has", "590.44.01: A card", ""),
        (
            "echo A card, 12.0, 570.86, 32607",
            "could",
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


def test_the_servers_of_debian_packages_are_named(
    builder: Builder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BUILDER_DEBIAN_MIRROR", "http://mirror.example.invalid")
    monkeypatch.setenv("BUILDER_DEBIAN_SNAPSHOT", "http://old.example.invalid")
    lines = json.loads(builder("doctor", "--json").stdout)
    (found,) = (each for each in lines if each["what"] == "Debian packages")
    names = "mirror.example.invalid (BUILDER_DEBIAN_MIRROR), else from http://old.example.invalid"
    assert (found["state"], found["found"]) == ("has", f"from {names}")


def test_doctor_shows_the_way_to_each_platform(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_arm64_builder(tmp_path, monkeypatch)
    amd64, arm64 = ways(Settings(buildx="mac"))
    assert (amd64.what, amd64.state) == ("way", "missing")
    assert "remote cross: compiled on linux/arm64 for linux/amd64" in amd64.found
    assert (arm64.what, arm64.state) == ("way to linux/arm64", "has")
    assert arm64.found == "remote native: compiled on linux/arm64 by the builder mac"
    # Most recipes need no image for arm64.
    _, arm64 = ways(Settings(buildx="mac", compile_on="amd64"))
    assert (arm64.state, "qemu-user-static" in arm64.advice) == ("could", True)
