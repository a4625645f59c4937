"""Tries a recipe's patches on its pin and on newer states of its upstream; nothing is built."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NamedTuple

from builder.build.roots import in_engine
from builder.core.errors import BuilderError, FetchError, GoneError, PatchError, UntriedError
from builder.core.files import workspace
from builder.core.log import Log
from builder.core.platforms import architecture
from builder.core.settings import Settings
from builder.docker import engine as docker
from builder.plan import inputs
from builder.plan.resolver import Resolver
from builder.recipes.catalog import Catalog, Entry
from builder.recipes.edit import NamedCommit
from builder.recipes.locks import PinnedFile
from builder.recipes.patches import ScriptPatch
from builder.recipes.schema import Recipe, Track
from builder.sources import gather, releases
from builder.sources.diff import (
    Attempt,
    FileDiff,
    NotADiffError,
    PatchState,
    attempt,
    targets_of,
)
from builder.sources.git import GITLINK, GitError
from builder.sources.history import History
from builder.sources.mirrors import Repositories
from builder.sources.patches import (
    AbsentError,
    HalfDoneError,
    PatchContext,
    Piece,
    diff_of,
    files_of,
    overlapping,
    pieces,
    read_diff,
    require_absence,
)
from builder.upstream import track as tracking

PIN = "pin"
PYTHON = "3.12"  # as in vLLM's images; wheels of vLLM fit several
APPLIES, UPSTREAM, CONFLICTS = PatchState.APPLIES, PatchState.UPSTREAM, PatchState.CONFLICTS


class SourceSession(NamedTuple):
    """Mirrors and a work directory, shared by the commands on sources and patches."""

    catalog: Catalog
    settings: Settings
    context: PatchContext

    @property
    def repositories(self) -> Repositories:
        """The mirrors."""
        return self.context.repositories

    def patch_set(self, entry: Entry[Recipe]) -> PatchSet:
        """The patches and the source of a recipe."""
        recipe, context = entry.recipe, self.context
        if any(isinstance(patch, ScriptPatch) for patch in recipe.patch):
            image = _image_for_scripts(self.catalog, recipe, self.settings)
            context = PatchContext(self.repositories, context.work, image, context.log)
        source = inputs.resolve_source(recipe, self.catalog.root)
        patches = inputs.resolve_patches(entry, self.catalog.root)
        return PatchSet(entry.name, source, recipe.track, patches, context)


@contextmanager
def open_session(
    catalog: Catalog, settings: Settings, log: Log, *, offline: bool
) -> Iterator[SourceSession]:
    """A session with a work directory of its own, which is removed afterwards."""
    settings.require_directories()
    with workspace(settings.cache_dir) as work:
        repositories = Repositories(settings.cache_dir, work, log, offline=offline)
        yield SourceSession(catalog, settings, PatchContext(repositories, work, None, log))


def _image_for_scripts(catalog: Catalog, recipe: Recipe, settings: Settings) -> str | None:
    """An image of the recipe's base that has Python; None where no engine has one."""
    try:
        machine = settings.compile_on or architecture(docker.engine().architecture)
        if machine is None:
            return None
        below = catalog.base(recipe.base).recipe
        if below.published is not None:
            # Any version of it does: a script needs nothing but its Python.
            return next(iter(docker.image_names(f"builder-base/{below.name}:runtime-*")), None)
        base = Resolver(catalog, machine, settings.debian_root).resolve_base(recipe.base)
        stage = "devel" if "devel" in base.stages else "runtime"
        return base.references[stage] if in_engine(base, base.references[stage]) else None
    except BuilderError:
        return None


# The state of one patch on one tree, explained by the history of that tree.


@dataclass(frozen=True, slots=True)
class PatchFinding:
    """The state of one patch, or of one of its diffs, on one tree; and the commits of upstream that
    explain it."""

    recipe: str
    patch: str
    target: str
    commit: str
    state: PatchState
    details: tuple[str, ...] = ()
    commits: tuple[str, ...] = ()
    expected: str = "applies"

    @property
    def good(self) -> bool:
        """Whether the patch applies, or is absent where that is expected."""
        return self.state == (PatchState.ABSENT if self.expected == "absent" else APPLIES)


