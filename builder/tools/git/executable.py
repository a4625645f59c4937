"""Git, as an executable: git's own configuration rules (insteadOf, proxies, credential helpers).

Every call is a list of arguments and stands in a repository that is named, never looked for.
URLs, refs and commits were checked by the schema; here they are checked again, because
.gitmodules and ``--to`` bring others.  What of git's configuration or of a tree's attributes
would change contents is switched off: a tree is what its commit holds, byte for byte.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

from builder.errors import BuilderError, FetchError, GoneError, WorldError
from builder.tools.files import full_disk, mentions_full_disk

ATTEMPTS = 4
# What git and curl say when asking again may help; everything else is an answer.
PASSING = (
    "Could not resolve host",
    "Temporary failure in name resolution",
    "Failed to connect to",
    "onnect to server",  # "Couldn't" and "Could not", by curl's version
    "unable to connect to",
    "Connection timed out",
    "Connection refused",
    "Connection reset",
    "Connection closed by",
    "Network is unreachable",
    "No route to host",
    "Recv failure",
    "Send failure",
    "Empty reply from server",
    "SSL connection timeout",
    "TLS connection was non-properly terminated",
    "Operation too slow",
    "Operation timed out",
    "early EOF",
    "unexpected disconnect",
    "transfer closed",
    "RPC failed",
    "invalid index-pack output",
    "The requested URL returned error: 429",
    "The requested URL returned error: 5",
)
LOCKED_OUT = (
    "Authentication failed",
    "could not read Username",
    "could not read Password",
    "Permission denied",
    "returned error: 401",
    "returned error: 403",
)
NOBODY = (
    "does not appear to be a git repository",
    "repository not found",
    "Repository not found",
)
SLOW_BYTES, SLOW_SECONDS = "1000", "60"  # a server that is slower for so long is given up
LITTLE = 1 << 16  # bytes
COMMIT = re.compile(r"[0-9a-f]{40}")
URL = re.compile(r"(?:https?|ssh|git|file)://[^\x00-\x20\x7f]+")
SCP_LIKE = re.compile(r"(?![-/])([A-Za-z0-9._-]+@[A-Za-z0-9.-]+):(?!/)([^\x00-\x20\x7f]+)")
NETWORK = "file:git:http:https:ssh"
UNSET = (
    "GIT_DIR",
    "GIT_WORK_TREE",
    "GIT_INDEX_FILE",
    "GIT_OBJECT_DIRECTORY",
    "GIT_ALTERNATE_OBJECT_DIRECTORIES",
    "GIT_NAMESPACE",
    "GIT_EXTERNAL_DIFF",
    "GIT_DIFF_OPTS",
)
NEUTRAL = {
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


class GitError(WorldError):
    """A git command failed; ``said`` is what it printed as the reason."""

    def __init__(self, arguments: tuple[str, ...], status: int, said: str) -> None:
        super().__init__(f"git {arguments[0]} failed", said, "`builder doctor` looks at git")
        self.status = status
        self.said = said

    @property
    def passing(self) -> bool:
        """Whether asking again may help."""
        return any(text in self.said for text in PASSING)

    @property
    def general(self) -> bool:
        """Whether the whole repository is out of reach, whatever it was asked for."""
        absent = any(text in self.said for text in NOBODY)
        # Over HTTP: fatal: repository 'URL' not found
        absent = absent or re.search(r"repository '[^']*' not found", self.said) is not None
        return absent or self.passing or self.locked_out

    @property
    def locked_out(self) -> bool:
        """Whether the server wants other credentials, or none of us."""
        return any(text in self.said for text in LOCKED_OUT)


def run(
    repository: Path,
    *arguments: str,
    stdin: bytes = b"",
    environment: Mapping[str, str] | None = None,
    network: bool = False,
    hold: Sequence[int] = (),
) -> tuple[bytes, str]:
    """Run git on a bare repository; return its output, and what it said on the side.

    Without ``network`` no transport may be used, whatever a partial clone would like to fetch.
    ``hold`` are file descriptors that git keeps open: a lock on one of them lasts as long as git
    does, also where we are killed.
    Raises ``GitError``; ``WorldError`` where there is no git, ``SpaceError`` on a full disk.
    """
    command = ["git"]
    for name, value in NEUTRAL.items():
        command += ["-c", f"{name}={value}"]
    command += [f"--git-dir={repository}", *arguments]
    try:
        done = subprocess.run(
            command,
            input=stdin,
            capture_output=True,
            check=False,
            env=_environment(network) | dict(environment or {}),
            pass_fds=hold,
        )
    except FileNotFoundError as error:
        raise WorldError("there is no git on this machine", hint="install git") from error
    said = done.stderr.decode("utf-8", "replace").strip()
    if done.returncode != 0:
        if mentions_full_disk(said) or _full(repository):
            raise full_disk(f"git was writing to {repository}", repository)
        reasons = [line for line in said.splitlines() if not line.startswith("warning: ")]
        raise GitError(arguments, done.returncode, "\n".join(reasons) or said)
    return done.stdout, said


def _full(repository: Path) -> bool:
    """Whether there is no room: not every message of git's says so."""
    return repository.exists() and shutil.disk_usage(repository).free < LITTLE


