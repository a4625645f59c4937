"""A download is written to a file, and to nothing else that has its name."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from builder.core.errors import WorldError
from builder.core.files import own_file


def refused(file: Path) -> str:
    with pytest.raises(WorldError, match="cannot write to") as caught, own_file(file):
        pass
    assert caught.value.hint
    return str(caught.value)


def test_a_file_is_created_and_continued(tmp_path: Path) -> None:
    file = tmp_path / "a" / "b.part"
    for content in (b"one", b"two"):
        with own_file(file) as stream:
            stream.write(content)
    assert file.read_bytes() == b"onetwo"


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.write_bytes(b"mine")
    for target in (other, tmp_path / "absent"):
        file = tmp_path / "b.part"
        file.symlink_to(target)
        assert f"is a link to {target}" in refused(file)
        file.unlink()
    assert other.read_bytes() == b"mine"
    assert not (tmp_path / "absent").exists()


def test_what_is_no_file(tmp_path: Path) -> None:
    fifo, folder = tmp_path / "fifo", tmp_path / "folder"
    os.mkfifo(fifo)
    folder.mkdir()
    for each in (fifo, folder):
        refused(each)


def test_a_file_in_the_place_of_a_directory(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"")
    (tmp_path / "link").symlink_to("nowhere")
    for name in ("a/b.part", "a/b/c.part", "link/b.part"):
        assert f"`rm -r {tmp_path / name.partition('/')[0]}`" in refused(tmp_path / name)


def test_the_directory_of_another_is_never_to_be_removed() -> None:
    assert "rm -r" not in refused(Path("/proc/x.part"))
    assert "BUILDER_MODELS_DIR" in refused(Path("/proc/x/y.part"))
