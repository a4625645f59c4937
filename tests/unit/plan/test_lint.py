"""Warnings on recipes that build, and leave something unchecked."""

from __future__ import annotations

from support.commands import Builder


def test_a_patch_without_a_probe_is_a_warning_and_with_strict_an_error(builder: Builder) -> None:
    done = builder("recipe", "check")
    assert done.returncode == 0, done.stderr
    assert "atomic-b8995.toml:" in done.stdout
    assert "pull 6 has no probe" in done.stdout
    done = builder("recipe", "check", "--strict")
    assert done.returncode == 3
    assert "3 of 26 recipes are invalid: atomic-b8995" in done.stderr
    assert builder("recipe", "check", "--strict", "beellama-0.1.1").returncode == 0
    done = builder("recipe", "check", "nobody")
    assert done.returncode == 3
    assert "no recipe is named nobody" in done.stderr
