"""Mirrors of git repositories: the pinned commits in full, and the history without contents.

A mirror is a directory with two bare repositories.  ``pins.git`` holds each pinned commit at
depth 1; the ref ``refs/pins/COMMIT`` is written last, so that a commit with it is complete.
``history.git`` is a partial clone (git-rev-list(1), ``--filter=blob:none``): every commit and tree
below the requested commits, contents only on request; it answers which commit is an ancestor of
which, and which commits changed a file.  ``repository.Scratch`` reads both, and fetches nothing by
itself.
"""

from __future__ import annotations

import hashlib
import re
import shutil
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict

from builder.core.errors import MIRROR_FIRST, FetchError, GoneError
from builder.core.files import file_lock, write_json
from builder.core.log import Log
from builder.core.web import RetryPolicy, WebError
from builder.sources import git
from builder.sources.git import (
    COMMIT,
    GitError,
    checked_commit,
    checked_url,
    fetch_error,
    relative_url,
)
from builder.sources.repository import GITLINK, GitRepository, Scratch, submodule_urls

# What a git server advertises.

# As GitHub, Gitea and Forgejo publish pull requests, and GitLab.
PULL_REFS = ("refs/pull/{}/head", "refs/merge-requests/{}/head")


class Advertised(BaseModel):
    """The refs that a server advertises: commits by ref, and the branch that HEAD is.

    A byte of a name that is not UTF-8 is written as ``\\xNN``; git allows no backslash in names.
    """

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")

    refs: dict[str, str]
    head: str

    def commit(self, ref: str) -> str | None:
        """The commit of a full ref; for an annotated tag the tagged commit."""
        return self.refs.get(f"{ref}^{{}}", self.refs.get(ref))

    def pull(self, number: int) -> str | None:
        """The present head of a pull request."""
        found = (self.refs.get(ref.format(number)) for ref in PULL_REFS)
        return next(filter(None, found), None)


def parse_refs(listing: bytes) -> Advertised:
    """The output of ``git ls-remote --symref``."""
    refs: dict[str, str] = {}
    head = ""
    for line in listing.decode("utf-8", "backslashreplace").splitlines():
        what, _, name = line.partition("\t")
        if what.startswith("ref: ") and name == "HEAD":
            head = what.removeprefix("ref: ")
        elif COMMIT.fullmatch(what):
            refs[name] = what
    return Advertised(refs=refs, head=head)


# One mirror.

FETCH = ("fetch", "--quiet", "--no-tags", "--no-write-fetch-head")
WHOLE = "--depth=2147483647"
"""The whole history (INFINITE_DEPTH in git's shallow.h), and the server says where it ends.

Without it, git takes the parents that a shallow server lacks for objects of a partial clone, and
starts a fetch for each of them, which starts the next one.
"""


