"""Debian packages of an image, from its dpkg database."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from debian.deb822 import Packages

from builder.core.errors import UntriedError
from builder.docker import copies
from builder.sources.sources import assignments

STATUS = "/var/lib/dpkg/status"
RELEASE = "/etc/os-release"
ABSENT = re.compile(r"Could not find the file|no such file or directory", re.IGNORECASE)
"""The engine's message for a path that a container does not have."""


@dataclass(frozen=True, slots=True, order=True)
class Package:
    """An installed package; ``source`` is the package that it was built from."""

    name: str
    version: str
    architecture: str
    source: str
    source_version: str


@dataclass(frozen=True, slots=True)
class Dpkg:
    """The installed packages of an image, sorted, and its distribution.

    ``distribution`` and ``release`` are ID and VERSION_ID of os-release(5): "debian", "13".
    """

    distribution: str
    release: str
    packages: tuple[Package, ...]


def installed(reference: str, work: Path) -> Dpkg | None:
    """The dpkg database of an image of the engine; None where the image has none.

    Files are copied to ``work``, which has none of them yet.  Raises ``UntriedError`` where the
    engine cannot copy them.
    """
    status, release = work / "dpkg-status", work / "os-release"
    try:
        copies.copy_all_out(reference, {STATUS: status, RELEASE: release})
    except UntriedError as error:
        if not ABSENT.search(error.why):
            raise
    found = [_text(file) for file in (status, release)]
    return parse(found[0], found[1] or "") if found[0] is not None else None


def _text(copy: Path) -> str | None:
    return copy.read_text("utf-8", errors="replace") if copy.exists() else None


def parse(status: str, release: str) -> Dpkg:
    """The database, from the texts of /var/lib/dpkg/status and os-release."""
    variables = dict(assignments(release))
    return Dpkg(
        variables.get("ID", "debian"),
        variables.get("VERSION_ID", ""),
        tuple(sorted(_packages(status))),
    )


def _packages(status: str) -> Iterator[Package]:
    # Lines, because the library takes a string for a file name.
    for entry in Packages.iter_paragraphs(status.splitlines(), use_apt_pkg=False):
        # Wanted, flag, state (dpkg-query(1)); removed packages may still have configuration files.
        if entry.get("Status", "").split()[2:] == ["installed"]:
            yield Package(
                entry["Package"],
                entry["Version"],
                entry.get("Architecture", ""),
                entry.source or entry["Package"],
                str(entry.source_version),
            )
