"""A commit of a repository, read without fetching the contents of more files than are asked for."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import islice
from typing import Any

from identify.vendor.licenses import LICENSES

from builder.core.errors import FetchError, RecipeError
from builder.core.sizes import RELEASE, version_order
from builder.engines.families import ENGINES
from builder.engines.family import ReadableTree
from builder.recipes.edit import SHORT_COMMIT, NamedCommit
from builder.recipes.probes import OptionProbe
from builder.recipes.schema import BaseRecipe, GitSource, Recipe
from builder.sources.git import GITLINK, Item, Scratch
from builder.sources.mirrors import Repositories, submodule_urls
from builder.upstream import track

# Finds names in a recipe that its source does not have, or that name an old version.

KeyPath = tuple[str | int, ...]
Missing = Iterator[tuple[KeyPath, str]]
HISTORY = {"notes", "why", "drop_when", "sha256"}


def absent_submodules(recipe: Recipe, scratch: Scratch, tree: str) -> Missing:
    """The keys of submodules that the tree of a commit does not have, with a message."""
    if not isinstance(recipe.source, GitSource):
        return
    links = [item.path for item in scratch.items(tree) if item.mode == GITLINK]
    for path in recipe.source.submodule:
        if not any(f"{path}/".startswith(f"{link}/") for link in links):
            yield ("source", "submodule", path), "the source has no submodule there"


def absent_paths(recipe: Recipe, scratch: Scratch, tree: str) -> Missing:
    """The keys of directories and files that a tree does not have, with a message.

    Paths below a submodule that is not fetched count as there.
    """
    items = [*scratch.items(tree)]
    paths = {item.path for item in items}
    paths |= {path[:at] for path in paths for at, sign in enumerate(path) if sign == "/"}
    links = tuple(f"{item.path}/" for item in items if item.mode == GITLINK)
    for index, part in enumerate(recipe.cmake):
        file = f"{part.source}/CMakeLists.txt".removeprefix("./")
        if file not in paths and not file.startswith(links):
            yield ("cmake", index, "source"), f"the source has no {part.source}/CMakeLists.txt"
    for index, path in enumerate(recipe.layout.keep):
        if path not in paths and not path.startswith(links):
            yield ("layout", "keep", index), f"the source has no {path}"
    yield from ENGINES[recipe.family].absent(recipe, paths)


def lost_options(recipe: Recipe, before: ReadableTree, now: ReadableTree) -> Missing:
    """The keys of probed options, and of their values, that the source before had, with a message.

    Nothing where the family does not read both trees.  Raises ``FetchError``.
    """
    family = ENGINES[recipe.family]
    probes = [(i, each) for i, each in enumerate(recipe.probe) if isinstance(each, OptionProbe)]
    if not family.reads_trees or not probes:
        return
    try:
        old = family.draft(before, recipe.cuda)
    except RecipeError:
        return
    try:
        new = family.draft(now, recipe.cuda)
    except RecipeError as error:
        yield ("family",), "; ".join([error.what, *error.why.splitlines()])
        return
    if old is None or new is None:
        return
    for index, probe in probes:
        if probe.option in old.options - new.options and not probe.absent:
            yield ("probe", index, "option"), f"the source no longer has {probe.option}"
        elif probe.option in old.values and probe.option in new.values:
            for place, value in enumerate(probe.has):
                if value in {*old.values[probe.option]} - {*new.values[probe.option]}:
                    listed = ", ".join(new.values[probe.option])
                    message = f"{probe.option} no longer lists {value}, but {listed}"
                    yield ("probe", index, "has", place), message


CMAKE_FILE = re.compile(r"(?:^|/)CMakeLists\.txt$|\.(?:cmake|in)$")
"""configure_file reads definitions in its templates, by custom NAME.in."""
OF_CMAKE = re.compile(r"(?:CMAKE|CUDA|CUDAToolkit)_\w+|BUILD_SHARED_LIBS|\w+_(?:DIR|ROOT)")
"""Definitions that cmake itself or its modules read."""


def cmake_text(tree: ReadableTree) -> str:
    """The text of all CMake files and ``configure_file`` inputs of a tree.

    Raises ``FetchError``.
    """
    return "\n".join(tree.texts(filter(CMAKE_FILE.search, tree.paths)).values())


def lost_definitions(recipe: Recipe, before: ReadableTree, now: ReadableTree) -> Missing:
    """The keys of cmake definitions that no cmake file names now, and one did before; a message.

    Raises ``FetchError``.
    """
    own: list[tuple[KeyPath, str]] = []
    for index, call in enumerate(recipe.cmake):
        own += [(("cmake", index, "define", name), name) for name in call.define]
        for place, each in enumerate(call.override):
            own.append((("cmake", index, "override", place, "name"), each.name))
    own = [(path, name) for path, name in own if not OF_CMAKE.fullmatch(name)]
    if not own:
        return
    texts = [cmake_text(tree) for tree in (before, now)]
    for path, name in own:
        old, new = (re.search(rf"\b{re.escape(name)}\b", text) for text in texts)
        if old and not new:
            yield path, f"no cmake file of the source names {name} any more"


def naming(recipe: Recipe, version: str) -> Missing:
    """The keys whose text names a version, with a message; keys about the past are left out."""
    for path, text, _ in _names(recipe, version):
        yield path, f"still names {version}: {text!r}"


def renamed(recipe: Recipe | BaseRecipe, version: str, new: str) -> dict[KeyPath, str]:
    """The same keys, with their texts for another version."""
    return {path: whole.sub(new, text) for path, text, whole in _names(recipe, version)}


def _names(
    recipe: Recipe | BaseRecipe, version: str
) -> Iterator[tuple[KeyPath, str, re.Pattern[str]]]:
    whole = re.compile(rf"(?<![0-9.]){re.escape(version)}(?![0-9]|\.[0-9])")
    for path, text in _texts(recipe.model_dump(exclude_defaults=True), ()):
        if HISTORY.isdisjoint(path) and whole.search(text):
            yield path, text, whole


def _texts(value: Any, at: KeyPath) -> Iterator[tuple[KeyPath, str]]:
    if isinstance(value, str):
        yield at, value
    elif isinstance(value, dict):
        for key, inner in value.items():
            yield from _texts(inner, (*at, key))
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from _texts(inner, (*at, index))


# Recognises the text of a license: its SPDX identifier, only where the text is exactly that one.
#
# The texts come from choosealicense.com, which pre-commit's ``identify`` ships.

TITLE = re.compile(r"\A\s*[\w /()-]{0,40}Licen[sc]e[\w /().-]{0,20}\n", re.IGNORECASE)
COPYRIGHT = re.compile(r"^[ \t]*(?:Copyright|\(C\)|©) (?P<who>.*)$", re.MULTILINE)
TERMS = re.compile(r"licen[cs]e|permi|commercial|use[ds]?\b|only|provided", re.IGNORECASE)
RESERVED = re.compile(r"^[ \t]*All rights reserved\.?[ \t]*$", re.MULTILINE | re.IGNORECASE)
VERSIONS = {"AGPL-3.0", "GPL-2.0", "GPL-3.0", "LGPL-2.1", "LGPL-3.0"}
"""Licenses whose text does not say whether later versions count (SPDX: -only, -or-later)."""


def identified(text: str) -> tuple[str, ...]:
    """The SPDX identifiers that a license text may have: one if it is known for sure, or none.

    Two for a license of the GNU project: the text does not say which.  White space, the title, the
    copyright holder and an appendix on how to apply it do not count (SPDX, "License matching
    guidelines"); any other difference does.
    """
    found = _known().get(_normal(text))
    if found is None:
        return ()
    return (f"{found}-only", f"{found}-or-later") if found in VERSIONS else (found,)


@cache
def _known() -> dict[str, str]:
    return {_normal(text): name for name, text in LICENSES}


def _normal(text: str) -> str:
    """The words that count; a line on the copyright with terms of its own stays."""
    lines = "\n".join(text.lstrip("\ufeff").splitlines())
    kept = COPYRIGHT.sub(lambda line: line[0] if TERMS.search(line["who"]) else "", lines)
    kept = TITLE.sub("", RESERVED.sub("", kept))
    words = " ".join(kept.split()).lower()
    return (
        words.partition("end of terms and conditions appendix: ")[0]
        .removesuffix("end of terms and conditions")
        .strip()
    )


# The tree of a commit.

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
