"""git commands with bytes on standard input, over the network, or on a damaged repository.

git's own configuration applies (insteadOf, proxies, credential helpers).  Settings that would
change contents are overridden: a tree is what its commit holds, byte for byte.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

from builder.tools.git.errors import GitError, failure, not_installed

OLDEST = (2, 32)
"""The first version whose ``git apply --3way`` works on an index alone (its release notes)."""
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

    The only function that starts the executable past GitPython, whose ``Repo.git`` takes a file,
    not bytes, as standard input, cannot remove variables from the environment, cannot open a
    damaged repository, and passes no file descriptors on.  ``inherit`` are such descriptors: a
    lock on one of them lasts as long as git does, also if this process is killed.

    Without ``network`` no transport may be used, whatever a partial clone would like to fetch.
    Raises ``GitError``; ``WorldError`` if git is not installed, ``SpaceError`` on a full disk.
    """
    command = ["git"]
    for name, value in (SETTINGS if network else OFFLINE_SETTINGS).items():
        command += ["-c", f"{name}={value}"]
    command += [f"--git-dir={repository}", *arguments]
    try:
        done = subprocess.run(
            command,
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
    query = ("--get-regexp", r"^http\..*lowspeed(limit|time)$")
    seal()
    from git import Git, GitCommandNotFound

    try:
        done = Git("/").config(*query, with_extended_output=True, with_exceptions=False)
    except GitCommandNotFound as error:
        raise not_installed() from error
    return bool(done[0] == 0)


def version() -> tuple[int, ...] | None:
    """The version of git on this machine, or None if it is not installed."""
    seal()
    from git import Git, GitCommandNotFound

    try:
        return Git().version_info
    except GitCommandNotFound:
        return None


def seal() -> None:
    """Prepare this process for GitPython, which passes its environment on to git.

    Call it before each import of ``git``, which takes 0.1 s and is therefore not global.
    """
    os.environ["GIT_PYTHON_REFRESH"] = "quiet"  # else the import fails where git is not installed
    for name in FOREIGN:
        os.environ.pop(name, None)


def is_intact(repository: Path) -> bool:
    """Whether every object of a repository is undamaged, and none is missing."""
    try:
        run(repository, "fsck", "--full", "--no-dangling", "--no-progress")
    except GitError:
        return False
    return True