class PatchCheck(NamedTuple):
    """Tries one patch of a recipe on one target.

    ``history`` is the target's, where there is one.  ``earlier`` are the patches before it, each
    with the tree that it was tried on.
    """

    patches: PatchSet
    planned: inputs.PlannedPatch
    target: NamedCommit
    history: History | None
    earlier: tuple[tuple[str, str], ...]

    def run(self, start: str) -> tuple[str, PatchFinding]:
        """Try the patch on a tree: the new tree, or the same one where it does not apply."""
        note: tuple[str, ...] = ()
        try:
            if self.planned.patch.expect == "absent":
                try:
                    require_absence(self.patches.context, self.planned, start)
                except PatchError as error:
                    note = (f"{error.what}: {error.why}" if error.why else error.what,)
                else:
                    return start, self.finding(PatchState.ABSENT)
            found = list(pieces(self.patches.context, self.planned, start))
            diffs = [
                files_of(
                    self.patches.context.scratch, self.planned, piece, self.patches.notes.append
                )
                for piece in found
            ]
            tree, parts = self._series(start, found, diffs)
        except UntriedError as error:
            return start, self.finding(PatchState.UNTRIED, [error.what])
        except AbsentError as error:
            return start, self.finding(PatchState.ABSENT, [error.why])
        except (PatchError, GoneError) as error:
            state = CONFLICTS if isinstance(error, HalfDoneError) else PatchState.BROKEN
            hint = [error.hint] if isinstance(error, GoneError) and error.hint else []
            return start, self.finding(state, [error.what, *error.why.splitlines(), *hint])
        finding = self._together(parts)
        if finding.state == APPLIES and not note:
            if tree == start:
                return start, self.finding(PatchState.BROKEN, ["it changes nothing"])
            return tree, finding
        scratch, tried = self.patches.context.scratch, finding.state != APPLIES
        by = overlapping(scratch, self.earlier, start, diffs) if tried else ""
        if by:  # then upstream is not the reason
            did = (
                "makes this change already" if finding.state == UPSTREAM else "changed these lines"
            )
            details = [f"your earlier patch {by} {did}", *finding.details]
            finding = self.finding(CONFLICTS, details)
        return start, replace(finding, details=(*note, *finding.details))

    def _series(
        self, start: str, found: list[Piece], diffs: list[list[FileDiff]]
    ) -> tuple[str, list[PatchFinding]]:
        """Try the diffs of a patch, in order, on a tree.

        If they do not all apply, upstream may have all of them under one commit.
        """
        tree, parts = start, list[PatchFinding]()
        for piece, files in zip(found, diffs, strict=True):
            tree, part = self._piece(piece, files, tree)
            parts.append(part)
        states = {part.state for part in parts}
        if len(parts) > 1 and self.history and states not in ({APPLIES}, {UPSTREAM}):
            first, last = found[0], found[-1]
            text = diff_of(
                self.patches.context.repositories, first.url, first.base, last.head, first.name
            )
            piece = replace(last, text=text, base=first.base)
            files = files_of(self.patches.context.scratch, self.planned, piece, lambda _: None)
            by = self.history.introduced(piece, files)
            if by.lasts:
                named = (self.history.name(by.by),)
                return start, [
                    replace(part, state=UPSTREAM, details=(), commits=named) for part in parts
                ]
        return tree, parts

    def finding(
        self, state: PatchState, details: Iterable[str] = (), commits: Iterable[str] = ()
    ) -> PatchFinding:
        """The finding for the patch on the target."""
        return PatchFinding(
            self.patches.name,
            self.planned.name,
            self.target.name,
            self.target.commit,
            state,
            tuple(details),
            tuple(commits),
            self.planned.patch.expect,
        )

    def _together(self, parts: list[PatchFinding]) -> PatchFinding:
        if len(parts) == 1:
            return replace(parts[0], patch=self.planned.name)
        states = {part.state for part in parts}
        state = max(states, key=list(PatchState).index)
        if states == {UPSTREAM, APPLIES}:
            state = CONFLICTS
        if state == APPLIES:
            return self.finding(state, [line for part in parts for line in part.details])
        details = []
        for part in parts:
            by = [f"introduced by {name}" for name in part.commits if part.state == UPSTREAM]
            details += ["; ".join([f"{part.patch}: {part.state}", *by]), *part.details]
        named = dict.fromkeys(n for part in parts if part.state == state for n in part.commits)
        return self.finding(state, details, named)

    def _piece(self, piece: Piece, files: list[FileDiff], tree: str) -> tuple[str, PatchFinding]:
        fate = attempt(self.patches.context.scratch, tree, files)
        part = self.finding(fate.state, _details(piece, files, fate))
        part = replace(part, patch=piece.name)
        try:
            if self.history is not None:
                part = _explained(self.history, part, piece, files, fate)
        except (FetchError, GitError) as error:
            note = error.what if isinstance(error, FetchError) else error.why
            self.patches.notes.append(f"{piece.name} is compared by its lines only: {note}")
        return fate.tree if part.state == APPLIES else tree, part


