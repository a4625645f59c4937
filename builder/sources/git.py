"""The functions that run git: ``run``, and ``start`` for the process of ``objects``, which lives
longer.

git's own configuration applies (insteadOf, proxies, credential helpers).  Settings that would
change contents are overridden: a tree has the bytes of its commit.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

from builder.core.errors import BuilderError, FetchError, GoneError, WorldError
from builder.core.files import full_disk, mentions_full_disk

# Errors of git, sorted by their remedy: ask again, other credentials, another URL, or nothing.
#
# The words are from git 2.39 and later, curl with OpenSSL and GnuTLS, ssh, and the servers of
# GitHub, GitLab, Gitea, Bitbucket (JGit) and Azure.  Any other words mean a repository that could
# not be read, which says nothing of its contents.

STATUS = re.compile(r"returned error: (\d{3})|RPC failed; (?:HTTP|result=\d+, HTTP code =) (\d{3})")
TUNNEL = re.compile(r"CONNECT tunnel failed, response (\d{3})|HTTP code (\d{3}) from proxy")
"""The status of a response: the server's, and a proxy's which was to connect to it."""
PASSING = {"408", "425", "429"}
"""Statuses below 500 after which asking again may help."""
NO_REPOSITORY = re.compile(
    r"does not appear to be a git repository|repository '[^']*' (?:not found|does not exist)"
    r"|Repository not found|repository does not exist|Cannot find repository"
    r"|repository (?:either|with name or identifier \S+) does not exist"
    r"|project you were looking for could not be found|^ERROR: .*repository not found",
    re.MULTILINE | re.IGNORECASE,
)
NO_OBJECT = re.compile(
    r"not our ref|find remote ref|no such remote ref|want [0-9a-f]{40} not valid"
    r"|not allow request for unadvertised object|Unable to find [0-9a-f]{40} under"
    r"|\bobject '?[0-9a-f]{40}'? does not exist",
    re.IGNORECASE,
)
AUTHENTICATION = re.compile(
    r"Authentication failed|could not read (?:Username|Password)|Permission denied(?: \(|, please)"
    r"|Too many authentication failures"
)
CERTIFICATE = re.compile(
    r"certificate (?:verification|verify) failed|SSL certificate problem|SSL CA cert"
    r"|certificate subject name|error setting certificate|certificate verify locations"
    r"|self[- ]signed certificate|local issuer certificate|certificate has expired"
    r"|peer certificate|certificate issuer|SSL: .*certificate",
    re.IGNORECASE,
)
UNRESOLVED = re.compile(
    r"Could(?: not|n't) resolve (?:host|proxy)|Resolving timed out|unable to look up"
    r"|[Nn]ame resolution|Name or service not known"
)
# Asking again may help: the server does not answer, or the transfer broke off.
UNREACHABLE = re.compile(
    r"Failed to connect to|onnect to server|unable to connect to|Connection (?:timed out|refused)"
    r"|Network is unreachable|No route to host|SSL connection timeout|Connection timeout"
    r"|Proxy CONNECT aborted"
)
INTERRUPTED = re.compile(
    r"unexpected length was received|Unknown SSL protocol error|closed by remote host"
    r"|Connection (?:was )?reset|Connection (?:died|closed|was closed)|(?:Recv|Send) failure"
    r"|Empty reply from server|non-properly terminated|GnuTLS (?:recv|send) error"
    r"|in the (?:pull|push) function|SSL_ERROR_(?:SYSCALL|ZERO_RETURN)|returned SYSCALL"
    r"|unexpected eof|bad record mac|HTTP/?[23] (?:stream|framing)|HTTP2 framing|GOAWAY"
    r"|Operation (?:too slow|timed out)|early EOF|unexpected disconnect|hung up unexpectedly"
    r"|transfer closed|RPC failed|bytes of body are still expected|invalid index-pack output"
    r"|Broken pipe",
    re.IGNORECASE,
)
LITTLE = 1 << 16  # bytes
CERTIFICATE_HINT = (
    "GIT_SSL_CAINFO, or git's http.sslCAInfo, names a file with the certificate of your server or "
    "proxy; REQUESTS_CA_BUNDLE names it for builder's own requests"
)
LOGIN_HINT = "HTTPS_PROXY, or git's http.proxy, needs user and password before the proxy's name"


class GitError(WorldError):
    """A git command failed; ``why`` is the reason that it printed."""

    def __init__(self, command: str, status: int, why: str) -> None:
        super().__init__(f"git {command} failed", why, "`builder doctor` checks git")
        self.status = status

    def _says(self, *patterns: re.Pattern[str]) -> bool:
        return any(pattern.search(self.why) for pattern in patterns)

    @property
    def _statuses(self) -> set[str]:
        return {each[1] or each[2] for each in STATUS.finditer(self.why)}

    @property
    def proxy_status(self) -> str:
        """The status with which a proxy refuses to connect; empty where none does."""
        found = TUNNEL.search(self.why)
        status = (found[1] or found[2]) if found else "407" if "407" in self._statuses else ""
        return status if not _passes(status) else ""

    @property
    def is_gone(self) -> bool:
        """Whether the server says that it does not have the repository or the requested object."""
        return self._says(NO_REPOSITORY, NO_OBJECT) or not self._statuses.isdisjoint({"404", "410"})

    @property
    def is_temporary(self) -> bool:
        """Whether another attempt may succeed."""
        statuses = {*self._statuses, *(s or t for s, t in TUNNEL.findall(self.why))}
        if self.is_gone or not all(map(_passes, statuses)):
            return False
        if self._says(AUTHENTICATION, CERTIFICATE, UNRESOLVED):
            return False
        return bool(statuses) or self._says(UNREACHABLE, INTERRUPTED)

    @property
    def is_interrupted(self) -> bool:
        """Whether the server answered, and the transfer broke off."""
        return self.is_temporary and self._says(INTERRUPTED)

    @property
    def is_authentication(self) -> bool:
        """Whether the server refuses our credentials, or wants some."""
        return self._says(AUTHENTICATION) or not self._statuses.isdisjoint({"401", "403"})

    @property
    def is_untrusted(self) -> bool:
        """Whether the server's certificate is not trusted, or no certificates can be read."""
        return self._says(CERTIFICATE)

    @property
    def is_unresolved(self) -> bool:
        """Whether the name of the server, or of a proxy, has no address."""
        return self._says(UNRESOLVED)

    @property
    def concerns_server(self) -> bool:
        """Whether the whole repository is out of reach, not only the requested object."""
        absent = self._says(NO_REPOSITORY) or not self._statuses.isdisjoint({"404", "410"})
        out_of_reach = self.is_untrusted or self.is_unresolved or bool(self.proxy_status)
        return absent or out_of_reach or self.is_temporary or self.is_authentication