class Mirror:
    """The mirror of the repository at ``url``, below ``cache``.

    With ``offline`` nothing is fetched: a missing object is a ``FetchError`` that names it.  A
    server that does not answer, or has no such repository, is asked once only.
    """

    def __init__(self, url: str, cache: Path, log: Log, *, offline: bool = False) -> None:
        self.url = checked_url(url)
        self.offline = offline
        self._log = log
        self._lock: list[int] = []
        self._logged_history = False
        self._advertised: Advertised | None = None
        self._failure: FetchError | None = None
        digest = hashlib.sha256(url.encode()).hexdigest()[:10]
        name = re.sub(r"[^A-Za-z0-9.]+", "-", url.split("://", 1)[-1].rsplit("@", 1)[-1])
        self.folder = cache / "git" / f"{name.strip('-.')[-80:]}-{digest}"
        self.pins = GitRepository(self.folder / "pins.git")
        self.history = GitRepository(self.folder / "history.git")
        self._complete: set[str] = set()
        """The refs that this run has found complete."""
        self.pinned: set[str] = set()
        self.walked: set[str] = set()
        self.blobs: set[str] = set()
        """What this run has asked for: after a repair it is asked for again."""

    @property
    def objects(self) -> list[Path]:
        """The directories that hold the objects of this mirror."""
        return [repository.folder / "objects" for repository in (self.pins, self.history)]

    def close(self) -> None:
        """End the processes that read its objects; refs are checked again."""
        self.pins.close()
        self.history.close()
        self._complete.clear()

    def pin(self, commit: str) -> None:
        """Have ``commit`` with its whole tree, at depth 1.

        Raises ``FetchError`` if the server does not have it, does not answer or refuses access, if
        it is a tag object or a tree, and if it is not mirrored and ``offline``.
        """
        ref = f"refs/pins/{checked_commit(commit)}"
        self.pinned.add(commit)
        if self._has_ref(self.pins, ref):
            return
        self._require_network(commit)
        with self._locked():
            if self._has_ref(self.pins, ref):
                return
            self._log(f"fetching {commit[:12]} of {self.url}")
            fetch = (*FETCH, "--depth=1", "--", "origin", commit)
            self._ask(self.pins, commit, *fetch, pinned=commit)
            self._complete.add(ref)

    def _has_ref(self, repository: GitRepository, ref: str) -> bool:
        if ref in self._complete:
            return True
        if not (repository.folder / "HEAD").exists():
            return False
        try:
            repository.run("rev-parse", "--quiet", "--verify", f"{ref}^{{tree}}")
        except GitError:
            return False
        self._complete.add(ref)
        return True

    def walk(self, commits: Iterable[str]) -> None:
        """Have the history of ``commits``, without the contents of files.

        Raises ``FetchError`` like ``pin``.
        """
        refs = {commit: f"refs/walked/{checked_commit(commit)}" for commit in commits}
        self.walked.update(refs)
        if (self.history.folder / "shallow").exists():  # a run was killed before it was refused
            with self._locked():
                self._set_aside(self.history)
        missing = [commit for commit, ref in refs.items() if not self._has_ref(self.history, ref)]
        if not missing:
            return
        self._require_network(missing[0])
        with self._locked():
            specs = [f"{c}:{refs[c]}" for c in missing if not self._has_ref(self.history, refs[c])]
            if not specs:
                return
            if not self._logged_history:
                self._log(f"fetching the history of {self.url}")
                self._logged_history = True
            fetch = (*FETCH, WHOLE, "--filter=blob:none", "--", "origin", *specs)
            self._ask(self.history, "the history", *fetch)
            self._require_whole(missing)
            self._complete.update(refs[commit] for commit in missing)

    def _require_whole(self, commits: list[str]) -> None:
        """Raise ``FetchError``, and forget these commits, if the server lacks their ancestors."""
        shallow = self.history.folder / "shallow"
        if not shallow.exists():
            return
        for commit in commits:
            self.history.text("update-ref", "-d", f"refs/walked/{commit}")
        shallow.unlink()
        raise FetchError(
            f"{self.url} is a shallow repository",
            "it lacks a part of its history, from which commits are counted and compared",
            "name a repository with the whole history, or complete this one there: "
            "`git fetch --unshallow`",
        )

    def contents(self, blobs: Iterable[str]) -> None:
        """Have these blobs in the history's repository, which does not have them yet.

        Raises ``FetchError`` like ``pin``.
        """
        wanted = [checked_commit(blob) for blob in dict.fromkeys(blobs)]
        self.blobs.update(wanted)
        if not wanted:
            return
        self._require_network(f"the contents of {len(wanted)} files")
        names = "".join(f"{blob}\n" for blob in wanted).encode()
        # The options with which git itself fetches into a partial clone (promisor-remote.c).
        fetch = ("-c", "fetch.negotiationAlgorithm=noop", *FETCH, "--filter=blob:none")
        with self._locked():
            self._ask(self.history, "file contents", *fetch, "--stdin", "origin", stdin=names)

    def commits(self, start: str) -> list[str]:
        """The mirrored and the advertised commits whose names begin with these hex digits.

        Raises ``FetchError`` if the server does not answer.
        """
        advertised = self.advertised()
        named = {advertised.commit(ref) or "" for ref in advertised.refs}
        found = {commit for commit in named if commit.startswith(start)}
        for repository in (self.pins, self.history):
            if (repository.folder / "HEAD").exists():
                names = repository.run("rev-parse", f"--disambiguate={start}")
                kinds = repository.run("cat-file", "--batch-check", stdin=names)
                lines = [line.split() for line in kinds.decode().splitlines()]
                found |= {name for name, kind, *_ in lines if kind == "commit"}
        return sorted(found)

    def advertised(self) -> Advertised:
        """The refs of the server; with ``offline`` the refs of the last answer.

        They are asked for once a run.  Raises ``FetchError`` if the server does not answer.
        """
        if self._advertised is None:
            self._advertised = self._read_refs() if self.offline else self._fetch_refs()
        return self._advertised

    @property
    def _refs_file(self) -> Path:
        return self.folder / "advertised.json"

    def _read_refs(self) -> Advertised:
        try:
            return Advertised.model_validate_json(self._refs_file.read_bytes())
        except (OSError, ValueError) as error:
            raise self._not_mirrored("its tags and branches") from error

    def _fetch_refs(self) -> Advertised:
        listing = ("ls-remote", "--symref", "--quiet", "--", "origin")
        with self._locked():
            found = parse_refs(self._ask(self.history, "the refs", *listing))
            write_json(self._refs_file, found.model_dump())
        return found

    def repair(self) -> bool:
        """Check both repositories, and set damaged ones aside; return whether any was damaged."""
        with self._locked():
            damaged = [
                repository
                for repository in (self.pins, self.history)
                if repository.folder.exists() and not git.is_intact(repository.folder)
            ]
            for repository in damaged:
                self._set_aside(repository)
        return bool(damaged)

    def _set_aside(self, repository: GitRepository) -> None:
        # It may be the only copy of a commit that upstream has lost: it is not deleted.
        self.close()
        name = repository.folder.name
        aside = self.folder / f"damaged-{time.strftime('%Y%m%dT%H%M%S')}-{name}"
        for older in self.folder.glob(f"damaged-*-{name}"):
            shutil.rmtree(older, ignore_errors=True)
        if repository.folder.exists():
            repository.folder.rename(aside)
            self._log(f"the mirror of {self.url} is damaged; it is fetched again (old: {aside})")

    def _ask(
        self,
        repository: GitRepository,
        what: str,
        *arguments: str,
        stdin: bytes = b"",
        pinned: str = "",
    ) -> bytes:
        """Run a git command that talks to the server; with a new repository if it is damaged.

        ``what`` it fetches is named in errors; the commit ``pinned`` gets its ref.
        """
        if self._failure is not None:
            raise self._failure
        fresh = False
        while True:
            try:
                self._prepare(repository)
                output = self._ask_again(repository.folder, *arguments, stdin=stdin)
                if pinned:
                    self._require_commit(pinned)
                    self.pins.text("update-ref", f"refs/pins/{pinned}", pinned)
            except GitError as error:
                if not (fresh or error.concerns_server or git.is_intact(repository.folder)):
                    self._set_aside(repository)
                    fresh = True
                    continue
                failure = fetch_error(self.url, what, error)
                self._failure = failure if error.concerns_server else None
                raise failure from error
            return output

    def _ask_again(self, folder: Path, *arguments: str, stdin: bytes) -> bytes:
        """Run git, again after a temporary failure of the server."""

        def failure_of(error: BaseException) -> WebError | None:
            if not isinstance(error, GitError):
                return None
            if error.is_interrupted:
                policy.server_responded()
            return WebError(error.why.partition("\n")[0], temporary=error.is_temporary)

        policy = RetryPolicy(urlsplit(self.url).netloc.rpartition("@")[2], self._log, failure_of)
        held = self._lock
        output, _ = policy.call(
            lambda: git.run(folder, *arguments, stdin=stdin, network=True, inherit=held)
        )
        return output

    def _require_commit(self, name: str) -> None:
        kind = self.pins.text("cat-file", "-t", name)
        if kind != "commit":
            raise GoneError(
                f"{name} of {self.url} is not a commit",
                f"it is a {kind} object",
                "pin the commit behind it: `git rev-parse NAME^{commit}`",
            )

    def _prepare(self, repository: GitRepository) -> None:
        """Make a missing repository; remove leftovers of a killed git (we hold the lock)."""
        folder = repository.folder
        if not (folder / "HEAD").exists():
            shutil.rmtree(folder, ignore_errors=True)
            repository.create()
        for lock in [*folder.glob("*.lock"), *(folder / "refs").rglob("*.lock")]:
            lock.unlink(missing_ok=True)
        for part in (folder / "objects").glob("pack/tmp_*"):
            part.unlink(missing_ok=True)
        # Set each time, so that a lost configuration is repaired.
        repository.text("config", "remote.origin.url", self.url)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Hold the mirror's lock; git inherits it, so that an orphaned fetch is waited for."""
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


