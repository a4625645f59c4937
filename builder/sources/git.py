"""git: every command that runs it, its errors, and bare repositories: objects, trees, ancestry.

git's own configuration applies (insteadOf, proxies, credential helpers).  Settings that would
change contents are overridden: a tree has the bytes of its commit.
"""

from __future__ import annotations

import os
import posixpath
import re
import shutil
import subprocess
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.request import getproxies_environment
from uuid import uuid4

from builder.core.errors import BuilderError, FetchError, GoneError, WorldError
from builder.core.files import full_disk, mentions_full_disk

if TYPE_CHECKING:
    from git import Git

# Errors of git, sorted by their remedy: ask again, other credentials, another URL, or nothing.
#
# The words are from git 2.39 and later, curl with OpenSSL and GnuTLS, ssh, and the servers of
# GitHub, GitLab, Gitea, Bitbucket (JGit) and Azure.  Any other words mean a repository that could
# not be read, which says nothing of its contents.

STATUS = re.compile(r"returned error: (\d{3})|RPC failed; (?:HTTP|result=\d+, HTTP code =) (\d{3})")
TUNNEL = re.compile(r"CONNECT tunnel failed, response (\d{3})|HTTP code (\d{3}) from proxy")
"""The status of a response: the server's, and a proxy's which was to connect to it."""
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
UNREACHABLE = re.compile(
    r"Failed to connect to|onnect to server|unable to connect to|Connection (?:timed out|refused)"
    r"|Network is unreachable|No route to host|SSL connection timeout|Connection timeout"
    r"|Proxy CONNECT aborted"
)
ELSEWHERE = re.compile(
    r"unable to access '\w+://(?:[^/@']*@)?([^/:']+)[^']*': Failed to connect to (\S+)"
)
"""The host of the URL, and the host that git cannot reach."""
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


class Fault(Enum):
    """Why a server did not deliver: what has failed, and what to do next."""

    GONE = (
        "",
        "check the commit and the URL; `git ls-remote` shows whether the repository answers",
    )
    UNTRUSTED = (
        "its TLS certificate is not trusted",
        "GIT_SSL_CAINFO, or git's http.sslCAInfo, names a file with the certificate of your server "
        "or proxy; REQUESTS_CA_BUNDLE names it for builder's own requests",
    )
    PROXY_LOGIN = (
        "the proxy wants a login",
        "HTTPS_PROXY, or git's http.proxy, needs user and password before the proxy's name",
    )
    PROXY = (
        "the proxy refuses to connect",
        "check HTTPS_PROXY and NO_PROXY, or git's http.proxy; the proxy has to allow it",
    )
    AUTHENTICATION = (
        "authentication failed",
        "check the URL, and git's credentials for it; GitHub also asks for them where it has no "
        "such repository",
    )
    UNRESOLVED = (
        "its name does not resolve",
        "there is no network, or a proxy is missing or wrong: check HTTPS_PROXY, or git's "
        "http.proxy",
    )
    NO_PROXY = (
        "the proxy does not answer",
        "there is no network, or the proxy is wrong: check HTTPS_PROXY",
    )
    TEMPORARY = (
        "the server does not answer",
        "builder tried several times; run the same command again later",
    )
    UNKNOWN = ("the repository could not be read", "try `git ls-remote {url}`")


class GitError(WorldError):
    """A git command failed; ``why`` is the reason that it printed."""

    def __init__(self, command: str, status: int, why: str) -> None:
        super().__init__(f"git {command} failed", why, "`builder doctor` checks git")
        self.status = status
        self.server_lacks_all = False
        """The server has no such repository."""
        self.fault = self._sorted(why)

    def _sorted(self, why: str) -> Fault:
        statuses = {each[1] or each[2] for each in STATUS.finditer(why)}
        proxy = {each[1] or each[2] for each in TUNNEL.finditer(why)} | (statuses & {"407"})
        everything = statuses | proxy
        self.server_lacks_all = bool(NO_REPOSITORY.search(why) or statuses & {"404", "410"})
        if self.server_lacks_all or NO_OBJECT.search(why):
            return Fault.GONE
        if CERTIFICATE.search(why):
            return Fault.UNTRUSTED
        if refused := {status for status in proxy if not _passes(status)}:
            return Fault.PROXY_LOGIN if "407" in refused else Fault.PROXY
        if AUTHENTICATION.search(why) or statuses & {"401", "403"}:
            return Fault.AUTHENTICATION
        if UNRESOLVED.search(why):
            return Fault.UNRESOLVED
        if (asked := ELSEWHERE.search(why)) and asked[1] != asked[2] and getproxies_environment():
            return Fault.NO_PROXY
        failed = everything or UNREACHABLE.search(why) or INTERRUPTED.search(why)
        return Fault.TEMPORARY if failed and all(map(_passes, everything)) else Fault.UNKNOWN

    @property
    def is_temporary(self) -> bool:
        """Whether another attempt may succeed."""
        return self.fault is Fault.TEMPORARY

    @property
    def is_interrupted(self) -> bool:
        """Whether the server answered, and the transfer broke off."""
        return self.is_temporary and INTERRUPTED.search(self.why) is not None

    @property
    def concerns_server(self) -> bool:
        """Whether the whole repository is out of reach, not only the requested object."""
        return self.server_lacks_all or self.fault not in {Fault.GONE, Fault.UNKNOWN}


