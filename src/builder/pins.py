"""Everything that the catalogue pins: whether it can still be fetched, and fetching it to stay."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from builder import checkout, families, upstream
from builder.catalogue import Catalogue, Entry
from builder.diagnosis import Case
from builder.errors import BuilderError, FetchError
from builder.patches import pieces
from builder.plan import (
    Archive,
    GitCommit,
    PlannedPatch,
    Released,
    SourceTree,
    resolve_patches,
    resolve_source,
)
from builder.platforms import Platforms
from builder.schema import BaseRecipe, PickPatch, PullPatch, Recipe, ScriptPatch
from builder.tools import docker, downloads, mirrors, pypi
from builder.tools.repositories import GITLINK
from builder.tools.scratch import Scratch, relative_url, submodule_urls

REGISTRY_PATIENCE = 30.0  # seconds
PLATFORM = Platforms("amd64")


@dataclass(frozen=True, slots=True)
class Pin:
    """One thing that a recipe pins.

    ``check`` raises ``FetchError`` unless it can still be fetched.
    """

    recipe: str
    kind: str
    """commit, submodule, pull, pick, script, file, archive or image."""
    what: str
    where: str
    check: Callable[[], None] = field(repr=False)


@dataclass(frozen=True, slots=True)
class Standing:
    """A pin, and why it cannot be fetched any more; empty where it can."""

    pin: Pin
    why: str

    @property
    def good(self) -> bool:
        """Whether it can still be fetched."""
        return not self.why


def pins_of(catalogue: Catalogue, names: list[str], work: Path) -> Iterator[Pin]:
    """The pins of recipes and of the bases below them; what several share comes once.

    ``work`` is a directory for proofs.  Raises ``RecipeError`` for a recipe that is wrong.
    """
    seen: set[tuple[str, str, str]] = set()
    for pin in _all(catalogue, names, work):
        identity = (pin.kind, pin.what, pin.where)
        if identity not in seen:
            seen.add(identity)
            yield pin


def _all(catalogue: Catalogue, names: list[str], work: Path) -> Iterator[Pin]:
    bases: dict[str, None] = {}
    for name in names:
        entry = catalogue.engine(name)
        assert entry.recipe is not None
        yield from _of_source(entry, catalogue.root, work)
        for planned in resolve_patches(entry, catalogue.root):
            yield from _of_patch(entry.name, planned, work)
        family = families.ENGINES[entry.recipe.family]
        for files in family.packages(entry.recipe, entry.file.parent, PLATFORM).values():
            yield from (_of_file(entry.name, file) for file in files)
        bases |= dict.fromkeys(catalogue.chain(entry.recipe.base))
    for name in bases:
        base = catalogue.base(name).recipe
        assert base is not None
        yield from _of_base(base)


def _of_source(entry: Entry[Recipe], root: Path, work: Path) -> Iterator[Pin]:
    assert entry.recipe is not None
    match resolve_source(entry.recipe.source, root):
        case GitCommit() as source:
            yield from _of_commit(entry.name, source, work)
        case Released(file=file):
            yield _of_file(entry.name, file)
        case Archive(url=url, sha256=digest):
            yield Pin(entry.name, "archive", digest, url, lambda: downloads.check(url))
        case SourceTree():
            return


def _of_commit(name: str, source: GitCommit, work: Path) -> Iterator[Pin]:
    """A commit, and its submodules where they are wanted: those that it can still tell of."""
    kept: list[Path] = []

    def check() -> None:
        kept.append(mirrors.reachable(source.url, source.commit, work))

    yield Pin(name, "commit", source.commit, source.url, check)
    if not source.submodules or not kept:
        return
    scratch = Scratch(work / f"{kept[0].stem}-scratch.git")
    scratch.see([kept[0] / "objects"])
    links = [item for item in scratch.items(source.commit) if item.mode == GITLINK]
    if not links:
        return
    named = _named(kept[0], source.url, source.commit, scratch)
    for link in links:
        where = source.moved.get(link.path) or relative_url(named.get(link.path, ""), source.url)
        inner = {
            path.removeprefix(f"{link.path}/"): url
            for path, url in source.moved.items()
            if path.startswith(f"{link.path}/")
        }
        for pin in _of_commit(name, GitCommit(where, link.object, moved=inner), work):
            kind = "submodule" if pin.kind == "commit" else pin.kind
            yield Pin(name, kind, pin.what, pin.where, pin.check)


def _named(repository: Path, url: str, commit: str, scratch: Scratch) -> dict[str, str]:
    blobs = [item.object for item in scratch.items(commit, ".gitmodules")]
    mirrors.fetch_contents(repository, url, blobs)
    return submodule_urls(scratch, commit)


def _of_patch(name: str, planned: PlannedPatch, work: Path) -> Iterator[Pin]:
    commits: list[tuple[str, str]] = []
    match planned.patch:
        case PullPatch(base=base, head=head):
            commits = [("pull", base), ("pull", head)]
        case PickPatch(pick=pick):
            commits = [("pick", pick.after), ("pick", pick.to)]
        case ScriptPatch(script=script):
            commits = [("script", script.commit)]
    for kind, commit in commits:
        yield Pin(name, kind, commit, planned.url, _reach(planned.url, commit, work))


def _reach(url: str, commit: str, work: Path) -> Callable[[], None]:
    def check() -> None:
        mirrors.reachable(url, commit, work)

    return check


def _of_file(name: str, file: pypi.File) -> Pin:
    what = f"{file.name} {file.version}"
    return Pin(name, "file", what, f"sha256:{file.sha256}", lambda: pypi.check(file))


def _of_base(base: BaseRecipe) -> Iterator[Pin]:
    for files in families.BASES[base.family].packages(base, PLATFORM).values():
        yield from (_of_file(base.name, file) for file in files)
    if base.root is not None and base.root.digest is not None:
        reference = f"{base.root.image}@{base.root.digest}"

        def check() -> None:
            if docker.pull_digest(reference, REGISTRY_PATIENCE) is None:
                raise FetchError(f"no registry gives {reference}")

        yield Pin(base.name, "image", base.root.digest, base.root.image, check)


def verify(pins: Iterator[Pin]) -> Iterator[Standing]:
    """Ask for each pin; submodules follow from their commits as these are found."""
    for pin in pins:
        try:
            pin.check()
        except BuilderError as error:
            yield Standing(pin, " ".join(part for part in (error.what, error.why) if part))
        else:
            yield Standing(pin, "")


def mirror(case: Case, entry: Entry[Recipe]) -> Iterator[str]:
    """Fetch everything that a recipe pins, to stay, and what the patch doctor reads of upstream.

    Yields a line for each thing that is kept.  Raises ``FetchError`` for what cannot be had.
    """
    repositories = case.repositories
    source = case.source
    if isinstance(source, GitCommit | Archive):
        checkout.tree_of(source, repositories, case.workshop.work)
    if isinstance(source, GitCommit):
        yield f"{source.url} {source.commit}"
        target = upstream.tracked(source.url, case.track, repositories)
        repositories.walk(source.url, source.commit, target.commit)
        yield f"{source.url} {target.name}: history up to {target.commit}"
    for planned in case.patches:
        if isinstance(planned.patch, ScriptPatch):
            repositories.pin(planned.url, planned.patch.script.commit)
        else:
            for _ in pieces(case.workshop, planned, ""):
                pass
        yield f"{planned.name} of {planned.url or 'this repository'}"
    assert entry.recipe is not None
    family = families.ENGINES[entry.recipe.family]
    files = [*family.packages(entry.recipe, entry.file.parent, PLATFORM).values()]
    files += [(source.file,)] if isinstance(source, Released) else []
    for several in files:
        pypi.fetch(several, repositories.cache, repositories.say)
        yield from (f"{file.name} {file.version}" for file in several)


def mirror_base(base: BaseRecipe, cache: Path, say: Callable[[str], None]) -> Iterator[str]:
    """Fetch the wheels of a base, to stay; like ``mirror``."""
    for files in families.BASES[base.family].packages(base, PLATFORM).values():
        pypi.fetch(files, cache, say)
        yield from (f"{file.name} {file.version}" for file in files)