# The git repositories of a run: their mirrors by URL, and one scratch repository over them.


class Repositories:
    """Mirrors below ``cache``; trees are made in ``work/scratch.git``.

    A mirror that turns out to be damaged when it is read is repaired, and read again.
    """

    def __init__(self, cache: Path, work: Path, log: Log, *, offline: bool = False) -> None:
        self.scratch = Scratch(work / "scratch.git")
        self.scratch.heal = self._heal
        self._healing = False
        self.cache = cache
        self.offline = offline
        self.log = log
        self._mirrors: dict[str, Mirror] = {}

    def close(self) -> bool:
        """End all processes that read objects; return whether the scratch repository had any."""
        for mirror in self._mirrors.values():
            mirror.close()
        return self.scratch.close()

    def mirror(self, url: str) -> Mirror:
        """The mirror of a repository."""
        if url not in self._mirrors:
            self._mirrors[url] = Mirror(url, self.cache, self.log, offline=self.offline)
        return self._mirrors[url]

    def _heal(self) -> bool:
        """Repair damaged mirrors, and fetch again what this run asked of them; whether that helps.

        It may also help if none is damaged: another run may have repaired one that is open here.
        """
        if self._healing:
            return False
        self._healing = True
        try:
            was_open = self.close()
            repaired = [mirror.repair() for mirror in self._mirrors.values()]
            if not any(repaired) and not was_open:
                return False
            for url, mirror in self._mirrors.items():
                for commit in mirror.pinned:
                    mirror.pin(commit)
                mirror.walk(mirror.walked)
                self.contents(url, [*mirror.blobs])
        finally:
            self._healing = False
        return True

    def pin(self, url: str, commit: str) -> str:
        """Have a commit with its whole tree; return the tree.  Raises ``FetchError``."""
        mirror = self.mirror(url)
        mirror.pin(commit)
        self.scratch.add_objects(mirror.objects)
        return self.scratch.tree_of(commit)

    def walk(self, url: str, *commits: str) -> None:
        """Have the history of commits.  Raises ``FetchError``."""
        mirror = self.mirror(url)
        mirror.walk(commits)
        self.scratch.add_objects(mirror.objects)

    def contents(self, url: str, names: list[str]) -> None:
        """Have the contents of blobs whose trees are there.  Raises ``FetchError``."""
        missing = self.scratch.missing(name for name in names if name.strip("0"))
        if missing:
            mirror = self.mirror(url)
            mirror.contents(missing)
            self.scratch.add_objects(mirror.objects)

    def tree(
        self, url: str, commit: str, *, submodules: bool = True, moved: Mapping[str, str]
    ) -> str:
        """The tree of a commit with the trees of its submodules, recursively.

        ``moved`` has URLs by path, which override .gitmodules.  Raises ``FetchError`` for
        a submodule without a URL, and for a path in ``moved`` that is not a submodule.
        """
        tree = self.pin(url, commit)
        if not submodules:
            return tree
        used: set[str] = set()
        complete = self._with_submodules(url, tree, "", moved, used)
        unused = sorted(set(moved) - used)
        if unused:
            raise FetchError(
                f"{commit} of {url} has no submodule {', '.join(unused)}",
                hint="correct [source.submodule] in the recipe",
            )
        return complete

    def _with_submodules(
        self, url: str, tree: str, prefix: str, moved: Mapping[str, str], used: set[str]
    ) -> str:
        links = [item for item in self.scratch.items(tree) if item.mode == GITLINK]
        named = submodule_urls(self.scratch, tree) if links else {}
        parts = {}
        for link in links:
            path = prefix + link.path
            if path in moved:
                used.add(path)
                where = moved[path]
            elif link.path in named:
                where = relative_url(named[link.path], url)
            else:
                raise FetchError(
                    f"{url} has a submodule at {path}, and its .gitmodules has no URL for it",
                    f"the commit is {link.object}",
                    "set submodules = false in the recipe if the build does not need it, else "
                    f'submodule = {{ "{path}" = "URL" }}',
                )
            part = self.pin(where, link.object)
            parts[link.path] = self._with_submodules(where, part, f"{path}/", moved, used)
        return self.scratch.with_submodules(tree, parts)
