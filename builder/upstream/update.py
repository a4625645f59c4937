"""Recipes at another state of upstream: pins that move, pull requests, recipes that are frozen."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Generic, NamedTuple

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from builder.core.errors import GoneError, PatchError, Problem, RecipeError
from builder.engines.families import ENGINES
from builder.engines.trees import READERS, own_version
from builder.plan.inputs import GitCommit, PypiFile, resolve_source, where
from builder.recipes import edit
from builder.recipes.catalog import Catalog, Entry, R, locks_of, parse, read_text
from builder.recipes.edit import NamedCommit
from builder.recipes.fields import checked_ref, checked_url
from builder.recipes.locks import PinnedFile
from builder.recipes.patches import PullPatch
from builder.recipes.probes import OptionProbe
from builder.recipes.schema import BaseRecipe, GitSource, InstalledSource, PypiSource, Recipe
from builder.sources import gather, git, releases
from builder.sources.diff import PatchState
from builder.upstream import track
from builder.upstream.patches import PIN, PYTHON, PatchFinding, SourceSession, diagnose, on_pin
from builder.upstream.track import Ends, SourceTree, ends_of, locked_package, merged_by


@dataclass(frozen=True, slots=True)
class RecipeChange(Generic[R]):
    """The file of a recipe or a base, and its new text; ``write`` writes it."""

    file: Path
    new_file: Path
    text: str
    new_text: str
    recipe: R
    locks: dict[Path, Path]
    """The lock files that get another name, and their new names."""
    base: RecipeChange[BaseRecipe] | None
    """The change of the recipe's base, which is written first."""
    shared: bool
    """Other files name this one: it stays beside the new one."""

    @property
    def changed(self) -> bool:
        """Whether the texts differ."""
        return self.text != self.new_text

    @property
    def difference(self) -> str:
        """The unified diff, the base's first."""
        own = edit.difference(self.text, self.new_text, self.file.name, self.new_file.name)
        return self.base.difference + own if self.base else own

    def write(self, *, keep: bool = False) -> None:
        """Write the new file atomically; where its name is new, the old file is removed.

        Lock files with another name move too.  ``keep`` leaves the old files in place, and the old
        recipe says that it is kept.  Raises
        ``RecipeError`` where a lock file cannot be read, ``WorldError`` where the directory is not
        writable.
        """
        keep = keep or self.shared
        if self.base is not None:
            self.base.write(keep=keep)
        for lock, new_lock in self.locks.items():
            edit.write(new_lock, read_text(lock), like=lock)
        edit.write(self.new_file, self.new_text, like=self.file)
        if keep and self.new_file != self.file and isinstance(self.recipe, Recipe):
            kept = f"the version before {self.recipe.version}"
            edit.write(self.file, edit.with_kept(self.text, kept))
        if not keep:
            for old in (*self.locks, *([self.file] if self.new_file != self.file else [])):
                old.unlink()


def _change(
    catalog: Catalog, entry: Entry[R], text: str, base: RecipeChange[BaseRecipe] | None = None
) -> RecipeChange[R]:
    recipe, problems = parse(text, entry.file, type(entry.recipe))
    if recipe is None:
        raise RecipeError(f"{entry.name} would not be valid", problems=problems)
    file = entry.file.with_name(f"{recipe.name}.toml")
    if file != entry.file and file.exists():
        raise RecipeError(
            f"{entry.name} would be renamed to {recipe.name}, which exists already",
            hint="remove one of them, or name another ref with --to",
        )
    if file != entry.file:  # the reason is the old version's
        text = edit.edited(text, {("kept",): None})
    folder, locks = entry.file.parent, locks_of(recipe)
    moved = {
        folder / lock: folder / locks[table]
        for table, lock in locks_of(entry.recipe).items()
        if locks.get(table, lock) != lock
    }
    others = [*catalog.engines.values(), *catalog.bases.values()]
    above = [each for each in others if each.recipe and each.recipe.base == entry.name]
    extended = [
        each
        for each in catalog.engines.values()
        if each.recipe and each.recipe.extends == entry.name
    ]
    shared = len(above) > 1 or bool(extended)
    return RecipeChange(entry.file, file, entry.text, text, recipe, moved, base, shared)


