"""Errors of git, sorted by their remedy: ask again, other credentials, another URL, or nothing."""

from __future__ import annotations

import re
import shutil
from collections.abc import Sequence
from pathlib import Path

from builder.errors import BuilderError, FetchError, GoneError, WorldError
from builder.tools.files import full_disk, mentions_full_disk

# Messages of git and curl after which asking again may help; all others are final.
UNREACHABLE = (
    "Could not resolve host",
    "Temporary failure in name resolution",
    "Failed to connect to",
    "onnect to server",  # "Couldn't" and "Could not", by curl's version
    "unable to connect to",
    "Connection timed out",
    "Connection refused",
    "Network is unreachable",
    "No route to host",
    "SSL connection timeout",
    "The requested URL returned error: 429",
    "The requested URL returned error: 5",
)
INTERRUPTED = (
    "Connection reset",
    "Connection closed by",
    "Recv failure",
    "Send failure",
    "Empty reply from server",
    "TLS connection was non-properly terminated",
    "Operation too slow",
    "Operation timed out",
    "early EOF",
    "unexpected disconnect",
    "transfer closed",
    "RPC failed",
    "invalid index-pack output",
)
AUTHENTICATION = (
    "Authentication failed",
    "could not read Username",
    "could not read Password",
    "Permission denied",
    "returned error: 401",
    "returned error: 403",
)
NO_REPOSITORY = (
    "does not appear to be a git repository",
    "repository not found",
    "Repository not found",
)
LITTLE = 1 << 16  # bytes


class GitError(WorldError):
    """A git command failed; ``why`` is the reason that it printed."""

    def __init__(self, command: str, status: int, why: str) -> None:
        super().__init__(f"git {command} failed", why, "`builder doctor` checks git")
        self.status = status

    @property
    def is_temporary(self) -> bool:
        """Whether another attempt may succeed."""
        return self.is_interrupted or any(text in self.why for text in UNREACHABLE)

    @property
    def is_interrupted(self) -> bool:
        """Whether the server answered, and the transfer broke off."""
        return any(text in self.why for text in INTERRUPTED)

    @property
    def is_authentication(self) -> bool:
        """Whether the server refuses our credentials, or wants some."""
        return any(text in self.why for text in AUTHENTICATION)

    @property
    def concerns_server(self) -> bool:
        """Whether the whole repository is out of reach, not only the requested object."""
        absent = any(text in self.why for text in NO_REPOSITORY)
        # Over HTTP: fatal: repository 'URL' not found
        absent = absent or re.search(r"repository '[^']*' not found", self.why) is not None
        return absent or self.is_temporary or self.is_authentication


def failure(repository: Path, arguments: Sequence[str], status: int, printed: str) -> BuilderError:
    """The error of a git command that ended with ``status``; ``SpaceError`` on a full disk."""
    if mentions_full_disk(printed) or _is_full(repository):
        return full_disk(f"git was writing to {repository}", repository)
    reasons = [line for line in printed.splitlines() if not line.startswith("warning: ")]
    return GitError(arguments[0], status, "\n".join(reasons) or printed)


def _is_full(repository: Path) -> bool:
    """Whether the disk has no room: git does not always report it."""
    return repository.exists() and shutil.disk_usage(repository).free < LITTLE


def not_installed() -> WorldError:
    """The error where there is no git executable."""
    return WorldError("git is not installed", hint="install git: apt-get install git")


def fetch_error(url: str, what: str, error: GitError) -> FetchError:
    """The error for a user, where the repository at ``url`` did not deliver ``what``."""
    if error.is_temporary:
        return FetchError(
            f"cannot fetch {what} of {url}: the server does not answer",
            error.why,
            "builder tried several times; run the same command again later",
        )
    if error.is_authentication:
        return FetchError(
            f"cannot fetch {what} of {url}: authentication failed",
            error.why,
            "check the URL, and git's credentials for it",
        )
    return GoneError(
        f"cannot fetch {what} of {url}",
        error.why,
        "check the commit and the URL; `git ls-remote` shows whether the repository answers",
    )
