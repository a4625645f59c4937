from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from builder.core import files as module
from builder.core.files import made_once

DAY = 86400


def write(made: Path, own: Path) -> None:
    (own / "object.o").write_text("x")
    made.mkdir()
    (made / "library").write_text("x")


def test_a_directory_is_made_once(tmp_path: Path) -> None:
    def never(_: Path, __: Path) -> None:
        raise AssertionError

    first = made_once(tmp_path, "libraries", "abc", print, write)
    assert [file.name for file in first.iterdir()] == ["library"]
    assert made_once(tmp_path, "libraries", "abc", print, never) == first


def test_what_fails_leaves_nothing(tmp_path: Path) -> None:
    def fails(made: Path, own: Path) -> None:
        write(made, own)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        made_once(tmp_path, "libraries", "abc", print, fails)
    assert not (tmp_path / "libraries" / "abc").exists()
    assert not [found for found in (tmp_path / "work").iterdir() if found.is_dir()]


def test_what_no_run_used_for_a_week_is_removed(tmp_path: Path) -> None:
    module.remove_unused(tmp_path / "libraries")  # there are none yet
    for key, days in {"yesterday": 1, "last month": 30}.items():
        made = made_once(tmp_path, "libraries", key, print, write)
        used = time.time() - days * DAY
        os.utime(made, (used, used))
    made_once(tmp_path, "libraries", "today", print, write)
    found = {each.name for each in (tmp_path / "libraries").iterdir()}
    assert found == {"yesterday", "today"}


def test_using_a_directory_keeps_it(tmp_path: Path) -> None:
    made = made_once(tmp_path, "libraries", "abc", print, write)
    used = time.time() - 30 * DAY
    os.utime(made, (used, used))
    made_once(tmp_path, "libraries", "abc", print, write)
    made_once(tmp_path, "libraries", "other", print, write)
    assert made.is_dir()