class UpstreamLacksError(GoneError):
    """A git server says that it does not have a repository, a ref or an object."""


def _passes(status: str) -> bool:
    return status in {"408", "425", "429"} or status[:1] == "5"


def fetch_error(url: str, what: str, error: GitError) -> FetchError:
    """The error for a user, where the repository at ``url`` did not deliver ``what``."""
    what = f"cannot fetch {what} of {url}"
    failed, hint = error.fault.value
    if error.fault is Fault.GONE:
        return UpstreamLacksError(what, error.why, hint)
    return FetchError(f"{what}: {failed}", error.why, hint.format(url=url))


# The function that runs git.

OLDEST = (2, 32)
"""The oldest version that is supported; Debian 12 has 2.39."""
LITTLE = 1 << 16  # bytes of free disk
SLOW_BYTES, SLOW_SECONDS = "1000", "60"  # a transfer slower than this is aborted
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
ONLINE = {**CONSTANT, "GIT_ALLOW_PROTOCOL": "file:git:http:https:ssh"}
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

    ``inherit`` are file descriptors: a lock on one of them lasts as long as git does, also if this
    process is killed.  Without ``network`` no transport may be used, whatever a partial clone would
    like to fetch.  Raises ``GitError``; ``WorldError`` if git is not installed, ``SpaceError`` on a
    full disk.
    """
    pipe = subprocess.PIPE
    with _start(repository, arguments, network, pipe, environment, inherit) as process:
        try:
            output, messages = process.communicate(stdin)
        except BaseException:
            process.kill()
            raise
    printed = messages.decode("utf-8", "replace").strip()
    if process.returncode == 0:
        return output, printed
    # git does not always report that the disk has no room.
    full = repository.exists() and shutil.disk_usage(repository).free < LITTLE
    if full or mentions_full_disk(printed):
        raise full_disk(f"git was writing to {repository}", repository)
    reasons = [line for line in printed.splitlines() if not line.startswith("warning: ")]
    raise GitError(arguments[0], process.returncode, "\n".join(reasons) or printed)


def _start(
    repository: Path,
    arguments: Sequence[str],
    network: bool = False,
    stderr: int = subprocess.DEVNULL,
    environment: Mapping[str, str] | None = None,
    inherit: Sequence[int] = (),
) -> subprocess.Popen[bytes]:
    """Start git, with pipes to write to and to read from."""
    variables = {name: value for name, value in os.environ.items() if name not in FOREIGN}
    if network and not _configures_low_speed():
        variables.setdefault("GIT_HTTP_LOW_SPEED_LIMIT", SLOW_BYTES)
        variables.setdefault("GIT_HTTP_LOW_SPEED_TIME", SLOW_SECONDS)
    settings = SETTINGS if network else OFFLINE_SETTINGS
    options = [word for name, value in settings.items() for word in ("-c", f"{name}={value}")]
    try:
        return subprocess.Popen(
            ["git", *options, f"--git-dir={repository}", *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=stderr,
            env=variables | (ONLINE if network else OFFLINE) | dict(environment or {}),
            pass_fds=inherit,
        )
    except FileNotFoundError as error:
        raise _not_installed() from error


def _not_installed() -> WorldError:
    return WorldError("git is not installed", hint="install git: apt-get install git")


def text(repository: Path, *arguments: str) -> str:
    """The standard output of git as text, without the last line's end."""
    return run(repository, *arguments)[0].decode("utf-8", "surrogateescape").rstrip("\n")


