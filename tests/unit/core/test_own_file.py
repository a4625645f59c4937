"""A file is opened only where nobody else has a hand in it."""

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
        assert f"it is a link to {target}" in refused(file)
        file.unlink()
    assert other.read_bytes() == b"mine"
    assert not (tmp_path / "absent").exists()


def test_what_is_no_file_of_ours_alone(tmp_path: Path) -> None:
    fifo, folder, second = tmp_path / "fifo", tmp_path / "folder", tmp_path / "second"
    os.mkfifo(fifo)
    folder.mkdir()
    (tmp_path / "first").write_bytes(b"mine")
    second.hardlink_to(tmp_path / "first")
    for each in (fifo, folder, second):
        refused(each)
    assert (tmp_path / "first").read_bytes() == b"mine"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_a_file_of_another_user(tmp_path: Path) -> None:
    file = tmp_path / "b.part"
    file.write_bytes(b"theirs")
    os.chown(file, 12345, 12345)
    assert "another user's file" in refused(file)
    os.chown(tmp_path, 12345, 12345)  # root continues what the directory's owner began
    with own_file(file) as stream:
        stream.write(b"!")


def test_a_directory_where_everybody_replaces_files(tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    assert "chmod o-w" in refused(tmp_path / "b.part")
    tmp_path.chmod(0o1777)
    with own_file(tmp_path / "b.part"):
        pass


def test_a_file_in_the_place_of_a_directory(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"")
    refused(tmp_path / "a" / "b.part")
    refused(tmp_path / "a" / "b" / "c.part")
