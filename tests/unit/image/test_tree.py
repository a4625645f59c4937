"""Layers laid over each other: what is bounded, and what an error names.

What the engine makes of odd layers is in ``tests/docker/test_layers.py``.
"""

from __future__ import annotations

import pytest

from builder.image import layers
from builder.image.layers import DamagedImageError, LayerEntry, Node, final, first_names

FILE, FOLDER = Node("file"), Node("directory")


def link(target: str) -> Node:
    return Node("link", target=target)


def test_the_error_names_the_layer() -> None:
    below = [LayerEntry("/a", FILE)]
    with pytest.raises(DamagedImageError, match="layer 2: /b is a hard link to /a, which is not"):
        final([below, [LayerEntry("/b", FILE, shares="/a")]])


def test_links_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    chain = [LayerEntry(f"/{number}", link(f"{number + 1}")) for number in range(300)]
    near, far = LayerEntry("/50/x", FILE), LayerEntry("/40/x", FILE)
    assert "/300/x" in final([[*chain, near]])
    with pytest.raises(DamagedImageError, match="/40 has too many links"):
        final([[*chain, far]])
    bombs = [LayerEntry(f"/{n}", link("/".join([f"{n + 1}/.."] * 20))) for n in range(50)]
    with pytest.raises(DamagedImageError, match="too many links"):
        final([[*bombs, LayerEntry("/0/x", FILE)]])
    monkeypatch.setattr(layers, "MOST_STEPS", 100)
    with pytest.raises(DamagedImageError, match="too many links"):
        final(
            [
                [
                    LayerEntry("/a", link("b")),
                    *(LayerEntry(f"/a/{number}", FILE) for number in range(200)),
                ]
            ]
        )


def test_folders_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layers, "MOST_FOLDERS", 100)
    with pytest.raises(DamagedImageError, match="layer 1: more than 100 folders"):
        final([[LayerEntry("/a" * 101, FILE)]])


def test_whiteouts_of_a_layer_never_walk_its_own_files() -> None:
    own = [LayerEntry(f"/a/{number}", FILE) for number in range(10_000)]
    whiteouts = [LayerEntry("/a", FILE, "below")] * 10_000
    assert [*final([own, [*own, *whiteouts]])] == [each.path for each in own]


def test_the_first_name_stands_for_all() -> None:
    assert first_names({"/c": 1, "/b": 1, "/a": 2}) == {"/c": "/b", "/b": "/b"}