@cache
def head_of(root: Path) -> str:
    """The commit of a checkout; empty where ``root`` is none."""
    try:
        return text(root / ".git", "rev-parse", "--verify", "HEAD")
    except GitError:
        return ""


def _configures_low_speed() -> bool:
    """Whether the user's configuration says when a slow transfer is aborted (git-config(1))."""
    return _succeeds(NOWHERE, "config", "--get-regexp", r"^http\..*lowspeed(limit|time)$")


def is_intact(repository: Path) -> bool:
    """Whether every object of a repository is undamaged, and none is missing."""
    return _succeeds(repository, "fsck", "--full", "--no-dangling", "--no-progress")


def _succeeds(repository: Path, *arguments: str) -> bool:
    try:
        run(repository, *arguments)
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
            f"{url!r} is not a supported git URL",
            "it must be https, http, ssh, git or file",
            "write it in full: https://github.com/OWNER/NAME, or file:///DIRECTORY",
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
    scheme, _, place = parent.rstrip("/").partition("://")
    return f"{scheme}://{posixpath.normpath(f'{place}/{url}')}"


# A bare repository.
#
# Blobs, trees and commits come from one ``git cat-file --batch``, which is kept running: ``close``
# ends it, and so do garbage collection and the end of this process.

T = TypeVar("T")
DIRECTORY = "040000"
SYMLINK = "120000"
GITLINK = "160000"
EMPTY_TREE = "4b825dc642cb6eb9a060e54bf8d69288fbee4904"
DIFF = (
    *("diff-tree", "-r", "-p", "--full-index", "--binary", "--no-renames", "--no-color"),
    *("--no-ext-diff", "--no-textconv", "--src-prefix=a/", "--dst-prefix=b/", "--unified=3"),
    "--diff-algorithm=myers",
)
RAW_DIFF = ("diff-tree", "-r", "-z", "--raw", "--no-renames", "--abbrev=40")
READING = {"checkout-index", "diff", "diff-tree", "log", "ls-tree", "merge-base", "read-tree"}
READING |= {"rev-list", "write-tree"}
"""The commands that read objects: with a status above 1 some object is missing or damaged."""


@dataclass(frozen=True, slots=True)
class Item:
    """An entry of a tree: mode ("100644", "160000", ...), object and path."""

    mode: str
    object: str
    path: str


def _reader(folder: Path) -> Git:
    """GitPython's reader of objects; it runs ``git cat-file`` at the first use.

    GitPython is imported late: it takes 0.1 s, and runs ``git version``.  Its own ``execute``
    passes the environment of this process on, also variables that name another repository.
    """
    try:
        from git import Git
    except ImportError as error:
        raise _not_installed() from error

    class Reader(Git):
        def execute(self, words: Sequence[str], **_: Any) -> Any:  # type: ignore[override]
            return self.AutoInterrupt(_start(folder, words[1:]), words)

    return Reader(os.fspath(folder))


