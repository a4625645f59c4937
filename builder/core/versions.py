"""The order of tags and versions, whatever scheme a project uses."""

from __future__ import annotations

import re

PRE_RELEASE = re.compile(
    r"(?:^|[._-]|\d)(?:a|alpha|b|beta|dev|pre|preview|rc)[._-]?\d*$", re.IGNORECASE
)

RELEASE = re.compile(r"v?[0-9]+(?:\.[0-9]+)+")
"""A tag or a version of a release: "v0.5.0"; of no pre-release."""

Counted = tuple[tuple[int, str], ...]


def version_order(tag: str) -> tuple[Counted, bool, Counted]:
    """A sort key for tags and versions: numbers by value, a pre-release before its release.

    A number is its length and its digits: Python does not parse one with thousands of digits.
    """
    number = re.match(r"[^0-9]*([0-9]+(?:[._][0-9]+)*)", tag)
    numbers = _counted(number[1].replace("_", ".")) if number else ()
    rest = tag[number.end() :] if number else tag
    return numbers, not (rest and PRE_RELEASE.search(rest)), _counted(rest)


def _counted(text: str) -> Counted:
    """A text split at its numbers: the length and the digits of each; other text has length 0."""
    parts = [
        (number.lstrip("0"), other) for number, other in re.findall("([0-9]+)|([^0-9]+)", text)
    ]
    return tuple((len(number), number or other) for number, other in parts)
