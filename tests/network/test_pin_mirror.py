"""`pin mirror` keeps sources that upstream deletes."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.farms import Farm, states


@pytest.mark.network
def test_a_mirror_keeps_what_vanishes(
    farm: Farm, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from support.environment import SHARED_CACHE

    monkeypatch.setenv("BUILDER_CACHE_DIR", str(SHARED_CACHE))
    farm.write(farm.pull(6, **{"b.c": "c\n"}))
    out = farm.run("pin", "mirror")
    assert f"{farm.url} {farm.pin}" in out
    assert "pull 6 of" in out
    assert "cuda-13.0: nvidia-cuda-nvcc 13.0.88" in out
    farm.upstream.folder.rename(tmp_path / "gone")
    assert states(farm.json("patch", "check", "--offline"))["pin"] == "applies"
    farm.run("pin", "mirror", "eng", status=5)
    assert "eng-0.1.0: cannot fetch" in farm.said