class GitRepository:
    """The bare repository at ``folder``.  All methods raise ``GitError``.

    ``heal`` is called when an object cannot be read; if it returns True, it is read once more.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.heal: Callable[[], bool] = lambda: False
        self._git: Git | None = None
        self._present: set[str] = set()

    def create(self) -> None:
        """Make the repository, without the user's template, or complete it."""
        self.close()
        self.folder.mkdir(parents=True, exist_ok=True)
        self.run("init", "--bare", "--quiet", "--template=")

    @property
    def reader(self) -> Git:
        """The reader of objects, opened at the first use."""
        if self._git is None:
            self._git = _reader(self.folder)
            weakref.finalize(self, self._git.clear_cache)
        if any(process.poll() is not None for process in self.processes):
            self._git.clear_cache()
        return self._git

    @property
    def processes(self) -> list[subprocess.Popen[bytes]]:
        """The processes that read objects, whether they still run or not."""
        readers = (self._git.cat_file_all, self._git.cat_file_header) if self._git else ()
        return [each.proc for each in readers if each is not None and each.proc is not None]

    def close(self) -> bool:
        """End the processes that read objects; return whether there were any.

        Objects that were there are looked up again.
        """
        self._present.clear()
        running = bool(self.processes)
        if self._git is not None:
            self._git.clear_cache()
        return running

    def run(
        self,
        *arguments: str,
        stdin: bytes = b"",
        index: Path | None = None,
        work_tree: Path | None = None,
    ) -> bytes:
        """The standard output of a git command, with another index or a work tree."""
        environment = {"GIT_INDEX_FILE": str(index)} if index else {}
        if work_tree:
            environment["GIT_WORK_TREE"] = str(work_tree)
        try:
            return run(self.folder, *arguments, stdin=stdin, environment=environment)[0]
        except GitError as error:
            if error.status == 1 or arguments[0] not in READING or not self.heal():
                raise
        return run(self.folder, *arguments, stdin=stdin, environment=environment)[0]

    def text(self, *arguments: str) -> str:
        """The standard output of a git command as text, without the last line's end."""
        return self.run(*arguments).decode("utf-8", "surrogateescape").rstrip("\n")

    # Objects

    def _read(self, read: Callable[[Git], T], *, again: bool = True) -> T:
        reader = self.reader
        try:
            return read(reader)
        except (ValueError, OSError) as error:
            self.close()
            if again and self.heal():
                return self._read(read, again=False)
            why = f"an object of {self.folder} is missing or damaged, or the repository is"
            raise GitError("cat-file", 128, f"{why}: {error}") from error
        except BaseException:
            # Part of an answer may be left in the pipe.  GitPython's stream, which the traceback
            # holds, still wants to read it: the pipe stays open.
            for process in self.processes:
                process.kill()
                process.wait()
            raise

    def _content(self, name: str, kind: str) -> bytes:
        """The content of an object of that kind, all of it."""

        def read(reader: Git) -> bytes:
            _, found, size, content = reader.get_object_data(name)
            if os.fsdecode(found) != kind or len(content) != size:
                raise ValueError(f"{name} is not a complete {kind}")
            return content

        return self._read(read)

    def _header(self, name: str) -> tuple[str, str] | None:
        """The full name and the kind of an object; None if there is no such object, or several."""

        def read(reader: Git) -> tuple[str, str] | None:
            try:
                full, kind, _ = reader.get_object_header(name)
            except ValueError as error:
                if "could not be resolved" in str(error):
                    return None
                raise  # the process has ended
            return os.fsdecode(full), os.fsdecode(kind)

        return self._read(read)

    def tree_of(self, commit: str) -> str:
        """The tree of a commit."""
        name = f"{commit}^{{tree}}"
        return self._read(lambda reader: os.fsdecode(reader.get_object_header(name)[0]))

    def time_of(self, commit: str) -> int:
        """When a commit was committed, in seconds since 1970."""
        return int(self.text("log", "--no-walk", "--format=%ct", commit))

    def read(self, name: str) -> bytes:
        """The contents of a blob."""
        return self._content(name, "blob")

    def entry(self, tree: str, path: str) -> Item | None:
        """A file of a tree, or of a commit's tree; None if there is none."""
        from git.objects.fun import tree_entries_from_data

        mode, name = DIRECTORY, tree
        for part in path.split("/"):
            if mode != DIRECTORY:
                return None
            entries = tree_entries_from_data(self._content(f"{name}^{{tree}}", "tree"))
            found = {each: (f"{bits:06o}", key.hex()) for key, bits, each in entries}
            mode, name = found.get(part, ("", ""))
        return Item(mode, name, path) if mode not in {"", DIRECTORY, GITLINK} else None

    def file(self, tree: str, path: str) -> bytes | None:
        """The contents of a file of a tree, or None if there is none."""
        item = self.entry(tree, path)
        return self.read(item.object) if item else None

    def items(self, tree: str, *paths: str) -> Iterator[Item]:
        """All entries below a tree, or the entries at ``paths``, listed by one command."""
        listing = self.run("ls-tree", "-r", "-z", "--full-tree", tree, "--", *paths)
        for line in listing.decode("utf-8", "surrogateescape").split("\0")[:-1]:
            about, path = line.split("\t", 1)
            mode, _, name = about.split(" ")
            yield Item(mode, name, path)

    def missing(self, names: Iterable[str]) -> list[str]:
        """The objects that the repository lacks."""
        wanted = [name for name in dict.fromkeys(names) if name not in self._present]
        absent = [name for name in wanted if self._header(name) is None]
        self._present.update(set(wanted).difference(absent))
        return absent

    def symlinks(self, tree: str) -> dict[str, str]:
        """The symbolic links of a tree: target by path, without links whose contents are absent.

        Only a tree of a partial clone lacks contents; the source of a build is complete.
        """
        links = [item for item in self.items(tree) if item.mode == SYMLINK]
        absent = set(self.missing(item.object for item in links))
        present = [item for item in links if item.object not in absent]
        return {item.path: os.fsdecode(self.read(item.object)) for item in present}

    # Differences.  Not GitPython's ``Diff``: it wants a checked-out HEAD to name submodules.

    def diff(self, old: str, new: str) -> bytes:
        """The diff between two trees or commits, with full object names and binary contents."""
        return self.run(*DIFF, old, new)

    def changes(self, old: str, new: str) -> list[tuple[Item, Item]]:
        """The old and the new entry of each path that differs between two trees or commits."""
        fields = iter(self.run(*RAW_DIFF, old, new).decode("utf-8", "surrogateescape").split("\0"))
        found = []
        for about in fields:  # git-diff-tree(1), "Raw output format"
            if about.startswith(":"):
                old_mode, new_mode, before, after, _ = about[1:].split(" ")
                path = next(fields)
                found.append((Item(old_mode, before, path), Item(new_mode, after, path)))
        return found

    # Ancestry

    def is_ancestor(self, older: str, newer: str) -> bool:
        """Whether ``older`` is ``newer`` or one of its ancestors."""
        return self._merge_base("--is-ancestor", older, newer) is not None

    def merge_bases(self, one: str, other: str) -> list[str]:
        """The best common ancestors of two commits (git-merge-base(1)); empty if unrelated."""
        return (self._merge_base("--all", one, other) or "").splitlines()

    def _merge_base(self, *arguments: str) -> str | None:
        """The output of ``git merge-base``; None where its answer is no."""
        try:
            return self.text("merge-base", *arguments)
        except GitError as error:
            if error.status == 1:
                return None
            raise


