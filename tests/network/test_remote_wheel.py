"""A wheel of the real package index, read in part."""

from __future__ import annotations

from pathlib import Path

import pytest

from builder.plan.inputs import PypiFile
from builder.recipes.locks import PinnedFile
from support.indexes import served
from support.shelves import Shelf


@pytest.mark.network
def test_a_wheel_of_the_real_index(tmp_path: Path) -> None:
    digest = "8abb2f1d86890a2dfb989f9a77cfcfd3e47c2a354b01111771326f8aa26e0254"  # six 1.16.0
    source = PypiFile(PinnedFile("six", "1.16.0", digest), ".", texts_only=True)
    with served() as index:
        shelf = Shelf(index, tmp_path)
        tree, note = shelf.to_try(source)
        assert "six 1.16.0 was read in part" in note
        assert shelf.to_build(source) == tree
