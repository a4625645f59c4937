"""What becomes of a recipe's patches, on its pin and on what upstream has: nothing is built."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial

from builder import checkout, upstream
from builder.diffs import FileDiff, NotADiffError, parse
from builder.errors import BuilderError, FetchError, GoneError, PatchError, UntriedError
from builder.lock import Locked
from builder.patches import (
    AbsentError,
    HalfDoneError,
    Workshop,
    files_of,
    need_absence,
    pieces,
)
from builder.patching import FITS, Conflict, Fate, attempt
from builder.plan import GitCommit, PlannedPatch, Released, SourceChoice
from builder.schema import PickPatch, PullPatch, ScriptPatch, Track
from builder.tools import pypi
from builder.tools.git import GitError
from builder.tools.repositories import GITLINK, Repositories
from builder.upstream import Target

MOST_COMMITS = 5
MOST_LINES = 4  # of a conflict, that are looked up in the history
PIN = "pin"
PYTHON = "3.12"  # of vLLM's images; their wheels are for any
STATES = {
    "applies": "every line is where the patch expects it",
    "offset": "every line is there, further up or down",
    "fuzz": "applies with less context, as the recipe allows",
    "merged": "applies by a three-way merge, as the recipe allows",
    "upstream": "what it does is there already",
    "superseded": "what it mends is not there, or no longer",
    "absent": "the files that it changes are not there",
    "partly": "some of what it expects is there, some is not",
    "conflicts": "the lines that it expects have changed",
    "broken": "it is no patch, does nothing, or its commits are gone",
    "unexpected": "what it changes is there, and the recipe says that it is not",
    "untried": "its script needs an engine with the recipe's base",
}
"""What each finding means."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One patch on one tree.  ``commits`` are upstream's that explain the state."""

    recipe: str
    patch: str
    target: str
    commit: str
    state: str
    details: tuple[str, ...] = ()
    commits: tuple[str, ...] = ()
    expected: str = "applies"

    @property
    def good(self) -> bool:
        """Whether the patch applies, or is absent where that is expected."""
        return self.state == "absent" if self.expected == "absent" else self.state in FITS


@dataclass
class Case:
    """The patches of a recipe, and where its source and its upstream are."""

    name: str
    source: SourceChoice
    track: Track | None
    patches: tuple[PlannedPatch, ...]
    workshop: Workshop
    notes: list[str] = field(default_factory=list)

    @property
    def repositories(self) -> Repositories:
        """The mirrors."""
        return self.workshop.repositories

    def targets(self, against: Iterable[str]) -> Iterator[Target]:
        """The pin, upstream's newest, and the refs that are asked for.

        Raises ``FetchError`` for a ref that does not exist.
        """
        if isinstance(self.source, Released):
            yield from self._releases(self.source, against)
            return
        if not isinstance(self.source, GitCommit):
            yield Target(PIN, "", "commit")
            return
        yield Target(PIN, self.source.commit, "commit")
        url = self.source.url
        yield upstream.tracked(url, self.track, self.repositories)
        for ref in against:
            yield upstream.resolve(url, ref, self.repositories)

    def _releases(self, source: Released, against: Iterable[str]) -> Iterator[Target]:
        """The pin, the index's newest and the versions that are asked for."""
        yield Target(PIN, source.file.version, "release")
        if self.repositories.offline:
            self.notes.append("nothing is fetched (--offline): other releases are not looked at")
            return
        for version in (None, *against):
            try:
                found = pypi.release(source.file, version, PYTHON)
            except GoneError as error:
                if version is not None:
                    raise
                self.notes.append(f"the newest release is not looked at: {error.what}")
                continue
            file = Locked(found.name, found.version, found.sha256)
            yield Target(found.version, found.version, "release", file)

    def tree(self, target: Target) -> str:
        """The tree of a target: whole where a script reads it, else what the patches touch."""
        if isinstance(self.source, Released):
            there = replace(self.source, file=target.file or self.source.file)
            tree, note = checkout.tree_to_try(there, self.repositories, self.workshop.work)
            self.notes += [note] if note else []
            return tree
        if target.name == PIN or not isinstance(self.source, GitCommit):
            return checkout.tree_of(self.source, self.repositories, self.workshop.work)
        url = self.source.url
        scripts = any(isinstance(planned.patch, ScriptPatch) for planned in self.patches)
        if scripts or self._reaches_into_a_submodule(target):
            whole = GitCommit(url, target.commit, self.source.submodules, self.source.moved)
            return checkout.tree_of(whole, self.repositories, self.workshop.work)
        self.repositories.walk(url, target.commit)
        return self.repositories.sound(lambda: self._partial(url, target.commit))

    def _paths(self) -> list[str]:
        """Every path that the patches touch; a script's is not known before it ran."""
        found: set[str] = set()
        for planned in self.patches:
            if isinstance(planned.patch, ScriptPatch):
                continue
            try:
                for piece in pieces(self.workshop, planned, ""):
                    found.update(path for file in parse(piece.text) for path in file.paths)
            except (BuilderError, NotADiffError):
                continue  # told when the patch itself is tried
        return sorted(found)

    def _partial(self, url: str, commit: str) -> str:
        scratch = self.workshop.scratch
        tree = scratch.tree_of(commit)
        paths = self._paths()
        blobs = [item.object for item in scratch.items(tree, *paths)] if paths else []
        self.repositories.contents(url, blobs)
        return tree

    def _reaches_into_a_submodule(self, target: Target) -> bool:
        assert isinstance(self.source, GitCommit)
        if not self.source.submodules:
            return False
        self.repositories.walk(self.source.url, target.commit)
        scratch = self.workshop.scratch
        links = self.repositories.sound(
            lambda: [item.path for item in scratch.items(target.commit) if item.mode == GITLINK]
        )
        return any(path.startswith(f"{link}/") for path in self._paths() for link in links)


