"""Tries a recipe's patches on its pin and on newer states of its upstream; nothing is built."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace

from builder.core.errors import BuilderError, FetchError, GoneError
from builder.plan.inputs import GitCommit, PlannedPatch, PypiFile, SourceChoice
from builder.recipes.edit import NamedCommit
from builder.recipes.lockfile import PinnedFile
from builder.recipes.patches import ScriptPatch
from builder.recipes.sources import Track
from builder.sources import checkout, pypi
from builder.sources.apply import read
from builder.sources.diff import NotADiffError
from builder.sources.history import History
from builder.sources.patches import pieces
from builder.sources.patches_context import PatchContext
from builder.sources.repositories import Repositories
from builder.sources.repository import GITLINK
from builder.upstream import track as tracking
from builder.upstream.patch_state import PatchCheck, PatchFinding

PIN = "pin"
PYTHON = "3.12"  # as in vLLM's images; wheels of vLLM fit several


@dataclass
class PatchSet:
    """The patches of a recipe, with its source and its upstream.

    ``notes`` collects lines for the user while the patches are tried.
    """

    name: str
    source: SourceChoice
    track: Track | None
    patches: tuple[PlannedPatch, ...]
    context: PatchContext
    notes: list[str] = field(default_factory=list)

    @property
    def repositories(self) -> Repositories:
        """The mirrors."""
        return self.context.repositories

    def targets(self, against: Iterable[str]) -> Iterator[NamedCommit]:
        """The pin, upstream's newest state, and the refs ``against``.

        Raises ``FetchError`` for a ref that does not exist.
        """
        if isinstance(self.source, PypiFile):
            yield from self._releases(self.source, against)
            return
        if not isinstance(self.source, GitCommit):
            yield NamedCommit(PIN, "", "commit")
            return
        yield NamedCommit(PIN, self.source.commit, "commit")
        url = self.source.url
        yield tracking.upstream_target(url, self.track, self.repositories)
        for ref in against:
            yield tracking.resolve(url, ref, self.repositories)

    def _releases(self, source: PypiFile, against: Iterable[str]) -> Iterator[NamedCommit]:
        yield NamedCommit(PIN, source.file.version, "release")
        if self.repositories.offline:
            self.notes.append("other releases are not tried: nothing is fetched (--offline)")
            return
        for version in (None, *against):
            try:
                found = pypi.find_release(source.file, version, PYTHON)
            except GoneError as error:
                if version is not None:
                    raise
                self.notes.append(f"the newest release is not tried: {error.what}")
                continue
            file = PinnedFile(found.name, found.version, found.sha256)
            yield NamedCommit(found.version, found.version, "release", file)

    def tree(self, target: NamedCommit) -> str:
        """The tree of a target: complete for a script, else with the files of the patches."""
        if isinstance(self.source, PypiFile):
            release = replace(self.source, file=target.file or self.source.file)
            tree, note = checkout.tree_to_try(release, self.repositories, self.context.work)
            self.notes += [note] if note else []
            return tree
        if target.name == PIN or not isinstance(self.source, GitCommit):
            return checkout.tree_of(self.source, self.repositories, self.context.work)
        source, scratch = self.source, self.context.scratch
        if not any(isinstance(planned.patch, ScriptPatch) for planned in self.patches):
            self.repositories.walk(source.url, target.commit)
            items, paths = [*scratch.items(target.commit)], self._paths()
            links = [f"{item.path}/" for item in items if item.mode == GITLINK]
            if not source.submodules or not any(path.startswith(tuple(links)) for path in paths):
                wanted = [item.object for item in items if item.path in paths]
                self.repositories.contents(source.url, wanted)
                return scratch.tree_of(target.commit)
        complete = replace(source, commit=target.commit)
        return checkout.tree_of(complete, self.repositories, self.context.work)

    def _paths(self) -> set[str]:
        """The paths that the patches change; a script's are not known before it runs."""
        found: set[str] = set()
        for planned in self.patches:
            if isinstance(planned.patch, ScriptPatch):
                continue
            try:
                for piece in pieces(self.context, planned, ""):
                    files = read(self.context.scratch, piece.text)
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
    fitted: list[str] = []
    for target in patch_set.targets(refs):
        if target.name in shown or (target.commit in known and target.name not in refs):
            continue
        shown.add(target.name)
        if target.commit not in known:
            known[target.commit], trees = findings_on(patch_set, target, fitted)
            fitted = fitted or trees
        yield from (replace(found, target=target.name) for found in known[target.commit])


def on_pin(patch_set: PatchSet) -> list[PatchFinding]:
    """Try all patches of a recipe, in order, on its pin: a finding for each.

    Raises ``FetchError`` when the source cannot be fetched.
    """
    pin = next(patch_set.targets(()))
    return findings_on(patch_set, pin, [])[0]


def findings_on(
    patch_set: PatchSet, target: NamedCommit, fitted: list[str]
) -> tuple[list[PatchFinding], list[str]]:
    """A finding for each patch on one target, and the tree that each was tried on.

    ``fitted`` are the trees that they were tried on for the pin.
    """
    trees = [patch_set.tree(target)]
    history = _history(patch_set, target)
    findings = []
    for planned, like in zip(
        patch_set.patches, fitted or [""] * len(patch_set.patches), strict=True
    ):
        check = PatchCheck(
            patch_set.name,
            planned,
            target,
            patch_set.context,
            patch_set.notes,
            history,
            like,
            tuple((each.name, tree) for each, tree in zip(patch_set.patches, trees, strict=False)),
        )
        tree, finding = check.run(trees[-1])
        trees.append(tree)
        findings.append(finding)
    return findings, trees[:-1]


def _history(patch_set: PatchSet, target: NamedCommit) -> History | None:
    """The history of a target; None where it has none, or it cannot be fetched."""
    if not isinstance(patch_set.source, GitCommit) or not patch_set.patches:
        return None
    pin = "" if target.name == PIN else patch_set.source.commit
    try:
        return History(patch_set.repositories, patch_set.source.url, target.commit, pin)
    except FetchError as error:
        patch_set.notes.append(f"patches are compared by their lines only: {error.what}")
        return None