# A temporary repository that sees the objects of mirrors, and in which trees are made.
#
# Trees are put together in an index of their own, without any file on disk: submodules take the
# places that their commits are pinned to, patches are applied, and the result has git's own
# identity.  It is no partial clone: a missing object is an error, never fetched implicitly.

# First in rank (gitattributes(5)): no attribute of a tree may change a byte of a file.
ATTRIBUTES = "* -text !eol !ident !filter !working-tree-encoding !diff !merge !export-subst\n"
OFFSET = re.compile(r"Hunk #(\d+) succeeded at (\d+) \(offset (-?\d+) lines?\)")


class NotApplicableError(Exception):
    """A diff does not fit a tree; the text is git's reason."""


class NoTreeError(Exception):
    """A directory has a file that git cannot store in a tree; the text names it."""


@dataclass(frozen=True, slots=True)
class CountedFile:
    """A file of a diff as git reads it: the numbers of added and removed lines (None: binary)."""

    path: str
    counts: tuple[int, int] | None


@dataclass(frozen=True, slots=True)
class Application:
    """An applied diff: the new tree, what git read, and the hunks that moved."""

    tree: str
    files: list[CountedFile]
    offsets: dict[tuple[int, int], int]
    """Lines that a hunk moved by; by the index of the file, and the number of the hunk."""


