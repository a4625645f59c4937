"""An image read from the engine's store and from `docker image save`."""

from __future__ import annotations

from pathlib import Path

import pytest

from builder.docker.containers import blobs_of
from builder.image.contents import read_contents
from support.smoke_tests import SmokeTest, small


@pytest.mark.docker
def test_an_image_is_the_same_in_the_store_and_saved(
    images: dict[str, str], smoke_test: SmokeTest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reference = smoke_test.build(small(images))
    stored = blobs_of(reference, tmp_path)
    assert tmp_path not in stored.folder.parents
    monkeypatch.setattr("builder.docker.containers.CONTENT", "not-here")
    saved = blobs_of(reference, tmp_path)
    assert tmp_path in saved.folder.parents
    assert read_contents(stored, tmp_path) == read_contents(saved, tmp_path)
