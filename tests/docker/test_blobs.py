"""An image read from the engine's store and from `docker image save`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from builder.smoke.reading import read
from builder.tools.docker.blobs import blobs_of


@pytest.mark.docker
def test_an_image_is_the_same_in_the_store_and_saved(
    hello: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reference = hello["references"][0]
    stored = blobs_of(reference, tmp_path)
    assert tmp_path not in stored.folder.parents
    monkeypatch.setattr("builder.tools.docker.blobs.CONTENT", "not-here")
    saved = blobs_of(reference, tmp_path)
    assert tmp_path in saved.folder.parents
    assert read(stored, tmp_path) == read(saved, tmp_path)
