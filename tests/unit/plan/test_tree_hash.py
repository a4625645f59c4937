"""The identity of a source tree: names, contents and links."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from builder.core.errors import FetchError
from builder.plan import inputs


def tree_of(folder: Path, files: dict[str, str]) -> str:
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(content)
    return inputs.identity(folder)


def test_a_tree_may_not_lead_out_of_itself(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    (tree / "a").mkdir(parents=True)
    (tree / "a" / "up").symlink_to("../b")
    inputs.identity(tree)
    for target in ("../../out", "/etc/passwd"):
        (tree / "link").symlink_to(target)
        with pytest.raises(FetchError, match="outside its tree"):
            inputs.identity(tree)
        (tree / "link").unlink()
    os.mkfifo(tree / "pipe")
    with pytest.raises(FetchError, match="neither a file nor a link"):
        inputs.identity(tree)


def test_a_tree_is_its_names_and_contents(tmp_path: Path) -> None:
    kinds = [
        {"a": "x", "b": "y"},
        {"a": "y", "b": "x"},
        {"a": "xy", "b": ""},
        {"a": "x", "c": "y"},
        {"a": "x", "d/b": "y"},
        {"a": "x"},
    ]
    found = [tree_of(tmp_path / str(number), files) for number, files in enumerate(kinds)]
    assert len(set(found)) == len(kinds)
    assert tree_of(tmp_path / "again", kinds[0]) == found[0]


def test_a_link_is_not_what_it_leads_to(tmp_path: Path) -> None:
    found = set()
    for number, target in enumerate(["a", "b", None]):
        folder = tmp_path / str(number)
        tree_of(folder, {"a": "x", "b": "x"})
        if target:
            (folder / "c").symlink_to(target)
        else:
            (folder / "c").write_text("x")
        found.add(inputs.identity(folder))
    assert len(found) == 3


def test_names_that_are_not_utf_8_are_names(tmp_path: Path) -> None:
    tree = os.fsencode(tmp_path)
    Path(os.fsdecode(tree + b"/file\xff")).touch()
    one = inputs.identity(tmp_path)
    Path(os.fsdecode(tree + b"/link\xff")).symlink_to(os.fsdecode(b"file\xff"))
    assert inputs.identity(tmp_path) != one


def test_a_link_to_itself_is_an_error_and_no_crash(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    try:
        inputs.identity(tmp_path)
    except FetchError as error:
        assert "is a broken link" in str(error)  # noqa: PT017  (Python 3.13 and later take it)
