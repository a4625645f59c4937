"""How long the last build took, and the ways that ``doctor`` shows."""

from __future__ import annotations

from pathlib import Path

import pytest

from builder.images.way import Way
from builder.pipeline.way import findings, last_time
from builder.platforms import Platforms
from builder.records import record
from builder.records.record import Record
from builder.settings import Settings
from builder.smoke.verdict import Check, Verdict
from support.buildx_output import use_arm64_builder

DIGEST = "sha256:" + "0" * 64


def kept(state: Path, recipe: str, key: str, way_name: str, created: str, seconds: float) -> None:
    verdict = Verdict(DIGEST, (Check.of("runs", "x", "0", "0", passed=True),), 0, 0)
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
    assert last_time(tmp_path, native) == ""
    kept(tmp_path, "a-1", "1" * 64, "native", "2026-11-20T00:00:00+00:00", 5.0)
    kept(tmp_path, "a-1", "2" * 64, "cross", "2026-11-21T00:00:00+00:00", 90.0)
    kept(tmp_path, "b-1", "3" * 64, "native", "2026-11-22T00:00:00+00:00", 7.0)
    assert last_time(tmp_path, native, "a-1") == "a-1: 5.0 s"
    assert last_time(tmp_path, cross, "a-1") == "a-1: 1 min 30 s"
    assert last_time(tmp_path, native) == "b-1: 7.0 s"


def test_doctor_shows_the_way_to_each_platform(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_arm64_builder(tmp_path, monkeypatch)
    amd64, arm64 = findings(Settings(buildx="mac"))
    assert (amd64.what, amd64.state) == ("way", "missing")
    assert "remote cross: compiled on linux/arm64 for linux/amd64" in amd64.found
    assert (arm64.what, arm64.state) == ("way to linux/arm64", "has")
    assert arm64.found == "remote native: compiled on linux/arm64 by the builder mac"
    # Most recipes need no image for arm64.
    _, arm64 = findings(Settings(buildx="mac", compile_on="amd64"))
    assert (arm64.state, "qemu-user-static" in arm64.advice) == ("could", True)
