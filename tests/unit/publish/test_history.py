"""The nightly runs of a channel: as they are kept, and without any path of this machine."""

from __future__ import annotations

from pathlib import Path

import pytest

from builder.publish.nights import _FILE, NightlyRun, _without_paths
from support.damaged import damaged, fuzzed

RUN = NightlyRun(
    recipe="r",
    channel="nightly",
    outcome="failed",
    started="2026-01-01T00:00:00+00:00",
    seconds=1.0,
    upstream="main",
    commit="0" * 40,
)


@fuzzed
def test_a_damaged_history_is_refused_or_can_be_written_again(seed: bytes) -> None:
    """The next night writes what it read, with a run more."""
    try:
        found = _FILE.validate_json(damaged([RUN.model_dump()], seed))
    except ValueError:
        return
    assert _FILE.validate_json(_FILE.dump_json(found)) == found


@pytest.mark.parametrize(
    ("reason", "kept"),
    [
        ("see /root/.cache/builder/logs/x-1.log", "see .../x-1.log"),
        ("fatal: '/var/tmp/a b/c.git' is gone", "fatal: '.../c.git' is gone"),
        ("file:///srv/farm/mirror: no", ".../mirror: no"),
        ("PATH=/opt/x/bin:/usr/bin", "PATH=.../bin:.../bin"),
        ("https://github.com/a/b/pull/6 is closed", "https://github.com/a/b/pull/6 is closed"),
        ("GET tags/list of 127.0.0.1:5000/me/x", "GET tags/list of 127.0.0.1:5000/me/x"),
        ("src/a/b.cu(7): error", "src/a/b.cu(7): error"),
        ("cc -I/srv/build/u1/inc x.c", "cc -I.../inc x.c"),
        ("ld -L/srv/u1/lib -lx", "ld -L.../lib -lx"),
        ("at '/srv/my dir/secret/x'", "at '.../x'"),
        ('at "/srv/my dir/secret/x": no', 'at ".../x": no'),
        ("git+file:///srv/u1/x/y", "git+.../y"),
        ("src-I/a/b", "src-I/a/b"),
        ("isn't in /srv/a/b, can't", "isn't in .../b, can't"),
        ("'a' and '/srv/x/y' or \"/srv/z/w\"", "'a' and '.../y' or \".../w\""),
    ],
)
def test_a_reason_names_no_directory(reason: str, kept: str) -> None:
    assert _without_paths(reason) == kept


def test_the_home_directory_is_not_named() -> None:
    home = Path.home()
    assert str(home) not in _without_paths(f"in {home}: {home}/farm/recipes/x.toml:3")


def test_a_home_that_is_the_root_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/")
    assert _without_paths("https://h/a/b and /srv/x/y") == "https://h/a/b and .../y"