def diagnose(case: Case, against: Iterable[str] = ()) -> Iterator[Finding]:
    """Try every patch of a recipe, in order, on the pin, on upstream's newest, on other refs.

    A patch that does not apply is left out for those behind it.  What ``against`` names is shown
    under that name, also where another target is the same commit.  Raises ``FetchError`` when
    the source itself cannot be had.
    """
    asked = list(against)
    known: dict[str, list[Finding]] = {}
    shown: set[str] = set()
    for target in case.targets(asked):
        if target.name in shown or (target.commit in known and target.name not in asked):
            continue
        shown.add(target.name)
        if target.commit not in known:
            known[target.commit] = case.repositories.sound(partial(_on, case, target))
        yield from (replace(found, target=target.name) for found in known[target.commit])


def on_pin(case: Case) -> list[Finding]:
    """Try every patch of a recipe, in order, on its pin: a finding for each.

    Raises ``FetchError`` when the source cannot be had.
    """
    pin = next(case.targets(()))
    return case.repositories.sound(partial(_on, case, pin))


def _on(case: Case, target: Target) -> list[Finding]:
    """Every patch of a recipe on one target, in order."""
    tree = case.tree(target)
    findings = []
    for planned in case.patches:
        tree, finding = _try(case, planned, target, tree)
        findings.append(finding)
    return findings


def _try(case: Case, planned: PlannedPatch, target: Target, tree: str) -> tuple[str, Finding]:
    def found(state: str, details: Iterable[str] = (), commits: Iterable[str] = ()) -> Finding:
        return Finding(
            case.name,
            planned.name,
            target.name,
            target.commit,
            state,
            tuple(details),
            tuple(commits),
            planned.patch.expect,
        )

    start = tree
    moved: list[str] = []
    worst = "applies"
    try:
        if planned.patch.expect == "absent":
            return start, _expected_absent(case, planned, tree, found)
        for piece in pieces(case.workshop, planned, tree):
            files = files_of(planned, piece, case.notes.append)
            fate = attempt(
                case.workshop.scratch,
                tree,
                files,
                fuzz=planned.patch.fuzz,
                three_way=planned.patch.three_way,
            )
            if fate.state not in FITS:
                details = [str(conflict) for conflict in fate.conflicts]
                named = _explain(case, planned, target, fate, files)
                return start, found(fate.state, details, named)
            moved += [f"{path}, hunk {hunk}: {by:+} lines" for path, hunk, by in fate.offsets]
            moved += [f"it printed: {' | '.join(piece.printed)}"] if piece.printed else []
            worst = max(worst, fate.state, key=list(STATES).index)
            tree = fate.tree
    except UntriedError as error:
        return start, found("untried", [error.what])
    except AbsentError as error:
        return start, found("absent", [error.why])
    except HalfDoneError as error:
        return start, found("partly", [error.what, *error.why.splitlines()])
    except (PatchError, GoneError) as error:
        return start, found("broken", [error.what, *error.why.splitlines()])
    if tree == start:
        return start, found("broken", ["it changes nothing"])
    return tree, found(worst, moved)


