"""Wheel tags: which wheel of a release is the best for linux x86_64, whatever runs here.

https://packaging.python.org/en/latest/specifications/platform-compatibility-tags/
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from packaging.tags import Tag

NEWEST_GLIBC = 41  # 2.41, of Debian 13
OLDEST_GLIBC = 5  # 2.5, of manylinux1
OLDER_NAMES = {17: "manylinux2014", 12: "manylinux2010", 5: "manylinux1"}  # PEP 600


@cache
def tags(python: str) -> dict[Tag, int]:
    """The tags that CPython ``python`` ("3.12") supports on linux x86_64, with their ranks."""
    from packaging.tags import compatible_tags, cpython_tags

    platforms = []
    for minor in range(NEWEST_GLIBC, OLDEST_GLIBC - 1, -1):
        platforms.append(f"manylinux_2_{minor}_x86_64")
        if minor in OLDER_NAMES:
            platforms.append(f"{OLDER_NAMES[minor]}_x86_64")
    platforms.append("linux_x86_64")
    version = tuple(int(part) for part in python.split("."))
    found = [*cpython_tags(version, platforms=platforms)]
    found += compatible_tags(version, f"cp{python.replace('.', '')}", platforms)
    ranks: dict[Tag, int] = {}
    for tag in found:
        ranks.setdefault(tag, len(ranks))
    return ranks


def rank(filename: str, python: str) -> tuple[int, int] | None:
    """The rank of a wheel: smaller is better; None where it does not fit, or is no wheel."""
    from packaging.utils import InvalidWheelFilename, parse_wheel_filename

    try:
        _, _, build, of_file = parse_wheel_filename(filename)
    except InvalidWheelFilename:
        return None
    known = tags(python)
    ranks = [known[tag] for tag in of_file if tag in known]
    # The later of two builds of one version is better (PEP 427, "build tag").
    return (min(ranks), -(build[0] if build else 0)) if ranks else None
