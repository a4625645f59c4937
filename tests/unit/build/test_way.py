"""The way of a compile, in words, and how long it took the last time."""

from __future__ import annotations

from pathlib import Path

import pytest

from builder.core.errors import WorldError
from builder.core.platforms import Platforms
from builder.docker import buildx
from builder.docker.buildx import Builder, way_name, way_text
from support.buildx_output import use_arm64_builder

AMD64 = Builder("default", "x86_64")
ARM64 = Builder("default", "aarch64")
BIG = Builder("big", "amd64", is_engine=False)


@pytest.mark.parametrize(
    ("platforms", "builder", "name", "text"),
    [
        (Platforms("amd64"), AMD64, "native", "native: compiled on linux/amd64"),
        (
            Platforms("arm64"),
            ARM64,
            "cross",
            "cross: compiled on linux/arm64 for linux/amd64",
        ),
        (
            Platforms("amd64"),
            BIG,
            "remote native",
            "remote native: compiled on linux/amd64 by the builder big",
        ),
        (
            Platforms("amd64"),
            ARM64,
            "emulated",
            "emulated: compiled on linux/amd64 (emulated on arm64)",
        ),
        (
            Platforms("arm64"),
            BIG,
            "remote cross emulated",
            "remote cross emulated: compiled on linux/arm64 (emulated on amd64) for linux/amd64 "
            "by the builder big",
        ),
    ],
)
def test_a_way_has_a_name_and_a_text(
    platforms: Platforms, builder: Builder, name: str, text: str
) -> None:
    assert (way_name(platforms, builder), way_text(platforms, builder)) == (name, text)


def test_a_build_without_an_emulator_is_refused_before_it_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_arm64_builder(tmp_path, monkeypatch)
    mac = buildx.builder("mac")
    assert buildx.platforms_of("mac") == ["linux/arm64", "linux/arm/v7"]
    buildx.require_emulators(Platforms("arm64", "arm64"), mac)
    with pytest.raises(WorldError) as cross:
        buildx.require_emulators(Platforms("arm64"), mac)
    assert "runs no programs of linux/amd64" in str(cross.value)
    assert "the compile needs no emulation" in str(cross.value)
    with pytest.raises(WorldError) as emulated:
        buildx.require_emulators(Platforms("amd64"), mac)
    assert "emulated on arm64" in str(emulated.value)
    assert "qemu-user-static" in str(emulated.value)
