"""Everything that the catalogue pins: whether it can still be fetched, and fetching it to stay."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

from builder import checkout, families, published_images, upstream
from builder.catalogue import Catalogue, Entry
from builder.diagnosis import Case
from builder.errors import BuilderError, GoneError
from builder.lock import Locked
from builder.patches import pieces
from builder.plan import (
    Archive,
    GitCommit,
    Installed,
    PlannedPatch,
    Released,
    SourceChoice,
    SourceTree,
    resolve_patches,
    resolve_source,
)
from builder.platforms import Platforms
from builder.schema import AddPatch, BaseRecipe, PickPatch, PullPatch, Recipe, ScriptPatch
from builder.tools import docker, downloads, mirrors, pypi
from builder.tools.repositories import GITLINK
from builder.tools.scratch import Scratch, relative_url, submodule_urls

REGISTRY_PATIENCE = 30.0  # seconds
PLATFORM = Platforms("amd64")


@dataclass(frozen=True, slots=True)
class Standing:
    """One thing that a recipe pins, and whether it can still be fetched.

    "gone": who was asked does not have it; "unasked": nobody answered.  ``why`` says more.
    """

    recipe: str
    kind: str
    """commit, submodule, pull, pick, script, file, archive or image."""
    what: str
    where: str
    state: Literal["ok", "gone", "unasked"]
    why: str = ""


def verify(catalogue: Catalogue, names: list[str], work: Path) -> Iterator[Standing]:
    """Ask for every pin of recipes and of the bases below them; what several share comes once.

    ``work`` is a directory for what has to be fetched to know: commits and trees, no contents.
    Raises ``RecipeError`` for a recipe that is wrong.
    """
    asked = _Asked(work)
    bases: dict[str, None] = {}
    for name in names:
        entry = catalogue.engine(name)
        assert entry.recipe is not None
        yield from asked.source(name, resolve_source(entry.recipe, catalogue.root))
        for planned in resolve_patches(entry, catalogue.root):
            yield from asked.patch(name, planned)
        family = families.ENGINES[entry.recipe.family]
        for files in family.packages(entry.recipe, entry.file.parent, PLATFORM).values():
            yield from asked.files(name, files)
        bases |= dict.fromkeys(catalogue.chain(entry.recipe.base))
    for name in bases:
        yield from asked.base(catalogue.base(name))


class _Asked:
    """What was asked for already, and where commits are fetched to."""

    def __init__(self, work: Path) -> None:
        self._work = work
        self._seen: set[tuple[str, str]] = set()

    def _ask(
        self, recipe: str, kind: str, what: str, where: str, check: Callable[[], object]
    ) -> Iterator[Standing]:
        """The standing of one pin, the first time that it is asked for."""
        if (what, where) in self._seen:
            return
        self._seen.add((what, where))
        try:
            check()
        except BuilderError as error:
            why = " ".join(part for part in (error.what, error.why) if part)
            state: Literal["gone", "unasked"] = (
                "gone" if isinstance(error, GoneError) else "unasked"
            )
            yield Standing(recipe, kind, what, where, state, why)
        else:
            yield Standing(recipe, kind, what, where, "ok")

    def source(self, recipe: str, source: SourceChoice) -> Iterator[Standing]:
        """A source, with the submodules of a commit."""
        match source:
            case GitCommit():
                yield from self._commit(recipe, "commit", source)
            case Released(file=file):
                yield from self.files(recipe, [file])
            case Archive(url=url, sha256=digest):
                yield from self._ask(recipe, "archive", digest, url, lambda: downloads.check(url))
            case SourceTree() | Installed():
                return

    def _commit(self, recipe: str, kind: str, source: GitCommit) -> Iterator[Standing]:
        fetched: list[Path] = []

        def check() -> None:
            fetched.append(mirrors.reachable(source.url, source.commit, self._work))

        yield from self._ask(recipe, kind, source.commit, source.url, check)
        if fetched and source.submodules:
            for submodule in _submodules(fetched[0], source):
                yield from self._commit(recipe, "submodule", submodule)

    def patch(self, recipe: str, planned: PlannedPatch) -> Iterator[Standing]:
        """The commits of a patch."""
        kind = ""
        commits: tuple[str, ...] = ()
        match planned.patch:
            case PullPatch(base=base, head=head):
                kind, commits = "pull", (base, head)
            case PickPatch(pick=pick):
                kind, commits = "pick", (pick.after, pick.to)
            case ScriptPatch(script=script):
                kind, commits = "script", (script.commit,)
            case AddPatch(add=add):
                kind, commits = "add", (add.commit,)
        for commit in commits:
            check = partial(mirrors.reachable, planned.url, commit, self._work)
            yield from self._ask(recipe, kind, commit, planned.url, check)

    def files(self, recipe: str, files: Iterable[Locked]) -> Iterator[Standing]:
        """Files of the package index."""
        for file in files:
            what, where = f"{file.name} {file.version}", f"sha256:{file.sha256}"
            yield from self._ask(recipe, "file", what, where, partial(pypi.check, file))

    def base(self, entry: Entry[BaseRecipe]) -> Iterator[Standing]:
        """The wheels of a base, and the image that it starts from: also one that is not pinned."""
        base = entry.recipe
        assert base is not None
        family = families.BASES[base.family]
        for files in family.packages(base, entry.file.parent, PLATFORM).values():
            yield from self.files(base.name, files)
        published, root = base.published, base.root
        if published is not None:
            name = f"{published.image}@{published.digest}" if published.digest else published.image
            what = published.digest or "not pinned"
            check = partial(_need_image, name)
            yield from self._ask(base.name, "image", what, published.image, check)
        if root is not None and root.digest is not None:
            check = partial(_need_image, f"{root.image}@{root.digest}")
            yield from self._ask(base.name, "image", root.digest, root.image, check)


def _need_image(reference: str) -> None:
    docker.need_in_registry(reference, REGISTRY_PATIENCE)


def _submodules(repository: Path, source: GitCommit) -> Iterator[GitCommit]:
    """The submodules of a commit that ``mirrors.reachable`` fetched."""
    scratch = Scratch(repository.with_suffix(".scratch"))
    scratch.see([repository / "objects"])
    links = [item for item in scratch.items(source.commit) if item.mode == GITLINK]
    if not links:
        return
    blobs = [item.object for item in scratch.items(source.commit, ".gitmodules")]
    mirrors.fetch_contents(repository, source.url, blobs)
    named = submodule_urls(scratch, source.commit)
    for link in links:
        url = source.moved.get(link.path) or relative_url(named.get(link.path, ""), source.url)
        prefix = f"{link.path}/"
        inner = {
            path.removeprefix(prefix): where
            for path, where in source.moved.items()
            if path.startswith(prefix)
        }
        yield GitCommit(url, link.object, moved=inner)


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
        elif isinstance(planned.patch, AddPatch):
            repositories.pin(planned.url, planned.patch.add.commit)
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


def mirror_base(entry: Entry[BaseRecipe], cache: Path, say: Callable[[str], None]) -> Iterator[str]:
    """Fetch the wheels and the published image of a base, to stay; like ``mirror``."""
    base = entry.recipe
    assert base is not None
    family = families.BASES[base.family]
    for files in family.packages(base, entry.file.parent, PLATFORM).values():
        pypi.fetch(files, cache, say)
        yield from (f"{file.name} {file.version}" for file in files)
    published = base.published
    if published is not None and published.digest is not None:
        local = published_images.fetch(base, published.digest, say)
        yield f"{published.image} in the engine, as {local}"
    elif published is not None:
        yield f"{published.image} is not kept: nothing pins it ({published.note})"
