"""The directory of a bake file: replaced completely or not at all, and never somebody else's."""

from __future__ import annotations

from pathlib import Path

import pytest

from builder.bake import directory
from builder.bake.bakefile import CONTEXTS, FILE, VARIABLE
from builder.errors import WorldError

WRITTEN = f'{{"variable": {{"{VARIABLE}": {{}}}}}}'


def write(new: Path, text: str) -> None:
    (new / FILE).write_text(WRITTEN)
    (new / CONTEXTS / "x").write_text(text)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "baked"
    made.mkdir()
    return made


def test_the_second_bake_replaces_the_first(folder: Path) -> None:
    for text in ("first", "second"):
        directory.require_usable(folder)
        with directory.replaced(folder) as new:
            assert [path.name for path in (new / CONTEXTS).iterdir()] == [directory.MARKER]
            write(new, text)
    assert (folder / CONTEXTS / "x").read_text() == "second"
    assert {path.name for path in folder.iterdir()} == {FILE, CONTEXTS}


def test_a_bake_that_fails_leaves_the_earlier_one(folder: Path) -> None:
    with directory.replaced(folder) as new:
        write(new, "first")

    def fail() -> None:
        with directory.replaced(folder) as new:
            write(new, "second")
            raise ValueError("stopped")

    with pytest.raises(ValueError, match="stopped"):
        fail()
    assert (folder / CONTEXTS / "x").read_text() == "first"
    assert {path.name for path in folder.iterdir()} == {FILE, CONTEXTS}


def test_what_a_killed_run_left_is_removed(folder: Path) -> None:
    (folder / f"{directory.NEW}dead" / CONTEXTS).mkdir(parents=True)
    with directory.replaced(folder) as new:
        write(new, "x")
    assert {path.name for path in folder.iterdir()} == {FILE, CONTEXTS}


def test_files_of_somebody_else_are_refused(folder: Path) -> None:
    (folder / FILE).write_text('{"target": {}}')
    with pytest.raises(WorldError, match="exists and was not written by builder"):
        directory.require_usable(folder)
    (folder / FILE).write_text(WRITTEN)
    directory.require_usable(folder)
    (folder / CONTEXTS).mkdir()
    with pytest.raises(WorldError, match="exists and was not written by builder"):
        directory.require_usable(folder)


def test_one_directory_has_one_lock_whatever_its_spelling(folder: Path) -> None:
    (folder / "link").symlink_to(folder)
    assert directory.lock_name(folder / "link") == directory.lock_name(folder)
    assert directory.lock_name(folder / "x") != directory.lock_name(folder)
