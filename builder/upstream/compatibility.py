"""What becomes of a recipe's patches, on its pin and on what upstream has: nothing is built."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial

from builder.errors import BuilderError, FetchError, GoneError
from builder.patches.context import PatchContext
from builder.patches.diff import NotADiffError, parse
from builder.patches.history import History
from builder.patches.series import pieces
from builder.plan.inputs import GitCommit, PlannedPatch, PypiFile, SourceChoice
from builder.recipes.edit import Target
from builder.recipes.lockfile import PinnedFile
from builder.recipes.schema import ScriptPatch, Track
from builder.sources import checkout
from builder.tools.git.repositories import Repositories
from builder.tools.git.repository import GITLINK
from builder.tools.python import pypi
from builder.upstream import track as tracking
from builder.upstream.patch_state import Finding, GpuTest
from builder.upstream.track import rank

PIN = "pin"
PYTHON = "3.12"  # of vLLM's images; their wheels are for any


@dataclass
class PatchSet:
    """The patches of a recipe, and where its source and its upstream are."""

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

    def targets(self, against: Iterable[str]) -> Iterator[Target]:
        """The pin, upstream's newest, and the refs that are asked for.

        Raises ``FetchError`` for a ref that does not exist.
        """
        if isinstance(self.source, PypiFile):
            yield from self._releases(self.source, against)
            return
        if not isinstance(self.source, GitCommit):
            yield Target(PIN, "", "commit")
            return
        yield Target(PIN, self.source.commit, "commit")
        url = self.source.url
        yield tracking.tracked(url, self.track, self.repositories)
        for ref in against:
            yield tracking.resolve(url, ref, self.repositories)

    def _releases(self, source: PypiFile, against: Iterable[str]) -> Iterator[Target]:
        """The pin, the index's newest and the versions that are asked for."""
        yield Target(PIN, source.file.version, "release")
        if self.repositories.offline:
            self.notes.append("nothing is fetched (--offline): other releases are not looked at")
            return
        for version in (None, *against):
            try:
                found = pypi.find_release(source.file, version, PYTHON)
            except GoneError as error:
                if version is not None:
                    raise
                self.notes.append(f"the newest release is not looked at: {error.what}")
                continue
            file = PinnedFile(found.name, found.version, found.sha256)
            yield Target(found.version, found.version, "release", file)

    def tree(self, target: Target) -> str:
        """The tree of a target: whole where a script reads it, else what the patches touch."""
        if isinstance(self.source, PypiFile):
            there = replace(self.source, file=target.file or self.source.file)
            tree, note = checkout.tree_to_try(there, self.repositories, self.context.work)
            self.notes += [note] if note else []
            return tree
        if target.name == PIN or not isinstance(self.source, GitCommit):
            return checkout.tree_of(self.source, self.repositories, self.context.work)
        url = self.source.url
        scripts = any(isinstance(planned.patch, ScriptPatch) for planned in self.patches)
        if scripts or self._reaches_into_a_submodule(target):
            whole = GitCommit(url, target.commit, self.source.submodules, self.source.moved)
            return checkout.tree_of(whole, self.repositories, self.context.work)
        self.repositories.walk(url, target.commit)
        return self.repositories.repairing(lambda: self._partial(url, target.commit))

    def _paths(self) -> list[str]:
        """Every path that the patches touch; a script's is not known before it ran."""
        found: set[str] = set()
        for planned in self.patches:
            if isinstance(planned.patch, ScriptPatch):
                continue
            try:
                for piece in pieces(self.context, planned, ""):
                    found.update(path for file in parse(piece.text) for path in file.paths)
            except (BuilderError, NotADiffError):
                continue  # told when the patch itself is tried
        return sorted(found)

    def _partial(self, url: str, commit: str) -> str:
        scratch = self.context.scratch
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
        scratch = self.context.scratch
        links = self.repositories.repairing(
            lambda: [item.path for item in scratch.items(target.commit) if item.mode == GITLINK]
        )
        return any(path.startswith(f"{link}/") for path in self._paths() for link in links)


def diagnose(case: PatchSet, against: Iterable[str] = ()) -> Iterator[Finding]:
    """Try every patch of a recipe, in order, on the pin, on upstream's newest, on other refs.

    A patch that does not apply is left out for those behind it.  What ``against`` names is shown
    under that name, also where another target is the same commit.  Raises ``FetchError`` when
    the source itself cannot be had.
    """
    asked = list(against)
    known: dict[str, list[Finding]] = {}
    shown: set[str] = set()
    fitted: list[str] = []
    for target in case.targets(asked):
        if target.name in shown or (target.commit in known and target.name not in asked):
            continue
        shown.add(target.name)
        if target.commit not in known:
            tried = case.repositories.repairing(partial(_on, case, target, fitted))
            known[target.commit], trees = tried
            fitted = fitted or trees
        yield from (replace(found, target=target.name) for found in known[target.commit])


def on_pin(case: PatchSet) -> list[Finding]:
    """Try every patch of a recipe, in order, on its pin: a finding for each.

    Raises ``FetchError`` when the source cannot be had.
    """
    pin = next(case.targets(()))
    return case.repositories.repairing(partial(_on, case, pin, []))[0]


def _on(case: PatchSet, target: Target, fitted: list[str]) -> tuple[list[Finding], list[str]]:
    """Every patch of a recipe on one target, in order; the tree that each was tried on.

    ``fitted`` are those trees of the pin.
    """
    trees = [case.tree(target)]
    history = _history(case, target)
    source = case.source
    older = isinstance(source, PypiFile) and rank(source.file.version) < rank(target.name)
    findings = []
    for planned, like in zip(case.patches, fitted or [""] * len(case.patches), strict=True):
        gpu_test = GpuTest(
            case.name, planned, target, case.context, case.notes, history, like, older
        )
        tree, finding = gpu_test.run(trees[-1])
        trees.append(tree)
        findings.append(finding)
    return findings, trees[:-1]


def _history(case: PatchSet, target: Target) -> History | None:
    """The history of a target; None where there is none, or it is not to be had."""
    if not isinstance(case.source, GitCommit) or not case.patches:
        return None
    pin = "" if target.name == PIN else case.source.commit
    try:
        return History(case.repositories, case.source.url, target.commit, pin)
    except FetchError as error:
        case.notes.append(f"patches are told by their lines only: {error.what}")
        return None
