"""What a night's journal tells of the machine: nothing."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

import pytest
from hypothesis import given

from builder.journal import Night, _without_paths, parsed
from damaged import damaged, fuzzed, seeds

NIGHT = Night("r", "nightly", "failed", "2026-01-01T00:00:00+00:00", 1.0, "main", "0" * 40)


@fuzzed
@given(seeds)
def test_no_journal_is_an_internal_error(seed: bytes) -> None:
    with suppress(ValueError):
        assert all(isinstance(each, Night) for each in parsed(damaged([asdict(NIGHT)], seed)))


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