def _expected_absent(
    case: Case, planned: PlannedPatch, tree: str, found: Callable[..., Finding]
) -> Finding:
    try:
        need_absence(case.workshop, planned, tree)
    except PatchError as error:
        return found("unexpected", [error.why])
    return found("absent")


def _explain(
    case: Case, planned: PlannedPatch, target: Target, fate: Fate, files: list[FileDiff]
) -> list[str]:
    """The commits of upstream that brought the patch, or took its lines away."""
    if not isinstance(case.source, GitCommit):
        return []
    try:
        if fate.state == "upstream":
            return History(case, target).bringers(planned, files)
        # What has changed is counted from the pin on: on the pin itself nothing has.
        return [] if target.name == PIN else History(case, target).changers(fate.conflicts)
    except (FetchError, GitError):
        return []  # the history is not to be had: the finding stands without names


class History:
    """Upstream's commits since the pin, up to a target."""

    def __init__(self, case: Case, target: Target) -> None:
        assert isinstance(case.source, GitCommit)
        self._repositories = case.repositories
        self._scratch = case.workshop.scratch
        self._url = case.source.url
        self._until = target.commit
        self._range = (
            target.commit if target.name == PIN else f"{case.source.commit}..{target.commit}"
        )
        self._repositories.walk(self._url, case.source.commit, target.commit)

    def bringers(self, planned: PlannedPatch, files: list[FileDiff]) -> list[str]:
        """Who brought what the patch does: its merge, or the first that has its lines."""
        head = ""
        if isinstance(planned.patch, PullPatch):
            head = planned.patch.head
        elif isinstance(planned.patch, PickPatch):
            head = planned.patch.pick.to
        if (
            head
            and not self._scratch.lacks([head])
            and self._scratch.is_ancestor(head, self._until)
        ):
            return [self._named(self._scratch.merge_of(head, self._until) or head)]
        for file in files:
            lines = [line for hunk in file.hunks for line in hunk.added if line.strip()]
            lines = lines or [line for hunk in file.hunks for line in hunk.removed if line.strip()]
            for line in sorted(lines, key=len, reverse=True)[:MOST_LINES]:
                found = self._touching(file.path, line.rstrip(b"\r\n").decode("utf-8", "replace"))
                if found:
                    return found[-1:]
        return []

    def changers(self, conflicts: Iterable[Conflict]) -> list[str]:
        """Who changed the lines that the patch expects."""
        names: dict[str, None] = {}
        for conflict in conflicts:
            lines = [line for line in conflict.expected if line.strip()]
            for line in sorted(lines, key=len, reverse=True)[:MOST_LINES]:
                names |= dict.fromkeys(self._touching(conflict.path, line))
            if not names:
                names |= dict.fromkeys(self._touching(conflict.path))
        return list(names)[:MOST_COMMITS]

    def _touching(self, path: str, line: str | None = None) -> list[str]:
        """Commits, newest first, that touched a file, or how often a line stands in it."""
        self._repositories.contents(self._url, self._scratch.logged(self._range, path))
        pickaxe = [f"-S{line}"] if line is not None else []
        found = self._scratch.text(
            *("log", "--format=%h %cs %s", "--no-renames", *pickaxe, self._range, "--", path)
        )
        return found.splitlines()

    def _named(self, commit: str) -> str:
        return self._scratch.text("log", "-1", "--format=%h %cs %s", commit)
