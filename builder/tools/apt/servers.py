"""The servers of Debian that the user chose; apart from ``archive``, which is slow to import."""

from __future__ import annotations

from dataclasses import dataclass

SNAPSHOT = "https://snapshot.debian.org"


@dataclass(frozen=True, slots=True)
class Servers:
    """The servers that the user chose."""

    mirror: str = ""
    """Has ``debian`` and ``debian-security`` below it; empty: the sources of this machine."""
    snapshot: str = SNAPSHOT