def findings_of(session: SourceSession, change: RecipeChange[Recipe]) -> list[PatchFinding]:
    """The findings for the patches of a changed recipe."""
    entry = Entry(change.recipe.name, change.file, change.new_text, change.recipe)
    patch_set = session.patch_set(entry)
    return list(diagnose(patch_set)) if patch_set.patches else []


def pin_pull_request(
    session: SourceSession,
    entry: Entry[Recipe],
    pull: int,
    *,
    repository: str | None = None,
    onto: str | None = None,
    why: str | None = None,
) -> RecipeChange[Recipe]:
    """Add a pull request to a recipe as a patch, or pin its current base and head anew.

    Raises ``RecipeError`` for a URL or a branch that git must not be given, ``FetchError`` when
    there is no such request, ``PatchError`` when its commits cannot be distinguished from commits
    of its target branch, or the pin contains them.
    """
    recipe = entry.recipe
    home = recipe.source.git if isinstance(recipe.source, GitSource) else None
    url = repository or home
    if url is None:
        raise RecipeError(
            f"{entry.name} has no git repository", hint="name one with --repository URL"
        )
    checked_url(url)
    onto = onto and checked_ref(onto)
    try:
        ends = ends_of(url, pull, session.repositories, onto)
    except PatchError:
        # Its target branch contains it without a merge commit, and so may the pin.
        head = session.repositories.mirror(url).advertised().pull(pull) or ""
        _require_new(session, entry, url, pull, Ends("", head, ""))
        raise
    _require_new(session, entry, url, pull, ends)
    known = [patch.why for patch in recipe.patch if getattr(patch, "pull", None) == pull]
    patch = PullPatch(
        pull=pull,
        base=ends.base,
        head=ends.head,
        git=None if url == home else url,
        why=why or (known[0] if known else ends.subject),
    )
    return _change(session.catalog, entry, edit.with_pull_request(entry.text, recipe, patch))


def _require_new(
    session: SourceSession, entry: Entry[Recipe], url: str, pull: int, ends: Ends
) -> None:
    source = entry.recipe.source
    if not isinstance(source, GitSource):
        return
    by = merged_by(session.repositories, url, pull, ends, of=source.git, commit=source.commit)
    if by is not None:
        raise PatchError(
            f"the pin of {entry.name} already contains pull request {pull}",
            f"the history of {source.commit[:9]} has it by {by}",
            "nothing is written; if the recipe has it as a patch, remove the patch",
        )


def update(
    session: SourceSession, entry: Entry[Recipe], to: str | None = None
) -> RecipeChange[Recipe]:
    """Change a recipe's pin to ``to`` (a tag, a branch, a commit, a release), or to the newest.

    Raises ``RecipeError`` where the source has no upstream, or its base cannot be changed,
    ``FetchError`` for a ref or a release that does not exist.
    """
    recipe = entry.recipe
    source = recipe.source
    if isinstance(source, PypiSource):
        file = PinnedFile(source.pypi, source.version, source.sha256)
        found = releases.find_release(file, to, PYTHON)
        if found.version == source.version:
            return _change(session.catalog, entry, entry.text)
        origin = "", ""
        if source.root != ".":
            new = PypiFile(found, source.root)
            inside, url, commit = releases.vendored(new, session.repositories, session.context.work)
            target = NamedCommit(PIN, commit, "commit")
            tree = SourceTree(url, target, session.repositories, inside)
            origin = commit, own_version(tree)
        text = edit.released(entry.text, recipe, source, found, origin)
        return _change(session.catalog, entry, text)
    if isinstance(source, InstalledSource):
        return _with_new_base(session, entry, to)
    if not isinstance(source, GitSource):
        raise RecipeError(
            f"the source of {entry.name} is neither a git repository nor a release of PyPI",
            hint="edit [source] in the recipe",
        )
    if to is None:
        target = track.upstream_target(source.git, recipe.track, session.repositories)
    else:
        target = track.resolve(source.git, checked_ref(to), session.repositories)
    if target.commit == source.commit:
        return _change(session.catalog, entry, entry.text)
    count = partial(track.commit_count, source.git, target.commit, session.repositories)
    recount = _recounted(recipe, count)
    refs = session.repositories.mirror(source.git).advertised().refs
    moving = f"refs/heads/{source.ref}" in refs and f"refs/tags/{source.ref}" not in refs
    return _change(
        session.catalog,
        entry,
        edit.moved(entry.text, recipe, source, target, recount, moving=moving),
    )


