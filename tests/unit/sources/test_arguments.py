"""Addresses of repositories, before git gets them."""

from __future__ import annotations

from builder.sources.git import checked_url


def test_an_ssh_address_without_a_scheme_is_an_ssh_url() -> None:
    url = checked_url("git@git.example.invalid:a/b.git")
    assert url == "ssh://git@git.example.invalid/a/b.git"
