"""Checks of URLs and commits before git gets them: no option, no command, no local path.

The recipe's schema checks its own; ``.gitmodules`` and the command line bring others.
"""

from __future__ import annotations

import re

from builder.core.errors import BuilderError, FetchError

COMMIT = re.compile(r"[0-9a-f]{40}")
URL = re.compile(r"(?:https?|ssh|git|file)://[^\x00-\x20\x7f]+")
SCP_LIKE = re.compile(r"(?![-/])([A-Za-z0-9._-]+@[A-Za-z0-9.-]+):(?!/)([^\x00-\x20\x7f]+)")


def checked_url(url: str) -> str:
    """Return a URL that git may get; ``user@host:path`` becomes an ssh URL.

    Raises ``FetchError`` for a transport that runs commands, an option, a local path.
    """
    found = SCP_LIKE.fullmatch(url)
    if found and "://" not in url:
        return f"ssh://{found[1]}/{found[2]}"
    if not URL.fullmatch(url):
        raise FetchError(
            f"{url!r} is not a supported git URL", "it must be https, http, ssh, git or file"
        )
    return url


def checked_commit(commit: str) -> str:
    """Return a commit of 40 hex digits; raises ``BuilderError`` for anything else."""
    if not COMMIT.fullmatch(commit):
        raise BuilderError(f"{commit!r} is not a full commit", "a full commit has 40 hex digits")
    return commit


def relative_url(url: str, parent: str) -> str:
    """A submodule's URL, resolved against its parent's if it starts with ./ or ../.

    git-submodule(1), "add".
    """
    if not url.startswith(("./", "../")):
        return url
    scheme, _, rest = parent.rstrip("/").partition("://")
    parts = rest.split("/")
    for step in url.split("/"):
        if step == "..":
            parts = parts[:-1]
        elif step not in {".", ""}:
            parts = [*parts, step]
    return f"{scheme}://{'/'.join(parts)}"