class UpstreamLacksError(GoneError):
    """A git server says that it does not have a repository, a ref or an object."""


def _passes(status: str) -> bool:
    return status in PASSING or status[:1] == "5"


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
    what = f"cannot fetch {what} of {url}"
    if error.is_temporary:
        hint = "builder tried several times; run the same command again later"
        return FetchError(f"{what}: the server does not answer", error.why, hint)
    if error.is_gone:
        return UpstreamLacksError(
            what,
            error.why,
            "check the commit and the URL; `git ls-remote` shows whether the repository answers",
        )
    if error.is_untrusted:
        failed, hint = "its TLS certificate is not trusted", CERTIFICATE_HINT
    elif error.proxy_status == "407":
        failed, hint = "the proxy wants a login", LOGIN_HINT
    elif error.proxy_status:
        failed = "the proxy refuses to connect"
        hint = "check HTTPS_PROXY and NO_PROXY, or git's http.proxy; the proxy has to allow it"
    elif error.is_authentication:
        failed = "authentication failed"
        hint = "check the URL, and git's credentials for it; GitHub also asks for them where it "
        hint += "has no such repository"
    elif error.is_unresolved:
        failed = "its name does not resolve"
        hint = "there is no network, or a proxy is missing or wrong: check HTTPS_PROXY, or git's "
        hint += "http.proxy"
    else:
        failed, hint = "the repository could not be read", f"try `git ls-remote {url}`"
    return FetchError(f"{what}: {failed}", error.why, hint)


# The function that runs git.

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


# Checks of URLs and commits before git gets them: no option, no command, no local path.
#
# The recipe's schema checks its own; ``.gitmodules`` and the command line bring others.

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
