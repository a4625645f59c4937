"""A wheel whose texts are read in parts: the same tree, held to its RECORD, or all of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from builder.core.errors import FetchError
from support.indexes import wheel
from support.shelves import FILES, TEXTS, Shelf


def test_the_tree_is_that_of_the_whole_wheel_for_a_part_of_its_bytes(shelf: Shelf) -> None:
    source = shelf.put()
    tree, note = shelf.to_try(source)
    assert "thing 1.0 was read in part" in note
    assert shelf.index.sent < 2_500_000
    assert shelf.kept() == []
    assert shelf.to_build(source) == tree
    assert shelf.kept() == ["thing-1.0-py3-none-any.whl"]


def test_a_whole_wheel_in_the_cache_is_read_there(shelf: Shelf) -> None:
    source = shelf.put()
    tree, _ = shelf.to_try(source)
    shelf.to_build(source)
    shelf.index.asked.clear()
    assert shelf.to_try(source) == (tree, "")
    assert shelf.to_try(source, offline=True) == (tree, "")
    assert shelf.index.asked == []


def test_offline_what_was_never_read_is_named(shelf: Shelf) -> None:
    with pytest.raises(FetchError, match=r"not in the cache: thing 1\.0"):
        shelf.to_try(shelf.put(), offline=True)


@pytest.mark.parametrize("fault", ["none", "other", 416])
def test_a_server_that_gives_no_parts_gives_all_of_it(shelf: Shelf, fault: str | int) -> None:
    source = shelf.put()
    shelf.index.ranges = fault != "none"
    shelf.index.faults = [fault, "other"] if fault == 416 else ["", fault]
    _, note = shelf.to_try(source)
    assert note == ""
    assert any("thing 1.0 is fetched as a whole: " in said for said in shelf.said)
    assert shelf.kept() == ["thing-1.0-py3-none-any.whl"]


@pytest.mark.parametrize("faults", [[503], [429, 500], ["", "cut"], ["cut", "", 503]])
def test_a_server_that_falters_is_asked_again(shelf: Shelf, faults: list[int | str]) -> None:
    source = shelf.put()
    shelf.index.faults = list(faults)
    _, note = shelf.to_try(source)
    assert "was read in part" in note
    assert shelf.index.faults == []


def test_a_server_that_says_no_is_told(shelf: Shelf) -> None:
    source = shelf.put()
    shelf.index.faults = [403]
    with pytest.raises(FetchError, match=r"cannot fetch thing 1\.0"):
        shelf.to_try(source)


@pytest.mark.parametrize(
    ("path", "said"),
    [("thing/part7.py", "thing/part7.py does not match its RECORD"), ("", "METADATA does not")],
)
def test_parts_that_are_not_those_of_the_record_make_it_fetch_all(
    shelf: Shelf, path: str, said: str
) -> None:
    """The wheel is the pinned one, and its RECORD, or what the index says of it, is wrong."""
    content = wheel("thing", "1.0", FILES, recorded={path: b"other"})
    metadata = {} if path else {"core-metadata": {"sha256": "0" * 64}}
    source = shelf.put(content, **metadata)
    tree, note = shelf.to_try(source)
    assert note == ""
    assert any(said in line for line in shelf.said)
    assert tree == shelf.to_build(source)


def test_what_was_altered_is_refused(shelf: Shelf) -> None:
    source = shelf.put()
    other = {**FILES, "thing/part7.py": b"import os\n"}
    (name,) = shelf.index.files
    page = shelf.index.page("thing")["files"]
    shelf.index.about[name] = {"hashes": page[0]["hashes"]}
    shelf.index.files[name] = wheel("thing", "1.0", other, recorded=FILES)
    with pytest.raises(FetchError, match="does not have the pinned digest"):
        shelf.to_try(source)


@pytest.mark.parametrize("path", ["../owned.py", "/tmp/owned-by-wheel.py"])
def test_a_hostile_wheel_is_refused(shelf: Shelf, path: str) -> None:
    with pytest.raises(FetchError, match="outside"):
        shelf.to_try(shelf.put(wheel("thing", "1.0", {path: b"x\n", **TEXTS})))
    assert not [*shelf.folder.rglob("owned*"), *Path("/tmp").glob("owned-by-wheel*")]


@pytest.mark.parametrize("content", [b"no zip", b"", b"PK\x05\x06" + b"\xff" * 18])
def test_a_broken_wheel_is_refused(shelf: Shelf, content: bytes) -> None:
    with pytest.raises(FetchError):
        shelf.to_try(shelf.put(content or b" "))
