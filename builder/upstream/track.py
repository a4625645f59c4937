"""The states of an upstream: tags, branches, releases, trees; and how far a pin is behind."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from fnmatch import translate
from functools import cached_property
from itertools import islice
from typing import NamedTuple

from builder.core.errors import FetchError, PatchError
from builder.core.sizes import RELEASE, version_order
from builder.recipes import locks
from builder.recipes.catalog import Catalog, Entry
from builder.recipes.edit import NamedCommit
from builder.recipes.locks import PinnedFile
from builder.recipes.schema import BaseRecipe, GitSource, InstalledSource, PypiSource, Recipe, Track
from builder.sources import releases
from builder.sources.diff import NotADiffError, parse
from builder.sources.git import COMMIT, GITLINK, Item
from builder.sources.history import History, merge_of
from builder.sources.mirrors import PULL_REFS, Advertised, Mirror, Repositories, submodule_urls
from builder.sources.patches import Piece, diff_of

# Pull requests: their two ends, and the commit by which a history contains one.


class Ends(NamedTuple):
    """The two commits of a pull request's diff, and the subject of its last commit."""

    base: str
    head: str
    subject: str


def ends_of(url: str, number: int, repositories: Repositories, onto: str | None = None) -> Ends:
    """The commit where a pull request's branch left its target branch, and its present head.

    ``onto`` is the target branch; default: the repository's default branch.
    """
    advertised = repositories.mirror(url).advertised()
    head = advertised.pull(number)
    if head is None:
        raise FetchError(
            f"{url} has no pull request {number}",
            f"it offers no {PULL_REFS[0].format(number)}",
            "name the repository that has it with --repository URL",
        )
    branch = advertised.commit(f"refs/heads/{onto}" if onto else advertised.head)
    if branch is None:
        missing = f"no branch {onto}" if onto else "no default branch"
        raise FetchError(f"{url} has {missing}", hint="name the target branch with --onto")
    repositories.walk(url, head, branch)
    scratch = repositories.scratch
    before: str | None = branch
    if scratch.is_ancestor(head, branch):
        # Merged: the head of the target branch before the merge.
        merge = merge_of(scratch, head, branch)
        before = scratch.text("rev-parse", f"{merge}^1") if merge else None
    base = next(iter(scratch.merge_bases(head, before)), None) if before else None
    if base is None or base == head:
        raise PatchError(
            f"the commits of {head} cannot be distinguished from commits of its target branch",
            hint="name the target branch with --onto, or write base and head by hand",
        )
    return Ends(base, head, scratch.text("log", "--no-walk", "--format=%s", head))


def merged_by(
    repositories: Repositories, url: str, pull: int, ends: Ends, *, of: str, commit: str
) -> str | None:
    """The commit by which the history of ``commit`` contains a pull request; None: it does not.

    ``of`` is the repository of ``commit``.  The history contains the commits of the request, or the
    same changes in other commits.  Without a base only the head is looked for.
    """
    repositories.walk(url, ends.head)
    history = History(repositories, of, commit)
    name = f"pull {pull}"
    piece = Piece(name, b"", url, ends.base, ends.head)
    try:
        text = diff_of(repositories, url, ends.base, ends.head, name) if ends.base else b""
        found = history.introduced(piece, parse(text) if text else [])
    except (PatchError, NotADiffError):
        return None  # the request changes nothing that a patch can change
    return history.name(found.by) if found.arrived else None


# The package of a recipe whose base installs it by a lock.


class LockedPackage(NamedTuple):
    """A Python package as the lock of a base has it; ``python`` is the lock's ("3.13")."""

    base: Entry[BaseRecipe]
    file: PinnedFile
    python: str


def locked_package(recipe: Recipe, catalog: Catalog) -> LockedPackage | None:
    """The installed package that is a recipe's source; None where no base has it in its lock."""
    from packaging.utils import canonicalize_name

    if not isinstance(recipe.source, InstalledSource):
        return None
    wanted = canonicalize_name(recipe.source.installed)
    for name in catalog.chain(recipe.base):
        base = catalog.base(name)
        if base.recipe.python is not None:
            lock = locks.read_lock(base.file.parent / base.recipe.python.lock)
            for file in lock.runtime:
                if canonicalize_name(file.name) == wanted:
                    return LockedPackage(base, file, lock.python)
    return None


# The newest state.

LONG_AGO = 2012
TAGS = "refs/tags/"
ABBREVIATED = re.compile(r"[0-9a-f]{7,39}")
DIGITS_OF_COMMIT = re.compile(
    r"(?<![0-9a-z])(?=[0-9]*[a-f])(?=[a-f]*[0-9])[0-9a-f]{7,40}(?![0-9a-z])"
)
NUMBER = r"[0-9]+(?:[._][0-9]+)*"


