"""The machine's own Debian sources, with another suite."""

from __future__ import annotations

from pathlib import Path

import pytest

from builder.sources import apt

RELEASE = 'ID={0}\nVERSION_CODENAME={1}\nPRETTY_NAME="X"\n'
ONE_LINE = """# deb http://commented.example.invalid/debian bookworm main
deb [arch=amd64 signed-by=/x.gpg] http://mirror.example.invalid/debian bookworm main contrib
deb http://mirror.example.invalid/debian bookworm-updates main
deb http://mirror.example.invalid/debian bookworm-backports main
deb-src http://mirror.example.invalid/debian bookworm main
deb http://other.example.invalid/apt stable main
deb http://broken.example.invalid
"""
DEB822 = """Types: deb deb-src
URIs: http://a.example.invalid/debian http://b.example.invalid/debian
Suites: bookworm bookworm-updates
Components: main non-free
Signed-By: /somewhere.gpg

Types: deb
Enabled: no
URIs: http://disabled.example.invalid/debian
Suites: bookworm
Components: main

# a comment
Types: deb
URIs: http://s.example.invalid/debian-security
Suites: bookworm-security
Components: main
"""


@pytest.fixture
def etc(tmp_path: Path) -> Path:
    (tmp_path / "apt" / "sources.list.d").mkdir(parents=True)
    (tmp_path / "os-release").write_text(RELEASE.format("debian", "bookworm"))
    return tmp_path


def test_both_formats_give_the_suite_that_is_asked_for(etc: Path) -> None:
    (etc / "apt" / "sources.list").write_text(ONE_LINE)
    (etc / "apt" / "sources.list.d" / "debian.sources").write_text(DEB822)
    (etc / "apt" / "sources.list.d" / "debian.sources.disabled").write_text(DEB822)
    text = apt.deb822(apt.debian_sources("trixie", etc))
    fields = [line for line in text.splitlines() if line.startswith(("URIs", "Suites"))]
    assert fields == [
        "URIs: http://mirror.example.invalid/debian",
        "Suites: trixie",
        "URIs: http://mirror.example.invalid/debian",
        "Suites: trixie-updates",
        "URIs: http://a.example.invalid/debian http://b.example.invalid/debian",
        "Suites: trixie trixie-updates",
        "URIs: http://s.example.invalid/debian-security",
        "Suites: trixie-security",
    ]
    assert text.count(f"Signed-By: {apt.KEYRING}") == 4


def test_another_distribution_has_no_debian_sources(etc: Path) -> None:
    (etc / "apt" / "sources.list").write_text(ONE_LINE)
    (etc / "os-release").write_text(RELEASE.format("ubuntu", "noble"))
    assert not apt.debian_sources("trixie", etc)
    (etc / "os-release").unlink()
    assert not apt.debian_sources("trixie", etc)


def test_no_source_of_its_own_suite(etc: Path) -> None:
    assert not apt.debian_sources("trixie", etc)


@pytest.mark.parametrize("suite", ["bookworm-pgdg", "bookworm-backports", "bookworm-fasttrack"])
def test_others_that_name_their_suites_after_debians_are_left_out(etc: Path, suite: str) -> None:
    (etc / "apt" / "sources.list").write_text(f"deb http://o.example.invalid/apt {suite} main\n")
    assert not apt.debian_sources("trixie", etc)


@pytest.mark.parametrize("options", ["", "[arch=amd64]", "[ arch=amd64 signed-by=/x.gpg ]"])
def test_options_in_brackets_are_passed_over(etc: Path, options: str) -> None:
    line = f"deb {options} http://m.example.invalid/debian bookworm main # why\n"
    (etc / "apt" / "sources.list.d" / "x.list").write_text(line)
    text = apt.deb822(apt.debian_sources("trixie", etc))
    assert "URIs: http://m.example.invalid/debian\nSuites: trixie\n" in text