class Scratch(GitRepository):
    """A new bare repository at ``folder``, or the one there."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.create()
        (folder / "info").mkdir(exist_ok=True)
        (folder / "info" / "attributes").write_text(ATTRIBUTES)
        self._alternates: list[str] = []

    def add_objects(self, folders: Iterable[Path]) -> None:
        """Read objects in these directories too, now and later (gitrepository-layout(5))."""
        new = [str(each) for each in folders if each.is_dir()]
        if set(new) <= set(self._alternates):
            return
        self._alternates = list(dict.fromkeys([*self._alternates, *new]))
        alternates = self.folder / "objects" / "info" / "alternates"
        alternates.parent.mkdir(exist_ok=True)
        alternates.write_text("".join(f"{path}\n" for path in self._alternates))
        self.close()  # a running reader knows only the alternates of its start

    def blob(self, path: str, content: bytes) -> Item:
        """A new file, to be placed in a tree."""
        name = self.run("hash-object", "-w", "--stdin", stdin=content).decode().strip()
        return Item("100644", name, path)

    @contextmanager
    def _index(self, tree: str = "") -> Iterator[Path]:
        """A new index, empty or with a tree, which is read once."""
        index = self.folder / f"index-{uuid4().hex}"
        try:
            if tree:
                kept = self.folder / f"index-of-{tree}"
                if not kept.exists():
                    self.run("read-tree", tree, index=index)
                    index.replace(kept)
                shutil.copyfile(kept, index)
            yield index
        finally:
            index.unlink(missing_ok=True)

    def with_submodules(self, tree: str, parts: Mapping[str, str]) -> str:
        """``tree`` with other trees in the places of its submodules."""
        entries = []
        for path, part in parts.items():
            entries.append(f"0 {'0' * 40}\t{path}\0")
            for item in self.items(part):
                entries.append(f"{item.mode} {item.object}\t{path}/{item.path}\0")
        return self._with_entries(tree, entries) if parts else tree

    def with_items(self, tree: str, found: Mapping[str, Item]) -> str:
        """``tree`` with objects of other trees, by their new path."""
        entries = [f"{item.mode} {item.object}\t{path}\0" for path, item in found.items()]
        return self._with_entries(tree, entries)

    def _with_entries(self, tree: str, entries: list[str]) -> str:
        stdin = "".join(entries).encode("utf-8", "surrogateescape")
        with self._index(tree) as index:
            self.run("update-index", "--add", "-z", "--index-info", stdin=stdin, index=index)
            return self._write_tree(index)

    def _write_tree(self, index: Path) -> str:
        # Objects of a partial clone may be absent; exported files are read before.
        return self.run("write-tree", "--missing-ok", index=index).decode().strip()

    def tree_from(self, folder: Path) -> str:
        """The tree of a directory on disk, with every file, ignored by .gitignore or not.

        A repository at its top (``.git``) is left out.  Raises ``NoTreeError`` for one further
        down, for a device, and for a file that cannot be read.
        """
        for parent, folders, files in os.walk(folder):
            if ".git" in (*folders, *files) and Path(parent) != folder:
                where = Path(parent).relative_to(folder)
                raise NoTreeError(f"{where} is a repository of its own: it holds .git")
        with self._index() as index:
            try:
                add = ("add", "--all", "--force", "--", str(folder))
                self.run(*add, index=index, work_tree=folder)
                return self._write_tree(index)
            except GitError as error:
                raise NoTreeError(error.why) from error

    def apply(self, tree: str, diff: bytes, *options: str) -> Application:
        """Apply a diff to a tree, with more options: ``--reverse``, ``--3way``.

        Raises ``NotApplicableError``.
        """
        command = ("apply", "--cached", "--apply", "--verbose", "--numstat", "-z", *options, "-")
        with self._index(tree) as index:
            environment = {"GIT_INDEX_FILE": str(index)}
            try:
                counted, messages = run(self.folder, *command, stdin=diff, environment=environment)
                tree = self._write_tree(index)
            except GitError as error:
                raise NotApplicableError(error.why) from error
        offsets, at = dict[tuple[int, int], int](), -1
        for line in messages.splitlines():
            at += line.startswith("Checking patch ")
            if moved := OFFSET.match(line):
                offsets[at, int(moved[1])] = int(moved[3])
        return Application(tree, _counted(counted), offsets)

    def files_of(self, diff: bytes) -> list[CountedFile]:
        """The files of a diff, as git reads it.  Raises ``NotApplicableError``."""
        try:
            return _counted(self.run("apply", "--numstat", "-z", "-", stdin=diff))
        except GitError as error:
            raise NotApplicableError(error.why) from error

    def diff_of_mail(self, mail: bytes) -> bytes:
        """The diff in a mail, decoded, with the lines before it: what ``git am`` applies."""
        file = self.folder / f"mail-{uuid4().hex}"
        try:
            options = ("-n", "--no-scissors", "--quoted-cr=nowarn")
            self.run("mailinfo", *options, os.devnull, str(file), stdin=mail)
            return file.read_bytes()
        finally:
            file.unlink(missing_ok=True)

    def export(self, tree: str, target: Path) -> None:
        """Write a tree to the new directory ``target``, byte for byte."""
        target.mkdir()
        with self._index(tree) as index:
            self.run("checkout-index", "--all", "--force", index=index, work_tree=target)


def _counted(listing: bytes) -> list[CountedFile]:
    found = []
    for line in listing.decode("utf-8", "surrogateescape").split("\0")[:-1]:
        added, removed, path = line.split("\t", 2)
        found.append(CountedFile(path, None if added == "-" else (int(added), int(removed))))
    return found
