"""Mirrors of git repositories: the pinned commits in full, and the history without contents.

A mirror is a directory with two bare repositories.  ``pins.git`` holds each pinned commit at
depth 1; the ref ``refs/pins/COMMIT`` is written last, so that a commit with it is complete.
``history.git`` is a partial clone (git-rev-list(1), ``--filter=blob:none``): every commit and tree
below the requested commits, contents only on request; it answers which commit is an ancestor of
which, and which commits changed a file.  ``git.Scratch`` reads both, and fetches nothing by itself.
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


def _parsed(listing: bytes) -> Advertised:
    refs, head = dict[str, str](), ""
    for line in listing.decode("utf-8", "backslashreplace").splitlines():
        what, _, name = line.partition("\t")
        if what.startswith("ref: ") and name == "HEAD":
            head = what.removeprefix("ref: ")
        elif git.COMMIT.fullmatch(what):
            refs[name] = what
    return Advertised(refs=refs, head=head)


FETCH = ("fetch", "--quiet", "--no-tags", "--no-write-fetch-head")
WHOLE = "--depth=2147483647"
"""The whole history (INFINITE_DEPTH in git's shallow.h), and the server says where it ends.

Without it, git takes the parents that a shallow server lacks for objects of a partial clone, and
starts a fetch for each of them, which starts the next one.
"""
# The options with which git itself fetches into a partial clone (promisor-remote.c).
CONTENTS = ("-c", "fetch.negotiationAlgorithm=noop", *FETCH, "--filter=blob:none", "--stdin")


class Mirror:
    """The mirror of the repository at ``url``, below ``cache``.

    With ``offline`` nothing is fetched: a missing object is a ``FetchError`` that names it.  A
    server that does not answer, or has no such repository, is asked once only.
    """

    def __init__(self, url: str, cache: Path, log: Log, *, offline: bool = False) -> None:
        self.url = git.checked_url(url)
        self.offline = offline
        self._log = log
        self._lock: list[int] = []
        self._advertised: Advertised | None = None
        self._failure: FetchError | None = None
        digest = hashlib.sha256(url.encode()).hexdigest()[:10]
        name = re.sub(r"[^A-Za-z0-9.]+", "-", url.split("://", 1)[-1].rsplit("@", 1)[-1])
        self.folder = cache / "git" / f"{name.strip('-.')[-80:]}-{digest}"
        self.pins, self.history = self.folder / "pins.git", self.folder / "history.git"
        self._complete: set[str] = set()
        """The refs that this run has found complete."""
        self.pinned: set[str] = set()
        self.walked: set[str] = set()
        self.blobs: set[str] = set()
        """What this run has asked for: after a repair it is asked for again."""

    def pin(self, commit: str) -> None:
        """Have ``commit`` with its whole tree, at depth 1.

        Raises ``FetchError`` if the server does not have it, does not answer or refuses access, if
        it is a tag object or a tree, and if it is not mirrored and ``offline``.
        """
        self.pinned.add(git.checked_commit(commit))
        with self._lacking(self.pins, f"refs/pins/{commit}") as missing:
            if missing:
                self._log(f"fetching {commit[:12]} of {self.url}")
                self._ask(self.pins, commit, *FETCH, "--depth=1", "--", "origin", commit)

    def walk(self, commits: Iterable[str]) -> None:
        """Have the history of ``commits``, without the contents of files.

        Raises ``FetchError`` like ``pin``.
        """
        refs = [f"refs/walked/{git.checked_commit(commit)}" for commit in commits]
        shallow = self.history / "shallow"
        if shallow.exists():  # a run was killed before it was refused
            with self._locked():
                self._set_aside(self.history)
        with self._lacking(self.history, *refs) as missing:
            if missing:
                if not self.walked:
                    self._log(f"fetching the history of {self.url}")
                specs = [f"{ref.rpartition('/')[2]}:{ref}" for ref in missing]
                options = (*FETCH, WHOLE, "--filter=blob:none", "--", "origin")
                self._ask(self.history, "the history", *options, *specs)
                if shallow.exists():
                    for ref in missing:
                        git.run(self.history, "update-ref", "-d", ref)
                    shallow.unlink()
                    raise FetchError(
                        f"{self.url} is a shallow repository",
                        "it lacks a part of its history, from which commits are counted and "
                        "compared",
                        "name a repository with the whole history, or complete this one there: "
                        "`git fetch --unshallow`",
                    )
        self.walked.update(commits)

    def contents(self, blobs: Iterable[str]) -> None:
        """Have these blobs in the history's repository, which does not have them yet.

        Raises ``FetchError`` like ``pin``.
        """
        wanted = [git.checked_commit(blob) for blob in dict.fromkeys(blobs)]
        self.blobs.update(wanted)
        if wanted:
            self._require_network(f"the contents of {len(wanted)} files")
            names = "".join(f"{blob}\n" for blob in wanted).encode()
            with self._locked():
                self._ask(self.history, "file contents", *CONTENTS, "origin", stdin=names)

    @contextmanager
    def _lacking(self, repository: Path, *refs: str) -> Iterator[list[str]]:
        """The refs that a repository lacks, under the mirror's lock; then they are complete."""
        missing = [ref for ref in refs if not self._has(repository, ref)]
        if not missing:
            yield []
            return
        self._require_network(missing[0].rpartition("/")[2])
        with self._locked():
            yield [ref for ref in missing if not self._has(repository, ref)]
            self._complete.update(missing)

    def _has(self, repository: Path, ref: str) -> bool:
        if ref in self._complete:
            return True
        if not (repository / "HEAD").exists():
            return False
        try:
            git.run(repository, "rev-parse", "--quiet", "--verify", f"{ref}^{{tree}}")
        except git.GitError:
            return False
        self._complete.add(ref)
        return True

    def commits(self, start: str) -> list[str]:
        """The mirrored and the advertised commits whose names begin with these hex digits.

        Raises ``FetchError`` if the server does not answer.
        """
        advertised = self.advertised()
        named = {advertised.commit(ref) or "" for ref in advertised.refs}
        found = {commit for commit in named if commit.startswith(start)}
        for repository in (self.pins, self.history):
            if (repository / "HEAD").exists():
                names, _ = git.run(repository, "rev-parse", f"--disambiguate={start}")
                kinds, _ = git.run(repository, "cat-file", "--batch-check", stdin=names)
                lines = [line.split() for line in kinds.decode().splitlines()]
                found |= {name for name, kind, *_ in lines if kind == "commit"}
        return sorted(found)

    def advertised(self) -> Advertised:
        """The refs of the server; with ``offline`` the refs of the last answer.

        They are asked for once a run.  Raises ``FetchError`` if the server does not answer.
        """
        file = self.folder / "advertised.json"
        if self._advertised is None and self.offline:
            try:
                self._advertised = Advertised.model_validate_json(file.read_bytes())
            except (OSError, ValueError) as error:
                raise self._not_mirrored("its tags and branches") from error
        if self._advertised is None:
            listing = ("ls-remote", "--symref", "--quiet", "--", "origin")
            with self._locked():
                self._advertised = _parsed(self._ask(self.history, "the refs", *listing))
                write_json(file, self._advertised.model_dump())
        return self._advertised

    def repair(self) -> bool:
        """Check both repositories, and set damaged ones aside; return whether any was damaged."""
        self._complete.clear()
        with self._locked():
            known = [each for each in (self.pins, self.history) if each.exists()]
            damaged = [repository for repository in known if not git.is_intact(repository)]
            for repository in damaged:
                self._set_aside(repository)
        return bool(damaged)

    def _set_aside(self, repository: Path) -> None:
        # It may be the only copy of a commit that upstream has lost: it is not deleted.
        self._complete.clear()
        aside = self.folder / f"damaged-{time.strftime('%Y%m%dT%H%M%S')}-{repository.name}"
        for older in self.folder.glob(f"damaged-*-{repository.name}"):
            shutil.rmtree(older, ignore_errors=True)
        if repository.exists():
            repository.rename(aside)
            self._log(f"the mirror of {self.url} is damaged; it is fetched again (old: {aside})")

    def _ask(self, repository: Path, what: str, *arguments: str, stdin: bytes = b"") -> bytes:
        """Run a git command that talks to the server; with a new repository if it is damaged.

        ``what`` it fetches is named in errors: in ``pins`` a commit, which gets its ref.
        """
        if self._failure is not None:
            raise self._failure
        for again in (True, False):
            try:
                self._prepare(repository)
                output = self._ask_again(repository, *arguments, stdin=stdin)
                if repository == self.pins:
                    self._keep(what)
                break
            except git.GitError as error:
                if again and not (error.concerns_server or git.is_intact(repository)):
                    self._set_aside(repository)
                    continue
                failure = git.fetch_error(self.url, what, error)
                self._failure = failure if error.concerns_server else None
                raise failure from error
        return output

    def _ask_again(self, repository: Path, *arguments: str, stdin: bytes) -> bytes:

        def failure_of(error: BaseException) -> WebError | None:
            if not isinstance(error, git.GitError):
                return None
            if error.is_interrupted:
                policy.server_responded()
            return WebError(error.why.partition("\n")[0], temporary=error.is_temporary)

        policy = RetryPolicy(urlsplit(self.url).netloc.rpartition("@")[2], self._log, failure_of)
        held = self._lock
        output, _ = policy.call(
            lambda: git.run(repository, *arguments, stdin=stdin, network=True, inherit=held)
        )
        return output

    def _keep(self, commit: str) -> None:
        kind = git.text(self.pins, "cat-file", "-t", commit)
        if kind != "commit":
            raise GoneError(
                f"{commit} of {self.url} is not a commit",
                f"it is a {kind} object",
                "pin the commit behind it: `git rev-parse NAME^{commit}`",
            )
        git.run(self.pins, "update-ref", f"refs/pins/{commit}", commit)

    def _prepare(self, repository: Path) -> None:
        """Make a missing repository; remove leftovers of a killed git (we hold the lock)."""
        if not (repository / "HEAD").exists():
            shutil.rmtree(repository, ignore_errors=True)
            git.GitRepository(repository).create()
        locks = [*repository.glob("*.lock"), *(repository / "refs").rglob("*.lock")]
        for left in (*locks, *(repository / "objects").glob("pack/tmp_*")):
            left.unlink(missing_ok=True)
        # Set each time, so that a lost configuration is repaired.
        git.run(repository, "config", "remote.origin.url", self.url)

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
        why = "--offline fetches nothing"
        return FetchError(f"{what} of {self.url} is not mirrored", why, MIRROR_FIRST)


class Repositories:
    """The repositories of a run: mirrors below ``cache``; trees are made in ``work/scratch.git``.

    A mirror that turns out to be damaged when it is read is repaired, and read again.
    """

    def __init__(self, cache: Path, work: Path, log: Log, *, offline: bool = False) -> None:
        self.scratch = git.Scratch(work / "scratch.git")
        self.scratch.heal = self._heal
        self.close = self.scratch.close
        self._healing = False
        self.cache = cache
        self.offline = offline
        self.log = log
        self._mirrors: dict[str, Mirror] = {}

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
            was_open = self.scratch.close()
            repaired = [mirror.repair() for mirror in self._mirrors.values()]
            if not any(repaired) and not was_open:
                return False
            for url, mirror in self._mirrors.items():
                for commit in mirror.pinned:
                    mirror.pin(commit)
                mirror.walk(mirror.walked)
                self.contents(url, mirror.blobs)
        finally:
            self._healing = False
        return True

    def _read(self, mirror: Mirror) -> None:
        self.scratch.add_objects([mirror.pins / "objects", mirror.history / "objects"])

    def pin(self, url: str, commit: str) -> str:
        """Have a commit with its whole tree; return the tree.  Raises ``FetchError``."""
        mirror = self.mirror(url)
        mirror.pin(commit)
        self._read(mirror)
        return self.scratch.tree_of(commit)

    def walk(self, url: str, *commits: str) -> None:
        """Have the history of commits.  Raises ``FetchError``."""
        mirror = self.mirror(url)
        mirror.walk(commits)
        self._read(mirror)

    def contents(self, url: str, names: Iterable[str]) -> None:
        """Have the contents of blobs whose trees are there.  Raises ``FetchError``."""
        missing = self.scratch.missing(name for name in names if name.strip("0"))
        if missing:
            mirror = self.mirror(url)
            mirror.contents(missing)
            self._read(mirror)

    def changed_contents(self, url: str, old: str, new: str) -> list[str]:
        """Have the files that differ between two walked commits; their blobs, old and new."""
        items = [item for pair in self.scratch.changes(old, new) for item in pair]
        blobs = [item.object for item in items if item.mode != git.GITLINK]
        self.contents(url, blobs)
        return blobs

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
        if unused := sorted(set(moved) - used):
            raise FetchError(
                f"{commit} of {url} has no submodule {', '.join(unused)}",
                hint="correct [source.submodule] in the recipe",
            )
        return complete

    def _with_submodules(
        self, url: str, tree: str, prefix: str, moved: Mapping[str, str], used: set[str]
    ) -> str:
        links = [item for item in self.scratch.items(tree) if item.mode == git.GITLINK]
        named = submodule_urls(self.scratch, tree) if links else {}
        parts = {}
        for link in links:
            path = prefix + link.path
            if path in moved:
                used.add(path)
                where = moved[path]
            elif link.path in named:
                where = git.relative_url(named[link.path], url)
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


def submodule_urls(scratch: git.Scratch, tree: str) -> dict[str, str]:
    """The URLs in .gitmodules of a tree, by path (gitmodules(5)).

    git parses it from standard input, so that nothing in it takes effect.  Raises ``FetchError``
    if it is not in git's configuration format.
    """
    content = scratch.file(tree, ".gitmodules")
    if not content:
        return {}
    wanted = ("--null", "--get-regexp", r"^submodule\..*\.(path|url)$")
    try:
        listing = scratch.run("config", "--file", "-", *wanted, stdin=content)
    except git.GitError as error:
        if error.status == 1:
            return {}
        raise FetchError(".gitmodules cannot be read", error.why) from error
    found: dict[str, dict[str, str]] = {}
    for line in listing.decode("utf-8", "surrogateescape").split("\0")[:-1]:
        key, _, value = line.partition("\n")
        section, _, field = key.rpartition(".")
        found.setdefault(section, {})[field] = value
    return {m["path"]: m["url"] for m in found.values() if "path" in m and "url" in m}