def _with_new_base(
    session: SourceSession, entry: Entry[Recipe], to: str | None
) -> RecipeChange[Recipe]:
    """Give the base of a recipe, which installs its package, another name and requirement.

    The locks stay as they are: ``locks.make_lock`` makes them anew.
    """
    catalog = session.catalog
    below = catalog.base(entry.recipe.base)
    locked = locked_package(entry.recipe, catalog)
    if locked is None:
        command = "image" if below.recipe.published else "lock"
        raise RecipeError(
            f"no base of {entry.name} has its package in a lock",
            hint=f"edit {below.file}, then run `builder pin {command} {below.name}`",
        )
    old = locked.file
    found = releases.find_release(old, to, locked.python)
    if found.version == old.version:
        return _change(session.catalog, entry, entry.text)
    requirements = below.recipe.python.requirements if below.recipe.python else []
    own = [index for index, text in enumerate(requirements) if _pins(text, old)]
    texts = _renamed(below.recipe, old.version, found.version)
    if not own or ("name",) not in texts:
        raise RecipeError(
            f"`pin update` cannot move {below.name} from {old.name} {old.version} to "
            f"{found.version}",
            f"it needs {old.version} in the base's name, and {old.name}=={old.version} in its "
            "requirements",
            f"edit {locked.base.file}, then run `builder pin lock {locked.base.name}`",
        )
    changes = {
        path: text
        for path, text in texts.items()
        if path[:2] != ("python", "requirements") or path[2] in own
    }
    base = _change(session.catalog, below, edit.edited(below.text, changes))
    changed = edit.edited(entry.text, _renamed(entry.recipe, old.version, found.version))
    return _change(session.catalog, entry, changed, base)


def _pins(requirement: str, file: PinnedFile) -> bool:
    wanted = Requirement(requirement)
    same = canonicalize_name(wanted.name) == canonicalize_name(file.name)
    return same and str(wanted.specifier) == f"=={file.version}"


def evaluate(
    session: SourceSession, entry: Entry[Recipe], change: RecipeChange[Recipe]
) -> tuple[tuple[Problem, ...], list[PatchFinding]]:
    """The problems of a changed recipe with its new source, and the findings for its patches.

    A problem is a name that the new source does not have, or that is the old release's.  Raises
    ``FetchError`` when the source cannot be fetched.
    """
    if not change.changed or change.base is not None:
        return (), []  # the new wheel is not here yet: its build tries the patches
    new = Entry(change.recipe.name, change.file, change.new_text, change.recipe)
    source, old = resolve_source(change.recipe, session.catalog.root), entry.recipe
    repositories = session.repositories
    if isinstance(source, GitCommit):
        now = SourceTree(source.url, NamedCommit(PIN, source.commit, "commit"), repositories)
        lost = [*absent_submodules(change.recipe, now)]
        if lost:  # then there is no complete tree
            return tuple(new.problem(path, message) for path, message in lost), []
    if change.recipe.patch or not isinstance(source, GitCommit):  # else a few files are enough
        tree, _ = releases.tree_to_try(source, repositories, session.context.work)
        now = SourceTree(
            where(change.recipe.source), NamedCommit(PIN, "", "commit"), repositories, tree
        )
    found = [*absent_paths(change.recipe, now)]
    if old.family in READERS or isinstance(source, GitCommit):
        found += _lost_names(session, change.recipe, old, now)
    if isinstance(old.source, PypiSource):
        commits = [old.llama.build_commit] if old.llama and old.llama.build_commit else []
        moved = old.version != change.recipe.version
        names = [old.source.version, *commits, *([old.version] if moved else [])]
        for name in dict.fromkeys(names):
            found += naming(change.recipe, name)
        if not moved and old.source.root != ".":
            message = f"is still {old.version}: the new tree tells no other version of its own"
            found.append((("version",), message))
    elif old.version != change.recipe.version:
        found += naming(change.recipe, old.version)
    return tuple(new.problem(path, message) for path, message in found), findings_of(
        session, change
    )