def _details(piece: Piece, files: list[FileDiff], fate: Attempt) -> list[str]:
    if fate.state == APPLIES:
        moved = [f"{path}, hunk {hunk}: {by:+} lines" for path, hunk, by in fate.offsets]
        printed = [f"it printed: {' | '.join(piece.printed)}"] if piece.printed else []
        return [*moved, *fate.notes, *printed]
    count, hunks = len(fate.conflicts), sum(len(file.hunks) for file in files)
    part = fate.state == CONFLICTS and count < hunks
    share = [f"{count} of {hunks} hunks do not apply"] if part else []
    return share + [str(each) for each in fate.conflicts]


def _explained(
    history: History, part: PatchFinding, piece: Piece, files: list[FileDiff], fate: Attempt
) -> PatchFinding:
    """Add what the history shows: it has the change, or commits that changed the lines."""
    found = history.introduced(piece, files, by_ids=part.state != APPLIES)
    by = (history.name(found.by),) if found.by else ()
    if part.state == UPSTREAM:
        return replace(part, commits=by or tuple(history.nearest(piece, files)))
    if found.lasts and part.state != APPLIES:
        return replace(part, state=UPSTREAM, details=(), commits=by)
    if found.by:
        # What applies is not there.  But git may have found a copy of the lines, elsewhere.
        copied = found.lasts or (fate.offsets and not found.reverted_by)
        state = PatchState.DOUBTFUL if copied else part.state
        part = replace(part, state=state, details=(*part.details, history.described(found)))
    if part.state == APPLIES:
        return part
    moved = [history.moved(path, piece) for path in targets_of(files)]
    notes = [f"its lines moved to {path}" for path, _ in moved if path]
    if not notes:
        return replace(part, commits=tuple(history.changing(fate.conflicts, piece)))
    state = CONFLICTS if part.state == PatchState.ABSENT else part.state
    names = dict.fromkeys(name for _, by in moved for name in by)
    return replace(part, state=state, details=(*part.details, *notes), commits=tuple(names))


# Patches, tried on states of an upstream.


