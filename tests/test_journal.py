"""What a night's journal tells of the machine: nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from builder.journal import _without_paths


@pytest.mark.parametrize(
    ("reason", "kept"),
    [
        ("see /root/.cache/builder/logs/x-1.log", "see .../x-1.log"),
        ("fatal: '/var/tmp/a b/c.git' is gone", "fatal: '.../a b/c.git' is gone"),
        ("file:///srv/farm/mirror: no", ".../mirror: no"),
        ("PATH=/opt/x/bin:/usr/bin", "PATH=.../bin:.../bin"),
        ("https://github.com/a/b/pull/6 is closed", "https://github.com/a/b/pull/6 is closed"),
        ("GET tags/list of 127.0.0.1:5000/me/x", "GET tags/list of 127.0.0.1:5000/me/x"),
        ("src/a/b.cu(7): error", "src/a/b.cu(7): error"),
    ],
)
def test_a_reason_names_no_directory(reason: str, kept: str) -> None:
    assert _without_paths(reason) == kept


def test_the_home_directory_is_not_named() -> None:
    home = Path.home()
    assert str(home) not in _without_paths(f"in {home}: {home}/farm/recipes/x.toml:3")