def _lost_names(
    session: SourceSession, recipe: Recipe, old: Recipe, now: SourceTree
) -> list[Missing]:
    """The probed options and the definitions of cmake that the old source had, and the new one
    lacks; none if upstream no longer has the old one."""
    own, source = old.source, resolve_source(old, session.catalog.root)
    commit = own.commit if isinstance(own, GitSource) else ""
    tree, repositories = "", session.repositories
    try:
        if not commit:
            tree = gather.tree_of(source, repositories, session.context.work)
        before = SourceTree(where(own), NamedCommit(PIN, commit, "commit"), repositories, tree)
        return [*_lost_options(recipe, before, now), *_lost_definitions(recipe, before, now)]
    except GoneError:
        lacks = f"{where(own)} no longer has {commit[:9] or old.name}"
        session.context.log(f"{lacks}: names that are gone since are not shown")
        return []


# Names in a recipe that its source does not have, or that name an old version.

KeyPath = tuple[str | int, ...]
Missing = tuple[KeyPath, str]
"""A key of a recipe, and what its source lacks."""
HISTORY = {"notes", "why", "drop_when", "sha256"}
OF_CMAKE = re.compile(r"(?:CMAKE|CUDA|CUDAToolkit)_\w+|BUILD_SHARED_LIBS|\w+_(?:DIR|ROOT)")
"""Definitions that cmake itself or its modules read."""


def absent_submodules(recipe: Recipe, tree: SourceTree) -> Iterator[Missing]:
    """The submodules that the tree of a commit does not have."""
    if not isinstance(recipe.source, GitSource):
        return
    for path in recipe.source.submodule:
        if not any(f"{path}/".startswith(f"{link}/") for link in tree.gitlinks):
            yield ("source", "submodule", path), "the source has no submodule there"


def absent_paths(recipe: Recipe, tree: SourceTree) -> Iterator[Missing]:
    """The directories and files that a tree does not have; those below a submodule that is not
    fetched count as there."""
    paths = {*tree.paths, *tree.gitlinks}
    paths |= {path[:at] for path in paths for at, sign in enumerate(path) if sign == "/"}
    links = tuple(f"{link}/" for link in tree.gitlinks)
    for index, part in enumerate(recipe.cmake):
        file = f"{part.source}/CMakeLists.txt".removeprefix("./")
        if file not in paths and not file.startswith(links):
            yield ("cmake", index, "source"), f"the source has no {part.source}/CMakeLists.txt"
    for index, path in enumerate(recipe.layout.keep):
        if path not in paths and not path.startswith(links):
            yield ("layout", "keep", index), f"the source has no {path}"
    yield from ENGINES[recipe.family].absent(recipe, paths)


def _lost_options(recipe: Recipe, before: SourceTree, now: SourceTree) -> Iterator[Missing]:
    """Probed options, and their values, that the source before had.

    Nothing where the family does not read both trees.
    """
    read = READERS.get(recipe.family)
    probes = [(i, each) for i, each in enumerate(recipe.probe) if isinstance(each, OptionProbe)]
    if read is None or not probes:
        return
    try:
        old = read(before, recipe.cuda)
    except RecipeError:
        return
    try:
        new = read(now, recipe.cuda)
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


def _lost_definitions(recipe: Recipe, before: SourceTree, now: SourceTree) -> Iterator[Missing]:
    """Definitions that no cmake file names now, and one did before."""
    own: list[tuple[KeyPath, str]] = []
    for index, call in enumerate(recipe.cmake):
        own += [(("cmake", index, "define", name), name) for name in call.define]
        for place, each in enumerate(call.override):
            own.append((("cmake", index, "override", place, "name"), each.name))
    own = [(path, name) for path, name in own if not OF_CMAKE.fullmatch(name)]
    for path, name in own:
        word = re.compile(rf"\b{re.escape(name)}\b")
        old, new = (word.search(tree.cmake) for tree in (before, now))
        if old and not new:
            yield path, f"no cmake file of the source names {name} any more"


