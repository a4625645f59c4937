"""The one function that runs git; ``objects`` has the only other process, which lives longer.

git's own configuration applies (insteadOf, proxies, credential helpers).  Settings that would
change contents are overridden: a tree has the bytes of its commit.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

from builder.core.errors import WorldError
from builder.sources.errors import GitError, failure, not_installed

OLDEST = (2, 32)
"""The oldest version that is supported; Debian 12 has 2.39."""
SLOW_BYTES, SLOW_SECONDS = "1000", "60"  # a transfer slower than this is aborted
NETWORK = "file:git:http:https:ssh"
FOREIGN = (
    "GIT_DIR",
    "GIT_COMMON_DIR",
    "GIT_WORK_TREE",
    "GIT_INDEX_FILE",
    "GIT_OBJECT_DIRECTORY",
    "GIT_ALTERNATE_OBJECT_DIRECTORIES",
    "GIT_NAMESPACE",
    "GIT_EXTERNAL_DIFF",
    "GIT_DIFF_OPTS",
)
"""Variables that name another repository: a git hook sets some of them."""
SETTINGS = {
    "core.autocrlf": "false",
    "core.attributesFile": "/dev/null",
    "core.quotePath": "true",
    "core.fsmonitor": "false",
    "core.hooksPath": "/dev/null",
    "core.fileMode": "true",
    "core.symlinks": "true",
    "apply.whitespace": "nowarn",
    "apply.ignoreWhitespace": "no",
    "gc.auto": "0",
    "maintenance.auto": "false",
    "advice.detachedHead": "false",
}
OFFLINE_SETTINGS = {**SETTINGS, "fetch.parallel": "none"}
"""A partial clone runs ``git fetch`` for a missing object, which fails at once with this value.

Without it a damaged commit makes each fetch start another one, for minutes; the variable
GIT_NO_LAZY_FETCH has an effect only since git 2.44.
"""
NOWHERE = Path("/")
"""No repository: only the configuration of the machine and of the user counts."""
CONSTANT = {"GIT_TERMINAL_PROMPT": "0", "GIT_LFS_SKIP_SMUDGE": "1", "LC_ALL": "C"}
OFFLINE = {**CONSTANT, "GIT_ALLOW_PROTOCOL": "none", "GIT_NO_LAZY_FETCH": "1"}


def run(
    repository: Path,
    *arguments: str,
    stdin: bytes = b"",
    environment: Mapping[str, str] | None = None,
    network: bool = False,
    inherit: Sequence[int] = (),
) -> tuple[bytes, str]:
    """Run git on a repository; return its standard output, and its messages on standard error.

    Not GitPython's ``Repo.git``: it passes the environment of this process on and can only add to
    it, while GIT_WORK_TREE has no value that is the same as none; its standard input is a file, not
    bytes; and it opens no damaged repository.  ``inherit`` are file descriptors: a lock on one of
    them lasts as long as git does, also if this process is killed.

    Without ``network`` no transport may be used, whatever a partial clone would like to fetch.
    Raises ``GitError``; ``WorldError`` if git is not installed, ``SpaceError`` on a full disk.
    """
    try:
        done = subprocess.run(
            [*_git(repository, SETTINGS if network else OFFLINE_SETTINGS), *arguments],
            input=stdin,
            capture_output=True,
            check=False,
            env=_environment(network) | dict(environment or {}),
            pass_fds=inherit,
        )
    except FileNotFoundError as error:
        raise not_installed() from error
    printed = done.stderr.decode("utf-8", "replace").strip()
    if done.returncode != 0:
        raise failure(repository, arguments, done.returncode, printed)
    return done.stdout, printed


def start(repository: Path, *arguments: str) -> subprocess.Popen[bytes]:
    """Start git on a repository, with pipes to write to and to read from, and without network.

    Raises ``WorldError`` if git is not installed.
    """
    try:
        return subprocess.Popen(
            [*_git(repository, OFFLINE_SETTINGS), *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=_environment(network=False),
        )
    except FileNotFoundError as error:
        raise not_installed() from error


def _git(repository: Path, settings: Mapping[str, str]) -> list[str]:
    options = [word for name, value in settings.items() for word in ("-c", f"{name}={value}")]
    return ["git", *options, f"--git-dir={repository}"]


def text(repository: Path, *arguments: str) -> str:
    """The standard output of git as text, without the last line's end."""
    return run(repository, *arguments)[0].decode("utf-8", "surrogateescape").rstrip("\n")


def _environment(network: bool) -> dict[str, str]:
    environment = {name: value for name, value in os.environ.items() if name not in FOREIGN}
    if not network:
        return environment | OFFLINE
    if not _configures_low_speed():
        environment.setdefault("GIT_HTTP_LOW_SPEED_LIMIT", SLOW_BYTES)
        environment.setdefault("GIT_HTTP_LOW_SPEED_TIME", SLOW_SECONDS)
    return environment | CONSTANT | {"GIT_ALLOW_PROTOCOL": NETWORK}


@cache
def _configures_low_speed() -> bool:
    """Whether the user's configuration says when a slow transfer is aborted (git-config(1))."""
    try:
        run(NOWHERE, "config", "--get-regexp", r"^http\..*lowspeed(limit|time)$")
    except GitError:
        return False
    return True


def version() -> tuple[int, ...] | None:
    """The version of git on this machine, or None if it is not installed."""
    try:
        found = re.match(r"git version ([0-9.]*[0-9])", text(NOWHERE, "version"))
    except WorldError:
        return None
    return tuple(int(part) for part in found[1].split(".")) if found else None


def is_intact(repository: Path) -> bool:
    """Whether every object of a repository is undamaged, and none is missing."""
    try:
        run(repository, "fsck", "--full", "--no-dangling", "--no-progress")
    except GitError:
        return False
    return True
