"""The way of a compile, in words, and how long it took the last time."""

from __future__ import annotations

from pathlib import Path

import pytest

from builder.errors import WorldError
from builder.images import way
from builder.images.way import Way
from builder.platforms import Platforms
from builder.records import record
from builder.records.record import Record
from builder.settings import Settings
from builder.smoke.verdict import Check, Verdict
from builder.tools.docker import buildx

DIGEST = "sha256:" + "0" * 64


@pytest.mark.parametrize(
    ("found", "name", "text"),
    [
        (Way(Platforms("amd64"), "amd64"), "native", "native: compiled on linux/amd64"),
        (
            Way(Platforms("arm64"), "arm64"),
            "cross",
            "cross: compiled on linux/arm64 for linux/amd64",
        ),
        (
            Way(Platforms("amd64"), "amd64", "big"),
            "remote native",
            "remote native: compiled on linux/amd64 by the builder big",
        ),
        (
            Way(Platforms("amd64"), "arm64"),
            "emulated",
            "emulated: compiled on linux/amd64 (emulated on arm64)",
        ),
        (
            Way(Platforms("arm64"), "amd64", "big"),
            "remote cross emulated",
            "remote cross emulated: compiled on linux/arm64 (emulated on amd64) for linux/amd64 "
            "by the builder big",
        ),
    ],
)
def test_a_way_has_a_name_and_a_text(found: Way, name: str, text: str) -> None:
    assert (found.name, found.text) == (name, text)


def kept(state: Path, recipe: str, key: str, way_name: str, created: str, seconds: float) -> None:
    verdict = Verdict(DIGEST, (Check("runs", "x", "0", "0", passed=True),), 0, 0)
    found = Record(
        recipe=recipe,
        key=key,
        contract="",
        references=(),
        digest=DIGEST,
        verdict=verdict,
        created=created,
        seconds={f"build {recipe}": seconds},
        way=way_name,
    )
    record.write(state, found)


def test_the_last_time_is_that_of_the_same_way(tmp_path: Path) -> None:
    native, cross = Way(Platforms("amd64"), "amd64"), Way(Platforms("arm64"), "arm64")
    assert way.last_time(tmp_path, native) == ""
    kept(tmp_path, "a-1", "1" * 64, "native", "2026-11-20T00:00:00+00:00", 5.0)
    kept(tmp_path, "a-1", "2" * 64, "cross", "2026-11-21T00:00:00+00:00", 90.0)
    kept(tmp_path, "b-1", "3" * 64, "native", "2026-11-22T00:00:00+00:00", 7.0)
    assert way.last_time(tmp_path, native, "a-1") == "a-1: 5.0 s"
    assert way.last_time(tmp_path, cross, "a-1") == "a-1: 1 min 30 s"
    assert way.last_time(tmp_path, native) == "b-1: 7.0 s"


FAKE = """#!/usr/bin/env python3
import json, sys
print("Driver: docker\\nPlatforms: {platforms}" if "inspect" in sys.argv else json.dumps({{}}))
"""
"""A client that knows one builder, of which it prints what buildx prints."""


@pytest.fixture
def listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    client = tmp_path / "docker"
    client.write_text(FAKE.format(platforms="linux/arm64*, linux/arm/v7"))
    client.chmod(0o755)
    monkeypatch.setattr("builder.tools.docker.engine.executable", lambda: str(client))


@pytest.mark.usefixtures("listed")
def test_a_build_without_an_emulator_is_refused_before_it_starts() -> None:
    settings = Settings(buildx="mac")
    assert buildx.platforms("mac") == ["linux/arm64", "linux/arm/v7"]
    way.require_emulators(Way(Platforms("arm64", "arm64"), "arm64"), settings)
    with pytest.raises(WorldError) as cross:
        way.require_emulators(Way(Platforms("arm64"), "arm64"), settings)
    assert "runs no programs of linux/amd64" in str(cross.value)
    assert "the compile needs no emulation" in str(cross.value)
    with pytest.raises(WorldError) as emulated:
        way.require_emulators(Way(Platforms("amd64"), "arm64"), settings)
    assert "emulated on arm64" in str(emulated.value)
    assert "qemu-user-static" in str(emulated.value)


@pytest.mark.usefixtures("listed")
def test_doctor_shows_the_way_to_each_platform() -> None:
    amd64, arm64 = way.findings(Settings(buildx="mac"))
    assert (amd64.what, amd64.state) == ("way", "missing")
    assert "remote cross: compiled on linux/arm64 for linux/amd64" in amd64.found
    assert (arm64.what, arm64.state) == ("way to linux/arm64", "has")
    assert arm64.found == "remote native: compiled on linux/arm64 by the builder mac"
    # Most recipes need no image for arm64.
    _, arm64 = way.findings(Settings(buildx="mac", compile_on="amd64"))
    assert (arm64.state, "qemu-user-static" in arm64.advice) == ("could", True)
