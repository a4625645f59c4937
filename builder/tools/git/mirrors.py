"""Mirrors of git repositories: the pinned commits, whole, and the history without contents.

A mirror is a directory with two bare repositories.  ``pins.git`` holds each pinned commit at
depth 1; a ref ``refs/pins/COMMIT`` is written when all of it is there, so a build needs nothing
else and nothing of it can be half there.  ``history.git`` is a partial clone
(git-rev-list(1), ``--filter=blob:none``): every commit and tree below the commits that were asked
for, contents only by request; it says what is an ancestor of what, and who changed which file.
Reading goes through ``scratch``, which fetches nothing by itself.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

from builder.errors import MIRROR_FIRST, FetchError, GoneError
from builder.tools.files import file_lock
from builder.tools.git import executable as git
from builder.tools.git.executable import GitError
from builder.tools.log import Log


@dataclass(frozen=True, slots=True)
class Advertised:
    """What a repository said that it has: commits by ref, and the branch that HEAD is."""

    refs: dict[str, str]
    head: str

    def commit(self, ref: str) -> str | None:
        """The commit of a full ref; of an annotated tag what it tags."""
        return self.refs.get(f"{ref}^{{}}", self.refs.get(ref))


class Mirror:
    """What is kept of the repository at ``url``, below ``cache``.

    With ``offline`` nothing is fetched: what is not there is a ``FetchError`` that names it.  A
    repository that does not answer, or is not there, is not asked again.
    """

    def __init__(self, url: str, cache: Path, log: Log, *, offline: bool = False) -> None:
        self.url = git.checked_url(url)
        self.offline = offline
        self._say = log
        self._lock: list[int] = []
        self._history_said = False
        self._advertised: Advertised | None = None
        self._failure: FetchError | None = None
        digest = hashlib.sha256(url.encode()).hexdigest()[:10]
        name = re.sub(r"[^A-Za-z0-9.]+", "-", url.split("://", 1)[-1].rsplit("@", 1)[-1])
        self.folder = cache / "git" / f"{name.strip('-.')[-80:]}-{digest}"
        self.pins = self.folder / "pins.git"
        self.history = self.folder / "history.git"

    @property
    def objects(self) -> list[Path]:
        """The directories that hold the objects of this mirror."""
        return [repository / "objects" for repository in (self.pins, self.history)]

    def pin(self, commit: str) -> None:
        """Have ``commit`` with its whole tree, at depth 1.

        Raises ``FetchError`` when the repository does not have it, does not answer or does not
        let us in, when it is a tag object or a tree, and when it is not there and ``offline``.
        """
        git.checked_commit(commit)
        if self._has_ref(self.pins, f"refs/pins/{commit}"):
            return
        self._require_network(commit)
        with self._alone():
            if self._has_ref(self.pins, f"refs/pins/{commit}"):
                return
            self._say(f"fetching {commit[:12]} of {self.url}")
            self._mended(self.pins, commit, lambda: self._fetch_pin(commit))

    def _fetch_pin(self, commit: str) -> None:
        self._prepare(self.pins)
        fetch = ("fetch", "--quiet", "--depth=1", "--no-tags", "--no-write-fetch-head")
        git.ask(self.pins, *fetch, "--", "origin", commit, hold=self._lock)
        kind = git.text(self.pins, "cat-file", "-t", commit)
        if kind != "commit":
            raise FetchError(
                f"{commit} of {self.url} is no commit",
                f"it is a {kind} object",
                "pin the commit that it stands for: `git rev-parse NAME^{commit}`",
            )
        git.run(self.pins, "update-ref", f"refs/pins/{commit}", commit)

    def walk(self, commits: Iterable[str]) -> None:
        """Have the history of ``commits``, without the contents of files.

        Raises ``FetchError`` like ``pin``.
        """
        wanted = [git.checked_commit(commit) for commit in dict.fromkeys(commits)]
        missing = [c for c in wanted if not self._has_ref(self.history, f"refs/walked/{c}")]
        if not missing:
            return
        self._require_network(missing[0])
        with self._alone():
            missing = [c for c in missing if not self._has_ref(self.history, f"refs/walked/{c}")]
            if missing:
                if not self._history_said:
                    self._say(f"fetching the history of {self.url}")
                    self._history_said = True
                self._mended(self.history, "the history", lambda: self._fetch_history(missing))

    def _fetch_history(self, commits: list[str]) -> None:
        self._prepare(self.history)
        specs = [f"{commit}:refs/walked/{commit}" for commit in commits]
        fetch = ("fetch", "--quiet", "--filter=blob:none", "--no-tags", "--no-write-fetch-head")
        git.ask(self.history, *fetch, "--", "origin", *specs, hold=self._lock)

    def contents(self, blobs: Iterable[str]) -> None:
        """Have these blobs in the history's repository; the caller knows that they are not.

        Raises ``FetchError`` like ``pin``.
        """
        wanted = [git.checked_commit(blob) for blob in dict.fromkeys(blobs)]
        if not wanted:
            return
        self._require_network(f"the contents of {len(wanted)} files")
        with self._alone():
            self._mended(self.history, "contents", lambda: self._fetch_contents(wanted))

    def _fetch_contents(self, blobs: list[str]) -> None:
        self._prepare(self.history)
        names = "".join(f"{blob}\n" for blob in blobs).encode()
        # As git itself fetches what a partial clone lacks (promisor-remote.c).
        settings = ("-c", "fetch.negotiationAlgorithm=noop")
        fetch = ("fetch", "--quiet", "--filter=blob:none", "--no-tags", "--no-write-fetch-head")
        git.ask(self.history, *settings, *fetch, "--stdin", "origin", stdin=names, hold=self._lock)

    def commits(self, start: str) -> list[str]:
        """The commits whose names begin with these hex digits: what is here and what is advertised.

        Raises ``FetchError`` when the repository does not answer.
        """
        advertised = self.advertised()
        named = {advertised.commit(ref) or "" for ref in advertised.refs}
        found = {commit for commit in named if commit.startswith(start)}
        for repository in (self.pins, self.history):
            if (repository / "HEAD").exists():
                names = git.run(repository, "rev-parse", f"--disambiguate={start}")[0]
                kinds = git.run(repository, "cat-file", "--batch-check", stdin=names)[0]
                lines = [line.split() for line in kinds.decode().splitlines()]
                found |= {name for name, kind, *_ in lines if kind == "commit"}
        return sorted(found)

    def advertised(self) -> Advertised:
        """What the repository has now, or had when it was last asked, where ``offline``.

        It is asked once: what comes while a run goes on does not matter to it.  Raises
        ``FetchError`` when it does not answer.
        """
        if self._advertised is None:
            self._advertised = self._known() if self.offline else self._told()
        return self._advertised

    @property
    def _kept(self) -> Path:
        return self.folder / "advertised.json"

    def _known(self) -> Advertised:
        try:
            return Advertised(**json.loads(self._kept.read_text("utf-8")))
        except (OSError, ValueError, TypeError) as error:
            raise self._not_mirrored("its tags and branches") from error

    def _told(self) -> Advertised:
        with self._alone():
            found: list[Advertised] = []
            self._mended(self.history, "the refs", lambda: found.append(self._ask_refs()))
            waiting = self._kept.with_name(f".{uuid4().hex}")
            waiting.write_text(json.dumps({"refs": found[0].refs, "head": found[0].head}), "utf-8")
            waiting.replace(self._kept)
        return found[0]

    def _ask_refs(self) -> Advertised:
        self._prepare(self.history)
        listing = git.ask(
            *(self.history, "ls-remote", "--symref", "--quiet", "--", "origin"), hold=self._lock
        )
        return _parsed(listing.decode("utf-8", "surrogateescape"))

    def mend(self) -> bool:
        """Look for damage, and set aside what is damaged; return whether anything was."""
        found = False
        with self._alone():
            for repository in (self.pins, self.history):
                if repository.exists() and not git.healthy(repository):
                    self._set_aside(repository)
                    found = True
        return found

    def _mended(self, repository: Path, what: str, work: Callable[[], None]) -> None:
        """Do it; where the repository turns out to be damaged, once more with a new one."""
        if self._failure is not None:
            raise self._failure
        try:
            work()
        except GitError as error:
            if error.general or git.healthy(repository):
                raise self._unanswered(what, error) from error
            self._set_aside(repository)
            try:
                work()
            except GitError as again:
                raise self._unanswered(what, again) from again

    def _unanswered(self, what: str, error: GitError) -> FetchError:
        failure = git.unanswered(self.url, what, error)
        if error.general:
            self._failure = failure
        return failure

    def _set_aside(self, repository: Path) -> None:
        # It may be the only copy of a commit that has vanished upstream: it is not deleted.
        aside = repository.with_name(f"damaged-{time.strftime('%Y%m%dT%H%M%S')}-{repository.name}")
        for older in self.folder.glob(f"damaged-*-{repository.name}"):
            shutil.rmtree(older, ignore_errors=True)
        if repository.exists():
            repository.rename(aside)
            self._say(f"the mirror of {self.url} is damaged; it is made anew (the old: {aside})")

    def _prepare(self, repository: Path) -> None:
        """Make the repository where it is not; clear what a killed git left (we hold the lock)."""
        if not (repository / "HEAD").exists():
            shutil.rmtree(repository, ignore_errors=True)
            git.initialize(repository)
        for lock in [*repository.glob("*.lock"), *(repository / "refs").rglob("*.lock")]:
            lock.unlink(missing_ok=True)
        for part in (repository / "objects").glob("pack/tmp_*"):
            part.unlink(missing_ok=True)
        # Set each time: a URL that changed hands is another mirror, a lost config is mended.
        git.run(repository, "config", "remote.origin.url", self.url)

    def _has_ref(self, repository: Path, ref: str) -> bool:
        if not (repository / "HEAD").exists():
            return False
        try:
            git.run(repository, "rev-parse", "--quiet", "--verify", f"{ref}^{{tree}}")
        except GitError:
            return False
        return True

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Hold the mirror's lock; git inherits it, so that an orphan's fetch is waited for."""
        with file_lock(self.folder / "lock") as lock:
            self._lock = [lock]
            try:
                yield
            finally:
                self._lock = []

    def _require_network(self, what: str) -> None:
        if self.offline:
            raise self._not_mirrored(what)

    def _not_mirrored(self, what: str) -> FetchError:
        return FetchError(
            f"{what} of {self.url} is not mirrored",
            "--offline fetches nothing",
            MIRROR_FIRST,
        )