@cache
def _has_its_own_patience() -> bool:
    """Whether git's configuration says when a slow server is given up (git-config(1))."""
    ask = ["git", "config", "--get-regexp", r"^http\..*lowspeed(limit|time)$"]
    return subprocess.run(ask, capture_output=True, check=False, cwd="/").returncode == 0


def _environment(network: bool) -> dict[str, str]:
    environment = {name: value for name, value in os.environ.items() if name not in UNSET}
    if network and not _has_its_own_patience():
        environment.setdefault("GIT_HTTP_LOW_SPEED_LIMIT", SLOW_BYTES)
        environment.setdefault("GIT_HTTP_LOW_SPEED_TIME", SLOW_SECONDS)
    return environment | {
        "GIT_TERMINAL_PROMPT": "0",
        "GIT_ALLOW_PROTOCOL": NETWORK if network else "none",
        "GIT_LFS_SKIP_SMUDGE": "1",
        "LC_ALL": "C",
    }


OLDEST = (2, 32)
"""The first version whose ``git apply --3way`` works on an index alone (its release notes)."""


def version() -> tuple[int, ...] | None:
    """The version of git on this machine, or None where there is none."""
    try:
        said = subprocess.run(["git", "version"], capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return None
    found = re.search(r"\d+(?:\.\d+)+", said.stdout)
    return tuple(int(part) for part in found[0].split(".")) if found else None


def text(repository: Path, *arguments: str) -> str:
    """What git prints, as one text without the last line's end."""
    return run(repository, *arguments)[0].decode("utf-8", "surrogateescape").rstrip("\n")


def healthy(repository: Path) -> bool:
    """Whether every object of a repository is whole, and none is missing."""
    try:
        run(repository, "fsck", "--full", "--no-dangling", "--no-progress")
    except GitError:
        return False
    return True


def initialize(repository: Path) -> None:
    """Make a bare repository without anybody's template."""
    repository.mkdir(parents=True, exist_ok=True)
    run(repository, "init", "--quiet", "--bare", "--template=", str(repository))


def ask(repository: Path, *arguments: str, stdin: bytes = b"", hold: Sequence[int] = ()) -> bytes:
    """Run a command that uses the network; where asking again may help it is asked again.

    Raises ``GitError``.
    """
    from tenacity import Retrying, retry_if_exception, stop_after_attempt, wait_random_exponential

    retrying = Retrying(
        retry=retry_if_exception(lambda error: isinstance(error, GitError) and error.passing),
        stop=stop_after_attempt(ATTEMPTS),
        wait=wait_random_exponential(multiplier=0.5, max=20),
        reraise=True,
    )
    return bytes(retrying(run, repository, *arguments, stdin=stdin, network=True, hold=hold)[0])


def unanswered(url: str, what: str, error: GitError) -> FetchError:
    """What to tell of a repository that did not give what was asked for."""
    if error.passing:
        return FetchError(
            f"cannot fetch {what} of {url}: it does not answer",
            error.said,
            f"it was asked {ATTEMPTS} times; try again when the network is better",
        )
    if error.locked_out:
        return FetchError(
            f"cannot fetch {what} of {url}: it does not let us in",
            error.said,
            "check the URL, and git's credentials for it",
        )
    return GoneError(
        f"cannot fetch {what} of {url}",
        error.said,
        "check the commit and the URL; `git ls-remote` shows whether the repository answers",
    )


def checked_url(url: str) -> str:
    """A URL that git may be given; ``user@host:path`` becomes an ssh URL.

    Raises ``FetchError`` for a transport that runs commands, an option, a local path.
    """
    found = SCP_LIKE.fullmatch(url)
    if found and "://" not in url:
        return f"ssh://{found[1]}/{found[2]}"
    if not URL.fullmatch(url):
        raise FetchError(
            f"{url!r} is no URL that git is given", "only https, http, ssh, git and file are"
        )
    return url


def checked_commit(commit: str) -> str:
    """A commit of 40 hex digits; raises ``BuilderError`` for anything else."""
    if not COMMIT.fullmatch(commit):
        raise BuilderError(f"{commit!r} is no full commit", "it has 40 hex digits")
    return commit