def naming(recipe: Recipe, version: str) -> Iterator[Missing]:
    """The keys whose text names a version; keys about the past are left out."""
    for path, text in _texts(recipe.model_dump(exclude_defaults=True), ()):
        if HISTORY.isdisjoint(path) and _whole(version).search(text):
            yield path, f"still names {version}: {text!r}"


def _renamed(recipe: Recipe | BaseRecipe, version: str, new: str) -> dict[KeyPath, str]:
    """The same keys, with their texts for another version."""
    texts = _texts(recipe.model_dump(exclude_defaults=True), ())
    named = ((path, text) for path, text in texts if HISTORY.isdisjoint(path))
    whole = _whole(version)
    return {path: whole.sub(new, text) for path, text in named if whole.search(text)}


def _whole(version: str) -> re.Pattern[str]:
    return re.compile(rf"(?<![0-9.]){re.escape(version)}(?![0-9]|\.[0-9])")


def _texts(value: Any, at: KeyPath) -> Iterator[tuple[KeyPath, str]]:
    if isinstance(value, str):
        yield at, value
    elif isinstance(value, dict):
        for key, inner in value.items():
            yield from _texts(inner, (*at, key))
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from _texts(inner, (*at, index))


# A recipe frozen at one state of its upstream, so that it can be built again years later.

COMMIT_DIGITS = 9
DIGEST_DIGITS = 12


class FrozenRecipe(NamedTuple):
    """A recipe like any other, under a name of its own, with fixed pins; and a catalog with it."""

    entry: Entry[Recipe]
    bases: tuple[Entry[BaseRecipe], ...]
    """The bases that are frozen as well."""
    catalog: Catalog
    dropped: tuple[str, ...] = ()
    """The patches that are left out: upstream contains them."""

    @property
    def name(self) -> str:
        """``ENGINE-VERSION``."""
        return self.entry.name

    @property
    def files(self) -> dict[str, str]:
        """The texts of the recipe, of a frozen base, and of the base of the entrypoint's compiler,
        all with their locks, by their paths below ``recipes/``."""
        tools = self.catalog.chain(ENGINES[self.entry.recipe.family].tools)
        found = self.entry.texts()
        for base in (*self.bases, *map(self.catalog.base, tools)):
            found |= {f"bases/{name}": text for name, text in base.texts().items()}
        return found

    def write(self, folder: Path) -> Path:
        """Write the files below a directory; the recipe's.  Raises ``WorldError``."""
        for name, text in self.files.items():
            edit.write(folder / name, text)
        return folder / self.entry.file.name


def version_of(channel: str, target: NamedCommit) -> str:
    """The version of a channel's image at a target: ``nightly-b9900``, ``nightly-3f2a91c0d``."""
    if target.kind == "tag":
        name = re.sub(r"[^A-Za-z0-9.]+", "-", target.name)
        return f"{channel}-{re.sub(r'[.-]{2,}', '-', name).strip('.-')}"
    digits = target.commit.removeprefix("sha256:")
    length = DIGEST_DIGITS if target.kind == "image" else COMMIT_DIGITS
    return f"{channel}-{digits[:length]}"


def at_commit(
    catalog: Catalog,
    entry: Entry[Recipe],
    target: NamedCommit,
    count: Callable[[], int],
    version: str,
) -> FrozenRecipe:
    """A recipe at a commit of its source; ``count`` is the number of commits up to it."""
    recipe = entry.recipe
    changes: dict[edit.Keys, object] = {
        ("source", "commit"): target.commit,
        ("source", "ref"): None if target.kind == "commit" else target.name,
    }
    recount = _recounted(recipe, count)
    if recount is not None:
        changes[recount.key] = recount.new
    return _frozen(catalog, entry, target, version, changes, None)


def _recounted(recipe: Recipe, count: Callable[[], int]) -> edit.Recount | None:
    key = ENGINES[recipe.family].commit_count
    if key is None:
        return None
    return edit.Recount(key, getattr(getattr(recipe, key[0]), key[1]), count())


