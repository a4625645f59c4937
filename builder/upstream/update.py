"""Updates the pins of recipes: to the present commits of a pull request, or to a newer source."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from functools import partial
from pathlib import Path

from builder.build import roots
from builder.core.errors import GoneError, PatchError, Problem, RecipeError
from builder.core.log import Log
from builder.core.platforms import Architecture, Platforms, architecture
from builder.core.settings import Settings
from builder.engines import families
from builder.engines.family import Packages
from builder.plan.inputs import AnyEntry, GitCommit, PypiFile, lock_file, resolve_source
from builder.recipes import locks
from builder.recipes.catalog import Entry
from builder.recipes.edit import NamedCommit, edited, moved, released, with_pull_request
from builder.recipes.fields import checked_ref, checked_url
from builder.recipes.locks import PinnedFile
from builder.recipes.patches import AddPatch, PullPatch, ScriptPatch
from builder.recipes.schema import BaseRecipe, GitSource, InstalledSource, PypiSource, Recipe
from builder.sources import apt, gather, pypi
from builder.sources.patches import pieces
from builder.upstream import track
from builder.upstream.locks import wanted_on
from builder.upstream.patches import PIN, PYTHON, PatchFinding, PatchSet
from builder.upstream.session import RecipeChange, SourceSession
from builder.upstream.snapshot import recounted
from builder.upstream.source_tree import (
    KeyPath,
    SourceTree,
    absent_paths,
    absent_submodules,
    lost_definitions,
    lost_options,
    naming,
    renamed,
)
from builder.upstream.track import Ends, ends_of, head_of, locked_package, merged_by


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
        head = head_of(url, pull, session.repositories) or ""
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
    return session.change(entry, with_pull_request(entry.text, recipe, patch))


def _require_new(
    session: SourceSession, entry: Entry[Recipe], url: str, pull: int, ends: Ends
) -> None:
    """Raise ``PatchError`` where the pin of a recipe contains a pull request."""
    source = entry.recipe.source if entry.recipe else None
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
        found = pypi.find_release(file, to, PYTHON)
        if found.version == source.version:
            return session.change(entry, entry.text)
        new = PinnedFile(source.pypi, found.version, found.sha256)
        return session.change(entry, released(entry.text, recipe, source, new))
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
        return session.change(entry, entry.text)
    count = partial(track.commit_count, source.git, target.commit, session.repositories)
    recount = recounted(recipe, count)
    refs = session.repositories.mirror(source.git).advertised().refs
    moving = f"refs/heads/{source.ref}" in refs and f"refs/tags/{source.ref}" not in refs
    return session.change(entry, moved(entry.text, recipe, source, target, recount, moving=moving))


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
    found = pypi.find_release(old, to, locked.python)
    if found.version == old.version:
        return session.change(entry, entry.text)
    requirements = below.recipe.python.requirements if below.recipe.python else []
    own = [index for index, text in enumerate(requirements) if _pins(text, old)]
    texts = renamed(below.recipe, old.version, found.version)
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
    base = session.change(below, edited(below.text, changes))
    changed = edited(entry.text, renamed(entry.recipe, old.version, found.version))
    return session.change(entry, changed, base)


def _pins(requirement: str, file: PinnedFile) -> bool:
    """Whether a requirement is ``NAME==VERSION`` of a file."""
    from packaging.requirements import Requirement
    from packaging.utils import canonicalize_name

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
        tree = repositories.pin(source.url, source.commit)
        lost = [*absent_submodules(change.recipe, repositories.scratch, tree)]
        if lost:  # then there is no complete tree
            return tuple(new.problem(path, message) for path, message in lost), []
    tree, _ = gather.tree_to_try(source, repositories, session.context.work)
    found = [*absent_paths(change.recipe, repositories.scratch, tree)]
    if isinstance(source, GitCommit) and old is not None and isinstance(old.source, GitSource):
        found += _lost_names(session, change.recipe, source, old.source.commit)
    if old is not None and isinstance(old.source, PypiSource):
        found += naming(change.recipe, old.source.version)
    elif old is not None and old.version != change.recipe.version:
        found += naming(change.recipe, old.version)
    return tuple(new.problem(path, message) for path, message in found), session.findings(change)


def _lost_names(
    session: SourceSession, recipe: Recipe, source: GitCommit, old: str
) -> list[tuple[KeyPath, str]]:
    """The probed options and the definitions of cmake that the old commit had, and the new one
    lacks; none if upstream no longer has that commit."""
    commits = (NamedCommit(PIN, commit, "commit") for commit in (old, source.commit))
    before, now = (SourceTree(source.url, commit, session.repositories) for commit in commits)
    try:
        return [*lost_options(recipe, before, now), *lost_definitions(recipe, before, now)]
    except GoneError:
        lacks = f"{source.url} no longer has {old[:9]}"
        session.context.log(f"{lacks}: names that are gone since are not shown")
        return []


# The pinned inputs of recipes and bases, mirrored on this machine.


def mirror(patch_set: PatchSet, entry: Entry[Recipe], settings: Settings) -> Iterator[str]:
    """Mirror the pinned inputs of a recipe, and the history that `patch check` reads.

    Yields a line for each input.  Raises ``FetchError`` where one cannot be fetched.
    """
    repositories = patch_set.repositories
    source = patch_set.source
    if isinstance(source, GitCommit):
        gather.tree_of(source, repositories, patch_set.context.work)
        yield f"{source.url} {source.commit}"
        target = track.upstream_target(source.url, patch_set.track, repositories)
        repositories.walk(source.url, source.commit, target.commit)
        yield f"{source.url} {target.name}: history up to {target.commit}"
    for planned in patch_set.patches:
        if isinstance(planned.patch, ScriptPatch | AddPatch):
            repositories.pin(planned.url, planned.patch.origin.after)
        else:
            for _ in pieces(patch_set.context, planned, ""):
                pass
        yield f"{planned.name} of {planned.url or 'this repository'}"
    files = packages_of(entry, entry.recipe.targets)
    files += [source.file] if isinstance(source, PypiFile) else []
    pypi.fetch(files, repositories.cache, repositories.log)
    yield from (f"{file.name} {file.version}" for file in files)
    yield from _mirror_debian(entry, entry.recipe.targets, settings, repositories.log)


def packages_of(
    entry: Entry[Recipe] | Entry[BaseRecipe], targets: Iterable[Architecture]
) -> list[PinnedFile]:
    """The files of the package index that builds for these targets need on this machine.

    The packages of native builds: a cross build takes its compiler from this machine's, and the
    libraries from the target's.
    """
    machine = architecture() or "amd64"
    found: dict[PinnedFile, None] = {}
    for target in dict.fromkeys((machine, *targets)):
        for files in _packages(entry.recipe, entry.file.parent, Platforms(target, target)).values():
            found.update(dict.fromkeys(files))
    return [*found]


def _packages(recipe: Recipe | BaseRecipe, folder: Path, platforms: Platforms) -> Packages:
    if isinstance(recipe, BaseRecipe):
        return families.BASES[recipe.family].packages(recipe, folder, platforms)
    return families.ENGINES[recipe.family].packages(recipe, folder, platforms)


def mirror_base(
    entry: Entry[BaseRecipe], targets: Collection[Architecture], settings: Settings, log: Log
) -> Iterator[str]:
    """Mirror the packages and the published image of a base for these targets; like ``mirror``."""
    base = entry.recipe
    files = packages_of(entry, targets)
    pypi.fetch(files, settings.cache_dir, log)
    yield from (f"{file.name} {file.version}" for file in files)
    published = base.published
    if published is not None and published.digest is not None:
        local = roots.fetch(base.name, published, published.digest, log).reference
        yield f"{published.image} in Docker, as {local}"
    elif published is not None:
        yield f"{published.image} is not mirrored: it is not pinned ({published.note})"
    yield from _mirror_debian(entry, targets, settings, log)


def _mirror_debian(
    entry: AnyEntry, targets: Iterable[Architecture], settings: Settings, log: Log
) -> Iterator[str]:
    """Fetch the locked Debian packages that builds for these targets need on this machine."""
    file = lock_file(entry)
    if file is None:
        return
    lock = locks.read(file, entry.name)
    machine = architecture() or "amd64"
    wanted = (wanted_on(entry.recipe, Platforms(machine, target)) for target in targets)
    keys = {each.key for several in wanted for each in several}
    needed = [deb for each in lock.install if each.key in keys for deb in each.files]
    place = apt.archive_of(lock.suite, settings.debian_servers)
    apt.fetch(needed, lock.as_of, place, settings.cache_dir, log)
    yield from (f"{each.name} {each.version} {each.architecture}" for each in needed)