@dataclass(frozen=True, slots=True)
class Lag:
    """How far a pin is behind a target: the number of missing commits, and since when.

    For PyPI it is the number of newer releases.
    """

    target: NamedCommit
    ahead: int
    since: str
    """The day (YYYY-MM-DD) of the first missing commit, or of the first newer tag where tags are
    followed; empty: there is none."""
    rewritten: bool
    """The target does not descend from the pin."""
    release: str = ""
    """The pinned release of PyPI; empty: a commit is pinned."""

    @property
    def days(self) -> int | None:
        """Days since then, as ``days_since`` counts them."""
        return days_since(self.since)


def days_since(day: str) -> int | None:
    """Days from a day (YYYY-MM-DD) until today, by UTC; 0 for no day, and for a day to come.

    None where the day is not one, or is before ``LONG_AGO``: a clock was wrong.
    """
    if not day:
        return 0
    try:
        since = date.fromisoformat(day)
    except ValueError:
        return None
    return max(0, (datetime.now(UTC).date() - since).days) if since.year > LONG_AGO else None


def upstream_target(url: str, track: Track | None, repositories: Repositories) -> NamedCommit:
    """The newest state of an upstream: by ``track``; without it the head of the default branch."""
    advertised = repositories.mirror(url).advertised()
    if track is not None and track.tag is not None:
        found = _tags(advertised, track.tag)
        if not found:
            raise FetchError(
                f"{url} has no tag like {track.tag}", hint="correct [track] in the recipe"
            )
        return found[-1]
    name = track.branch if track is not None and track.branch else None
    ref = f"refs/heads/{name}" if name else advertised.head
    commit = advertised.refs.get(ref)
    if commit is None:
        missing = f"no branch {name}" if name else "no default branch"
        raise FetchError(f"{url} has {missing}", hint="set branch = NAME in [track] of the recipe")
    return NamedCommit(ref.removeprefix("refs/heads/"), commit, "branch")


def resolve(url: str, ref: str, repositories: Repositories) -> NamedCommit:
    """A tag, a branch or a commit of a repository; a commit may be abbreviated."""
    if COMMIT.fullmatch(ref):
        return NamedCommit(ref, ref, "commit")
    mirror = repositories.mirror(url)
    advertised = mirror.advertised()
    tag, branch = advertised.commit(f"refs/tags/{ref}"), advertised.commit(f"refs/heads/{ref}")
    if tag is not None:
        return NamedCommit(ref, tag, "tag")
    if branch is not None:
        return NamedCommit(ref, branch, "branch")
    found = _abbreviated(mirror, ref) if ABBREVIATED.fullmatch(ref) else []
    if len(found) > 1:
        raise FetchError(
            f"{ref} is ambiguous in {url}", ", ".join(found), "write more digits of the commit"
        )
    if found:
        return NamedCommit(ref, found[0], "commit")
    raise FetchError(
        f"{url} has no tag, no branch and no known commit {ref}", hint=f"see `git ls-remote {url}`"
    )


def _abbreviated(mirror: Mirror, start: str) -> list[str]:
    """The commits that begin with these digits: in the mirror, else in the history of its head."""
    found = mirror.commits(start)
    head = mirror.advertised().refs.get(mirror.advertised().head)
    if not found and head is not None and not mirror.offline:
        mirror.walk([head])
        found = mirror.commits(start)
    return found


def lag(
    recipe: Recipe, catalog: Catalog, repositories: Repositories, commit: str | None = None
) -> Lag | None:
    """How far a recipe is behind its upstream; None where its source has no upstream.

    ``commit`` takes the place of the pinned commit.
    """
    source = recipe.source
    if not isinstance(source, GitSource):
        if repositories.offline:
            return None
        if isinstance(source, PypiSource):
            return _releases_behind(PinnedFile(source.pypi, source.version, source.sha256))
        found = locked_package(recipe, catalog)
        return _releases_behind(found.file) if found else None
    target = upstream_target(source.git, recipe.track, repositories)
    return commits_behind(source.git, commit or source.commit, target, recipe.track, repositories)


def _releases_behind(file: PinnedFile) -> Lag:
    newer, pin = releases.newer_releases(file), file.version
    if newer:
        file = PinnedFile(newer[-1].name, newer[-1].version, newer[-1].sha256)
    target = NamedCommit(file.version, file.version, "release", file)
    day = newer[0].day if newer else ""
    return Lag(target, len(newer), day, rewritten=False, release=pin)


