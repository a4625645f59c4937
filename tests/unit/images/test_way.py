"""The way of a compile, in words, and how long it took the last time."""

from __future__ import annotations

from pathlib import Path

import pytest

from builder.errors import WorldError
from builder.images import way
from builder.images.way import Way
from builder.platforms import Platforms
from builder.settings import Settings
from builder.tools.docker import buildx
from support.buildx_output import use_arm64_builder


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


def test_a_build_without_an_emulator_is_refused_before_it_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_arm64_builder(tmp_path, monkeypatch)
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
