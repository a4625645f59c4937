"""Text that a receipt must not have: paths, addresses, host names, identities, secrets."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import PurePosixPath, PureWindowsPath

PRIVATE = {
    "a URL": re.compile(r"[a-z][a-z0-9+.-]*://", re.IGNORECASE),
    "a path": re.compile(r"(?:^|[\s=,;:\"'(])(?:~?/[\w.~-]|~$|\.\.?/|[A-Za-z]:\\|\\\\)"),
    "an e-mail address or USER@HOST": re.compile(r"[\w.+-]@[\w-]"),
    "an identity (UUID)": re.compile(r"[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}", re.IGNORECASE),
    "a hardware address": re.compile(r"\b[0-9a-f]{2}(?::[0-9a-f]{2}){5}\b", re.IGNORECASE),
    "a PCI address": re.compile(r"\b[0-9a-f]{2,8}:[0-9a-f]{2}\.[0-7]\b", re.IGNORECASE),
    # The special addresses name no machine: every interface, and the machine itself.
    "an IP address": re.compile(r"(?<![\d.])(?!0\.0\.0\.0|127\.)\d{1,3}(?:\.\d{1,3}){3}(?![\d.])"),
    "a host name": re.compile(
        r"\b[\w-]+\.(?:local|localdomain|lan|home|internal|intranet|corp)\b", re.IGNORECASE
    ),
    "a secret": re.compile(r"\b(?:hf_|sk-|gh[pousr]_|github_pat_)[A-Za-z0-9_-]{16,}"),
}
SECRET = re.compile(r"^--?(?:\S*-)?(?:key|token|password|secret)$")
"""An option whose value is a secret: ``--api-key``."""
SHOWN = 60  # characters
HIDDEN = "***"


def private(text: str) -> str | None:
    """The private part of ``text``, such as ``a path``; None: there is none."""
    return next((what for what, pattern in PRIVATE.items() if pattern.search(text)), None)


def private_argument(words: Sequence[str]) -> str | None:
    """The first argument that a receipt must not have, and why; None: there is none."""
    for before, word in zip(["", *words], words, strict=False):
        option, _, value = word.partition("=")
        given = (before, word) if SECRET.match(before) else (option, value or HIDDEN)
        if SECRET.match(given[0]) and given[1] != HIDDEN:
            return f"{given[0]} has a secret"
        if what := private(word):
            return f"{word[:SHOWN]!r} has {what}"
    return None


def redacted(words: Sequence[str]) -> list[str]:
    """Arguments without directories and without the values of options such as ``--api-key``.

    Other private text stays: see ``private_argument``.
    """
    found: list[str] = []
    for before, word in zip(["", *words], words, strict=False):
        option, equals, value = word.partition("=")
        if SECRET.match(before):
            found.append(HIDDEN)
        elif equals and SECRET.match(option):
            found.append(f"{option}={HIDDEN}")
        elif equals and option.startswith("-"):
            found.append(f"{option}={_without_directory(value)}")
        else:
            found.append(_without_directory(word))
    return found


def _without_directory(word: str) -> str:
    if PRIVATE["a URL"].search(word) or not PRIVATE["a path"].match(word):
        return word
    return PurePosixPath(PureWindowsPath(word).name).name