def commits_behind(
    url: str, commit: str, target: NamedCommit, track: Track | None, repositories: Repositories
) -> Lag:
    """How far a commit is behind a target that was found by ``track``."""
    if target.commit == commit:
        return Lag(target, 0, "", rewritten=False)
    repositories.walk(url, commit, target.commit)
    scratch = repositories.scratch
    glob = track.tag if track is not None else None
    tags = _tags(repositories.mirror(url).advertised(), glob) if glob else []

    missing = f"{commit}..{target.commit}"
    ahead = scratch.text("rev-list", missing).split()
    # Commits of a merged branch may be older, but are upstream only since the merge.
    mainline = scratch.text("rev-list", "--first-parent", missing).split()
    among = set(ahead)
    newer = [tag.commit for tag in tags if tag.commit in among]
    first = newer[0] if newer else mainline[-1] if mainline else ""
    since = scratch.text("log", "--no-walk", "--format=%cs", first) if first else ""
    return Lag(target, len(ahead), since, not scratch.is_ancestor(commit, target.commit))


def committed(url: str, commit: str, repositories: Repositories) -> str:
    """The day (YYYY-MM-DD) of a commit."""
    repositories.walk(url, commit)
    return repositories.scratch.text("log", "--no-walk", "--format=%cs", commit)


def glob_of(tag: str) -> str:
    """The glob of a tag's kind: v0.2.0 is v[0-9]*, b10472-mix-4b653db is b[0-9]*-mix-*."""
    return re.sub(NUMBER, "[0-9]*", DIGITS_OF_COMMIT.sub("*", tag))


def matches(tag: str, glob: str) -> bool:
    """Whether a glob of ``[track]`` names a tag.

    ``[0-9]*`` is a number, dots included: ``v[0-9]*`` is v0.5.0, and not v1.0.0-beta.
    """
    pattern = translate(glob.replace("[0-9]*", "\0")).replace("\0", NUMBER)
    return re.match(pattern, tag) is not None


def _tags(advertised: Advertised, glob: str) -> list[NamedCommit]:
    names = [ref.removeprefix(TAGS) for ref in advertised.refs if ref.startswith(TAGS)]
    fitting = [name for name in names if not name.endswith("^{}") and matches(name, glob)]
    found = ((name, advertised.commit(TAGS + name)) for name in sorted(fitting, key=version_order))
    return [NamedCommit(name, commit, "tag") for name, commit in found if commit is not None]


def commit_count(url: str, commit: str, repositories: Repositories) -> int:
    """The number of commits in a commit's history: ``git rev-list --count``."""
    repositories.walk(url, commit)
    return int(repositories.scratch.text("rev-list", "--count", commit))


# The tree of a commit, and the commit of a new recipe.

MOST_OTHERS = 4
FETCHED_TOGETHER = 500  # commits: each is an argument of git
CMAKE_FILE = re.compile(r"(?:^|/)CMakeLists\.txt$|\.(?:cmake|in)$")
"""configure_file reads definitions in its templates, by custom NAME.in."""


@dataclass(frozen=True)
class SourceTree:
    """The commit that a target names; what is read of it is fetched then, and nothing more.

    Every attribute and method raises ``FetchError``, ``GoneError`` if upstream lacks the commit.
    """

    url: str
    """The repository's; empty: not known."""
    target: NamedCommit
    repositories: Repositories
    tree: str = ""
    """The tree of a release of PyPI, which is here whole; empty: the commit's."""

    @property
    def name(self) -> str:
        """The tag, the branch or the release that names it, else the commit."""
        return self.target.name

    @property
    def commit(self) -> str:
        """Its commit; empty: not known."""
        return self.target.commit

    @property
    def stored(self) -> str:
        """The tree, or the commit, that the scratch repository has."""
        return self.tree or self.target.commit

    @cached_property
    def _items(self) -> tuple[Item, ...]:
        if not self.tree:
            self.repositories.walk(self.url, self.target.commit)
        return tuple(self.repositories.scratch.items(self.stored))

    @cached_property
    def _blobs(self) -> dict[str, str]:
        return {item.path: item.object for item in self._items if item.mode != GITLINK}

    @cached_property
    def paths(self) -> frozenset[str]:
        """The paths of all files."""
        return frozenset(self._blobs)

    @cached_property
    def gitlinks(self) -> tuple[str, ...]:
        """The paths of its submodules."""
        return tuple(item.path for item in self._items if item.mode == GITLINK)

    def texts(self, paths: Iterable[str]) -> Mapping[str, str]:
        """The texts of the files that exist."""
        found = {path: self._blobs[path] for path in paths if path in self._blobs}
        if not self.tree:
            self.repositories.contents(self.url, list(found.values()))
        read = self.repositories.scratch.read
        return {path: read(blob).decode("utf-8", "replace") for path, blob in found.items()}

    @cached_property
    def cmake(self) -> str:
        """The text of all CMake files and ``configure_file`` inputs, without comments."""
        texts = self.texts(filter(CMAKE_FILE.search, self.paths)).values()
        return re.sub(r"#(?!cmakedefine)[^\n]*", "", "\n".join(texts))

    def submodule_urls(self) -> dict[str, str]:
        """The URLs of its submodules by path, as .gitmodules has them."""
        self.texts([".gitmodules"])
        return submodule_urls(self.repositories.scratch, self.stored)

    def commits(self) -> int | None:
        """The number of commits in its history; None: an sdist has no history."""
        if self.tree:
            return None
        return commit_count(self.url, self.target.commit, self.repositories)


