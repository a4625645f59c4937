"""A commit of a repository, read without fetching the contents of more files than are asked for."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice

from builder.core.errors import FetchError
from builder.core.versions import RELEASE, version_order
from builder.recipes.edit import SHORT_COMMIT, NamedCommit
from builder.sources.repositories import Repositories
from builder.sources.repository import GITLINK, Item
from builder.sources.submodules import submodule_urls
from builder.upstream import track
from builder.upstream.licenses import identified
from builder.upstream.source_names import cmake_text

LICENSE_FILE = re.compile(r"(?:licen[cs]e|copying)(?:[._-][\w.-]*)?", re.IGNORECASE)
README_FILE = re.compile(r"readme(?:\.md|\.markdown)?", re.IGNORECASE)
FENCED = re.compile(r"^ *(```|~~~).*?^ *\1", re.MULTILINE | re.DOTALL)
HEADING = re.compile(r"^# +(.+?) *#*$", re.MULTILINE)
MARKUP = re.compile(r"!\[[^\]]*\]\([^)]*\)|<[^>]*>|[`*]|(?<=\])\([^)]*\)|[\[\]]")
LONGEST_SUMMARY = 200
MOST_OTHERS = 4
TAGS = "refs/tags/"
FETCHED_TOGETHER = 500  # commits: each is an argument of git


@dataclass(frozen=True)
class SourceTree:
    """The commit that a target names; its history is fetched when it is first read.

    Every attribute and method raises ``FetchError``, ``GoneError`` if upstream lacks the commit.
    """

    url: str
    target: NamedCommit
    repositories: Repositories

    @property
    def name(self) -> str:
        """The tag or the branch that names it, else the commit."""
        return self.target.name

    @cached_property
    def _items(self) -> tuple[Item, ...]:
        self.repositories.walk(self.url, self.target.commit)
        return tuple(self.repositories.scratch.items(self.target.commit))

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
        """The texts of the files that exist.  Raises ``FetchError``."""
        found = {path: self._blobs[path] for path in paths if path in self._blobs}
        self.repositories.contents(self.url, list(found.values()))
        read = self.repositories.scratch.read
        return {path: read(blob).decode("utf-8", "replace") for path, blob in found.items()}

    @cached_property
    def cmake(self) -> str:
        """The text of all CMake files and ``configure_file`` inputs, without comments."""
        return re.sub(r"#(?!cmakedefine)[^\n]*", "", cmake_text(self))

    def submodule_urls(self) -> dict[str, str]:
        """The URLs of its submodules by path, as .gitmodules has them.  Raises ``FetchError``."""
        self.texts([".gitmodules"])
        return submodule_urls(self.repositories.scratch, self.target.commit)

    def commits(self) -> int:
        """The number of commits in its history.  Raises ``FetchError``."""
        return track.commit_count(self.url, self.target.commit, self.repositories)

    def licenses(self) -> dict[str, tuple[str, ...]]:
        """The SPDX identifiers that each license file at the top may have."""
        files = [path for path in self.paths if LICENSE_FILE.fullmatch(path)]
        return {path: identified(text) for path, text in sorted(self.texts(files).items())}

    def heading(self) -> tuple[str, str] | None:
        """The first heading of the README, without markup, and the file's name."""
        files = sorted(path for path in self.paths if README_FILE.fullmatch(path))
        for path, text in self.texts(files[:1]).items():
            heading = HEADING.search(FENCED.sub("", text))
            plain = " ".join(MARKUP.sub("", heading[1]).split()) if heading else ""
            plain = "".join(each for each in plain if each.isprintable())[:LONGEST_SUMMARY]
            if plain:
                return plain, path
        return None


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
    not compare.  The histories are there afterwards.  Raises ``FetchError``.
    """
    if ref is not None:
        target = track.resolve(url, ref, repositories)
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
    day = track.committed(url, newest.commit, repositories)
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
        kind = track.glob_of(tag.name)
        if tag is not newest and tag.commit == newest.commit:
            yield f"{tag.name} of the same commit"
        elif kind not in kinds and tag is not newest:
            yield f"{tag.name} of {track.committed(url, tag.commit, repositories)}"
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


def default_version(target: NamedCommit) -> str:
    """The version of a recipe: a tag without its v, else the start of the commit."""
    if target.kind != "tag":
        return target.commit[:SHORT_COMMIT]
    plain = target.name[1:] if re.match(r"v[0-9]", target.name) else target.name
    return joined_by_single(plain)


def joined_by_single(name: str) -> str:
    """A name of letters and digits that are joined by single ``.``, ``_`` or ``-``."""
    return re.sub(r"([._-])[._-]+", r"\1", re.sub(r"[^A-Za-z0-9._-]+", "-", name)).strip("._-")