def _parsed(listing: str) -> Advertised:
    """The output of ``git ls-remote --symref``."""
    refs: dict[str, str] = {}
    head = ""
    for line in listing.splitlines():
        what, _, name = line.partition("\t")
        if what.startswith("ref: ") and name == "HEAD":
            head = what.removeprefix("ref: ")
        elif git.COMMIT.fullmatch(what):
            refs[name] = what
    return Advertised(refs, head)


def reachable(url: str, commit: str, work: Path) -> Path:
    """Fetch a commit with its trees into a new repository: the server still has it.

    ``work`` is a directory for it.  Raises ``FetchError``.
    """
    repository = work / f"{uuid4().hex}.git"
    git.initialize(repository)
    git.run(repository, "config", "remote.origin.url", git.checked_url(url))
    fetch = ("fetch", "--quiet", "--depth=1", "--filter=blob:none", "--no-tags")
    try:
        git.ask(repository, *fetch, "--", "origin", git.checked_commit(commit))
        kind = git.text(repository, "cat-file", "-t", commit)
    except GitError as error:
        raise git.unanswered(url, commit, error) from error
    if kind != "commit":
        raise GoneError(f"{commit} of {url} is no commit", f"it is a {kind} object")
    return repository


def fetch_contents(repository: Path, url: str, blobs: Iterable[str]) -> None:
    """Have these blobs in a repository that ``reachable`` made.  Raises ``FetchError``."""
    names = [git.checked_commit(blob) for blob in blobs]
    if names:
        try:
            git.ask(repository, "fetch", "--quiet", "--depth=1", "--", "origin", *names)
        except GitError as error:
            raise git.unanswered(url, "contents", error) from error