@dataclass(frozen=True, slots=True)
class ChosenCommit:
    """A commit, and how it was found."""

    target: NamedCommit
    how: str
    """"the newest tag, of 2026-05-13; main is 31 commits ahead"."""
    others: tuple[str, ...] = ()
    """Tags that were not chosen: "v0.1.2 of 2026-05-13"."""


def chosen(url: str, ref: str | None, repositories: Repositories) -> ChosenCommit:
    """The commit of a ref; without one the commit of the newest tag, else of the default branch.

    The newest tag has the newest commit: repositories have tags of several kinds, whose numbers do
    not compare.  The histories are there afterwards.
    """
    if ref is not None:
        target = resolve(url, ref, repositories)
        repositories.walk(url, target.commit)
        return ChosenCommit(target, "" if target.kind == "commit" else f"{target.kind} {ref}")
    advertised = repositories.mirror(url).advertised()
    head = advertised.refs.get(advertised.head)
    if head is not None:
        repositories.walk(url, head)
    tags = _by_time(url, repositories)
    branch = advertised.head.removeprefix("refs/heads/")
    if not tags:
        if head is None:
            what = f"{url} has no tag and no default branch"
            if advertised.refs:
                raise FetchError(what, hint="name a --ref")
            why = "its list of refs is empty: so is the repository, or a web page answered"
            raise FetchError(what, why, f"check the URL: `git ls-remote {url}`")
        return ChosenCommit(
            NamedCommit(branch, head, "branch"), f"the head of {branch}: there is no tag"
        )
    newest = tags[0]
    day = committed(url, newest.commit, repositories)
    how = f"the newest tag, {newest.name} of {day}"
    if head is not None:
        ahead = repositories.scratch.text("rev-list", "--count", f"{newest.commit}..{head}")
        more = "1 more commit" if ahead == "1" else f"{ahead} more commits"
        how += f"; {branch} has {more}" if ahead != "0" else ""
    return ChosenCommit(
        newest, how, tuple(islice(_other_tags(url, tags, repositories), MOST_OTHERS))
    )


def _other_tags(url: str, tags: Sequence[NamedCommit], repositories: Repositories) -> Iterator[str]:
    """The other tags of the newest commit, and the newest tag of each other kind."""
    newest, kinds = tags[0], set[str]()
    for tag in tags:
        kind = glob_of(tag.name)
        if tag is not newest and tag.commit == newest.commit:
            yield f"{tag.name} of the same commit"
        elif kind not in kinds and tag is not newest:
            yield f"{tag.name} of {committed(url, tag.commit, repositories)}"
        kinds.add(kind)


def _by_time(url: str, repositories: Repositories) -> list[NamedCommit]:
    """All tags of commits, the newest commit first.

    Among the tags of one second, a release comes first (v1.2.0), then the greater number.
    """
    advertised = repositories.mirror(url).advertised()
    refs = [ref for ref in advertised.refs if ref.startswith(TAGS) and not ref.endswith("^{}")]
    tags = {ref.removeprefix(TAGS): advertised.commit(ref) or "" for ref in refs}
    missing = sorted(repositories.scratch.missing(tags.values()))
    for start in range(0, len(missing), FETCHED_TOGETHER):
        repositories.walk(url, *missing[start : start + FETCHED_TOGETHER])
    times = _times(repositories, tags.values())
    found = [
        (times[commit], RELEASE.fullmatch(name) is not None, version_order(name), name, commit)
        for name, commit in tags.items()
        if commit in times
    ]
    return [NamedCommit(name, commit, "tag") for *_, name, commit in sorted(found, reverse=True)]


def _times(repositories: Repositories, objects: Iterable[str]) -> dict[str, int]:
    scratch = repositories.scratch
    names = "".join(f"{name}\n" for name in objects).encode()
    kinds = scratch.run("cat-file", "--batch-check", stdin=names).decode().splitlines()
    commits = [line.split()[0] for line in kinds if line.split()[1] == "commit"]
    if not commits:
        return {}
    stdin = "".join(f"{name}\n" for name in commits).encode()
    listing = scratch.run("log", "--no-walk=unsorted", "--stdin", "--format=%H %ct", stdin=stdin)
    pairs = [line.split() for line in listing.decode().splitlines()]
    return {name: int(seconds) for name, seconds in pairs}