def at_image(
    catalog: Catalog, entry: Entry[Recipe], target: NamedCommit, version: str
) -> FrozenRecipe:
    """A recipe over a published image; ``target.commit`` is the image's digest."""
    recipe = entry.recipe
    below = catalog.base(recipe.base)
    if below.recipe.published is None:
        problem = entry.problem(
            ("track", "image"), f"the base {recipe.base} is not a published image"
        )
        raise RecipeError(f"{entry.name} cannot follow an image", problems=(problem,))
    name = f"{below.name}-{target.commit.removeprefix('sha256:')[:DIGEST_DIGITS]}"
    text = edit.edited(
        below.text,
        {
            ("name",): name,
            ("published", "digest"): target.commit,
            ("published", "image"): target.name,
            ("published", "note"): None,
        },
    )
    base = frozen_entry(text, below.file.with_name(f"{name}.toml"), BaseRecipe)
    return _frozen(catalog, entry, target, version, {("base",): name}, base)


def _frozen(
    catalog: Catalog,
    entry: Entry[Recipe],
    target: NamedCommit,
    version: str,
    changes: dict[edit.Keys, object],
    base: Entry[BaseRecipe] | None,
) -> FrozenRecipe:
    recipe = entry.recipe
    changes |= {
        ("version",): version,
        ("image", "tags"): None,
        ("image", "moving"): None,
        ("track",): None,
        ("kept",): None,
    }
    origin = f"# Frozen from {entry.name}: "
    head = f"{origin}{target.name} was {target.commit}."
    if farm := git.head_of(catalog.root):
        head += f"\n# Its base, locks and patches come from commit {farm} of the farm."
    text = edit.edited(entry.whole, changes)
    schema = text.partition("\n")[0] + "\n" if text.startswith("#:") else ""
    text = f"{schema}{head}\n{text.removeprefix(schema)}"
    file = entry.file.with_name(f"{recipe.engine}-{version}.toml")
    frozen = frozen_entry(text, file, Recipe)
    there = catalog.engines.get(frozen.name)
    if there is not None and origin not in there.text:
        raise RecipeError(
            f"{entry.name} would be frozen as {frozen.name}, which is a recipe of its own",
            hint="rename that recipe, or the channel",
        )
    bases = (base,) if base is not None else ()
    return FrozenRecipe(frozen, bases, extended(catalog, frozen, bases))


def extended(
    catalog: Catalog, frozen: Entry[Recipe], bases: Sequence[Entry[BaseRecipe]] = ()
) -> Catalog:
    """A catalog with a frozen recipe and its bases."""
    own = {base.name: base for base in bases}
    engines = {**catalog.engines, frozen.name: frozen}
    return replace(catalog, engines=engines, bases={**catalog.bases, **own})


def without(frozen: FrozenRecipe, patches: Sequence[int]) -> FrozenRecipe:
    """A frozen recipe without some of its patches; it keeps their probes."""
    before = frozen.entry.recipe
    names = tuple(before.patch[index].name for index in patches)
    text = edit.without_patches(frozen.entry.text, patches)
    entry = frozen_entry(text, frozen.entry.file, Recipe)
    catalog = extended(frozen.catalog, entry)
    return frozen._replace(entry=entry, catalog=catalog, dropped=names)


def fitted(frozen: FrozenRecipe, session: SourceSession) -> tuple[FrozenRecipe, list[PatchFinding]]:
    """A frozen recipe without patches that upstream contains; and the patches that do not apply."""
    patch_set = session._replace(catalog=frozen.catalog).patch_set(frozen.entry)
    findings = on_pin(patch_set) if patch_set.patches else []
    known = {PatchState.UPSTREAM, PatchState.UNTRIED}  # a build tries: it has an engine
    unfit = [each for each in findings if not each.good and each.state not in known]
    merged = [index for index, each in enumerate(findings) if each.state == PatchState.UPSTREAM]
    if unfit or not merged:
        return frozen, unfit
    lean = without(frozen, merged)
    session.context.log(f"{frozen.name}: left out {', '.join(lean.dropped)}: upstream has it")
    return lean, []


def frozen_entry(text: str, file: Path, model: type[R]) -> Entry[R]:
    """The entry of a text that is not in the catalog's files; raises ``RecipeError``."""
    found, problems = parse(text, file, model)
    if found is None:
        raise RecipeError(f"{file.stem} would not be a valid recipe", problems=problems)
    return Entry(found.name, file, text, found)