@dataclass
class PatchSet:
    """The patches of a recipe with its source; ``notes`` are lines for the user on the trials."""

    name: str
    source: inputs.SourceChoice
    track: Track | None
    patches: tuple[inputs.PlannedPatch, ...]
    context: PatchContext
    notes: list[str] = field(default_factory=list)

    @property
    def repositories(self) -> Repositories:
        """The mirrors."""
        return self.context.repositories

    def targets(self, against: Iterable[str]) -> Iterator[NamedCommit]:
        """The pin, upstream's newest state, and the refs ``against``."""
        if isinstance(self.source, inputs.PypiFile):
            yield from self._releases(self.source, against)
            return
        if not isinstance(self.source, inputs.GitCommit):
            yield NamedCommit(PIN, "", "commit")
            return
        yield NamedCommit(PIN, self.source.commit, "commit")
        url = self.source.url
        yield tracking.upstream_target(url, self.track, self.repositories)
        for ref in against:
            yield tracking.resolve(url, ref, self.repositories)

    def _releases(self, source: inputs.PypiFile, against: Iterable[str]) -> Iterator[NamedCommit]:
        yield NamedCommit(PIN, source.file.version, "release")
        if self.repositories.offline:
            self.notes.append("other releases are not tried: nothing is fetched (--offline)")
            return
        for version in (None, *against):
            try:
                found = releases.find_release(source.file, version, PYTHON)
            except GoneError as error:
                if version is not None:
                    raise
                self.notes.append(f"the newest release is not tried: {error.what}")
                continue
            file = PinnedFile(found.name, found.version, found.sha256)
            yield NamedCommit(found.version, found.version, "release", file)

    def tree(self, target: NamedCommit) -> str:
        """The tree of a target: complete for a script, else with the files of the patches."""
        if isinstance(self.source, inputs.PypiFile):
            release = replace(self.source, file=target.file or self.source.file)
            tree, note = releases.tree_to_try(release, self.repositories, self.context.work)
            self.notes += [note] if note else []
            return tree
        if target.name == PIN or not isinstance(self.source, inputs.GitCommit):
            return gather.tree_of(self.source, self.repositories, self.context.work)
        source, scratch = self.source, self.context.scratch
        if not any(isinstance(planned.patch, ScriptPatch) for planned in self.patches):
            self.repositories.walk(source.url, target.commit)
            items, paths = [*scratch.items(target.commit)], self._paths
            links = [f"{item.path}/" for item in items if item.mode == GITLINK]
            if not source.submodules or not any(path.startswith(tuple(links)) for path in paths):
                wanted = [item.object for item in items if item.path in paths]
                self.repositories.contents(source.url, wanted)
                return scratch.tree_of(target.commit)
        complete = replace(source, commit=target.commit)
        return gather.tree_of(complete, self.repositories, self.context.work)

    @cached_property
    def _paths(self) -> set[str]:
        """The paths that the patches change; a script's are not known before it runs."""
        found: set[str] = set()
        for planned in self.patches:
            if isinstance(planned.patch, ScriptPatch):
                continue
            try:
                for piece in pieces(self.context, planned, ""):
                    files = read_diff(self.context.scratch, piece.text)
                    found.update(path for file in files for path in file.paths)
            except (BuilderError, NotADiffError):
                continue  # reported when the patch itself is tried
        return found


def diagnose(patch_set: PatchSet, against: Iterable[str] = ()) -> Iterator[PatchFinding]:
    """Try all patches of a recipe, in order, on its pin, on upstream's newest and on other refs.

    If a patch does not apply, the later patches are tried without it.  A ref of ``against`` is
    shown under its own name, also where another target is the same commit.  Raises ``FetchError``
    when the source cannot be fetched.
    """
    refs = list(against)
    known: dict[str, list[PatchFinding]] = {}
    shown: set[str] = set()
    for target in patch_set.targets(refs):
        if target.name in shown or (target.commit in known and target.name not in refs):
            continue
        shown.add(target.name)
        if target.commit not in known:
            known[target.commit] = findings_on(patch_set, target)
        yield from (replace(found, target=target.name) for found in known[target.commit])


def on_pin(patch_set: PatchSet) -> list[PatchFinding]:
    """Try all patches of a recipe, in order, on its pin: a finding for each."""
    pin = next(patch_set.targets(()))
    return findings_on(patch_set, pin)


def findings_on(patch_set: PatchSet, target: NamedCommit) -> list[PatchFinding]:
    """A finding for each patch on one target."""
    trees, findings = [patch_set.tree(target)], []
    history = _history(patch_set, target)
    for planned in patch_set.patches:
        before = zip([each.name for each in patch_set.patches], trees, strict=False)
        check = PatchCheck(patch_set, planned, target, history, tuple(before))
        tree, finding = check.run(trees[-1])
        trees.append(tree)
        findings.append(finding)
    return findings


def _history(patch_set: PatchSet, target: NamedCommit) -> History | None:
    if not isinstance(patch_set.source, inputs.GitCommit) or not patch_set.patches:
        return None
    pin = "" if target.name == PIN else patch_set.source.commit
    try:
        return History(patch_set.repositories, patch_set.source.url, target.commit, pin)
    except FetchError as error:
        patch_set.notes.append(f"patches are compared by their lines only: {error.what}")
        return None
