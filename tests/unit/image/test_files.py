"""Directories and single files compared."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from builder.core.errors import WorldError
from builder.image.compare import FILE, Comparison, compare_trees, read_files
from support.cubins import Function, cubin
from support.fatbins import ELF, entry, library, region


def compared(before: Path, after: Path) -> Comparison:
    return compare_trees(read_files(before), read_files(after), before.parent)


@pytest.fixture
def folders(tmp_path: Path) -> tuple[Path, Path]:
    found = tmp_path / "before", tmp_path / "after"
    for folder in found:
        (folder / "lib").mkdir(parents=True)
        (folder / "lib/same").write_text("same")
        os.utime(folder / "lib/same", (1, 1))
        os.utime(folder / "lib", (1, 1))
    return found


def test_equal_directories(folders: tuple[Path, Path]) -> None:
    found = compared(*folders)
    assert (found.equal, found.files, found.digests) == (2, (), None)
    assert found.same(times=True)


def test_links_modes_and_contents(folders: tuple[Path, Path]) -> None:
    before, after = folders
    (before / "link").symlink_to("lib/same")
    (after / "link").symlink_to("lib/other")
    (after / "lib/same").chmod(0o600)
    (before / "folder").mkdir()
    (after / "folder").write_text("a file")
    os.link(before / "lib/same", before / "lib/second")
    (after / "lib/second").write_text("same")
    found = {each.path: {*each.aspects} - {"time"} for each in compared(*folders).differing()}
    assert found == {
        "/folder": {"kind", "content", "mode"},
        "/lib/same": {"mode", "hard link"},
        "/lib/second": {"hard link"},
        "/link": {"target"},
    }


def test_a_file_of_another_name(tmp_path: Path) -> None:
    (tmp_path / "one").write_bytes(b"\0\1\2")
    (tmp_path / "two").write_bytes(b"\0\1\2\3")
    (changed,) = compared(tmp_path / "one", tmp_path / "two").files
    assert (changed.path, changed.lines) == (FILE, None)


def test_a_link_to_what_is_compared_is_followed(tmp_path: Path) -> None:
    (tmp_path / "one").write_text("1")
    (tmp_path / "link").symlink_to("one")
    assert compared(tmp_path / "one", tmp_path / "link").same(times=True)


def gpu_library(*names: str) -> bytes:
    return library(region(entry(ELF, 120, 0, cubin(*map(Function, names))))).getvalue()


def test_a_library_with_another_version_in_its_name_is_compared(
    folders: tuple[Path, Path],
) -> None:
    before, after = folders
    (before / "lib/libggml-cuda.so.0.9.4").write_bytes(gpu_library("_Z1av"))
    (after / "lib/libggml-cuda.so.0.9.5").write_bytes(gpu_library("_Z1av", "_Z1bv"))
    (before / "lib/notes.so.1").write_text("no library")
    (after / "lib/notes.so.2").write_text("no library")
    found = {each.path: each for each in compared(*folders).differing()}
    assert {path: each.state for path, each in found.items()} == {
        "/lib/libggml-cuda.so.0.9.5": "changed",
        "/lib/notes.so.1": "removed",
        "/lib/notes.so.2": "added",
    }
    changed = found["/lib/libggml-cuda.so.0.9.5"]
    assert changed.former == "/lib/libggml-cuda.so.0.9.4"
    assert changed.aspects[:2] == ("name", "content")
    assert changed.code is not None
    assert [each.name for each in changed.code.functions] == ["b()"]


def test_code_of_an_added_library_is_counted(folders: tuple[Path, Path]) -> None:
    (folders[1] / "lib/liba.so").write_bytes(gpu_library("_Z1av"))
    (added,) = compared(*folders).differing()
    assert added.code is not None
    assert [(each.before, each.after) for each in added.code.totals] == [(0, 1)]
    assert not compared(*folders).same_code


def test_a_damaged_library_is_named_and_the_others_are_compared(
    folders: tuple[Path, Path],
) -> None:
    good, bad = gpu_library("_Z1av"), gpu_library("_Z1bv")
    for folder, content in zip(folders, (good, bad), strict=True):
        (folder / "damaged").write_bytes(content[: len(content) - 300])
        (folder / "whole").write_bytes(content)
    damaged, whole = compared(*folders).differing()
    assert "past the end" in damaged.unread
    assert damaged.code is None
    assert whole.code is not None
    assert not whole.unread


def test_an_elf_file_in_the_place_of_a_script(folders: tuple[Path, Path]) -> None:
    (folders[0] / "program").write_text("#!/bin/sh\n")
    (folders[1] / "program").write_bytes(gpu_library("_Z1av"))
    (changed,) = compared(*folders).differing()
    assert changed.elf is None
    assert changed.code is not None
    assert [(each.before, each.after) for each in changed.code.totals] == [(0, 1)]


def test_what_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(WorldError, match="cannot read"):
        read_files(tmp_path / "gone")


def test_a_fifo_is_not_read(folders: tuple[Path, Path]) -> None:
    for folder in folders:
        os.mkfifo(folder / "fifo")
    (folders[1] / "fifo").chmod(0o600)
    (changed,) = compared(*folders).differing()
    assert changed.aspects[:1] == ("mode",)


def test_extended_attributes(folders: tuple[Path, Path]) -> None:
    os.setxattr(folders[1] / "lib/same", "user.note", b"x")
    (changed,) = compared(*folders).differing()
    assert changed.aspects == ("attributes",)
    assert changed.after is not None
    assert changed.after.attributes == (("user.note", "78"),)
