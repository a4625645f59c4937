"""Files that are copied out of images, which may be hostile."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from builder.core.errors import UntriedError
from builder.docker import containers
from support.smoke_tests import SmokeTest

pytestmark = [pytest.mark.docker, pytest.mark.xdist_group("smoke")]

DOCKERFILE = """
FROM {devel}
RUN mkdir /x && cd /x && echo text >file && chmod 6755 file && mkdir folder && mkfifo pipe \\
 && mknod zero c 1 5 && ln -s /dev/null null && ln -s pipe to-pipe && ln -s zero to-zero \\
 && ln -s ../../x/file to-file && ln -s nothing to-nothing && ln -s round round
"""
NO_FILES = ("folder", "pipe", "zero", "to-pipe", "to-zero", "to-nothing", "round", "null", "none")


@pytest.fixture
def image(images: dict[str, str], smoke_test: SmokeTest) -> str:
    return smoke_test.build(DOCKERFILE.format(**images))


def test_files_come_with_their_bytes_and_no_set_uid_bit(image: str, tmp_path: Path) -> None:
    targets = {f"/x/{name}": tmp_path / name for name in ("file", "to-file")}
    containers.copy_all_out(image, targets)
    for target in targets.values():
        assert target.read_text() == "text\n"
        assert stat.S_IMODE(target.lstat().st_mode) == 0o755


@pytest.mark.parametrize("name", NO_FILES)
def test_what_is_no_file_is_not_made_here(image: str, tmp_path: Path, name: str) -> None:
    target = tmp_path / "target"
    with pytest.raises(UntriedError, match=f"cannot read /x/{name} of"):
        containers.copy_out(image, f"/x/{name}", target)
    assert not target.exists()


def test_a_file_that_is_too_large_is_not_copied(
    image: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(containers, "LARGEST", 4)
    with pytest.raises(UntriedError, match="more than 0 MiB"):
        containers.copy_out(image, "/x/file", tmp_path / "x")
    assert not (tmp_path / "x").exists()


def test_an_image_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(UntriedError, match="cannot read the files of builder-test/none:none"):
        containers.copy_out("builder-test/none:none", "/x", tmp_path / "x")
