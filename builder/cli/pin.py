"""``builder pin``: update, outdated, mirror, lock, image."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from builder.cli.options import (
    CatalogOption,
    DryRunOption,
    JsonOption,
    OfflineOption,
    RecipeName,
    SomeRecipe,
    catalog_at,
)
from builder.cli.patch import chosen, collected, misfits, open_session, print_change, raise_failures
from builder.cli.terminal import counted, line, log, print_json, table
from builder.core import sizes
from builder.core.errors import PatchError, RecipeError
from builder.sources.diff import PatchState

if TYPE_CHECKING:
    from builder.core.platforms import Architecture
    from builder.recipes.catalog import Catalog
    from builder.recipes.edit import NamedCommit
    from builder.upstream.status import Outdated
    from builder.upstream.track import Lag


# ``builder pin lock``: Python requirements and Debian packages become exact files.

if TYPE_CHECKING:
    from builder.plan.inputs import AnyEntry
    from builder.recipes.catalog import Catalog
    from builder.upstream.locks import DebianSession, NewDebianLock, NewLock

    Made = NewLock | NewDebianLock


HINT = (
    "a recipe names Python packages in [python]: requirements, and Debian packages in [debian]; a "
    "base names Debian packages in [root], [devel] and [runtime]"
)


class Kind(StrEnum):
    """The packages that a lock has."""

    python = "python"
    debian = "debian"


def _python_version(value: str | None) -> str | None:
    if value is not None and not re.fullmatch(r"3\.[1-9][0-9]?", value):
        raise typer.BadParameter("must be a version of Python, such as 3.13")
    return value


def lock(
    names: Annotated[
        list[str],
        typer.Argument(
            metavar="NAME...",
            help="Recipes or bases with Python requirements or Debian packages.",
        ),
    ],
    catalog: CatalogOption = None,
    only: Annotated[
        Kind | None, typer.Option(help="Lock only Python requirements, or only Debian packages.")
    ] = None,
    python: Annotated[
        str | None,
        typer.Option(
            metavar="3.N",
            callback=_python_version,
            help="Version of CPython. Default: the one in the base's Debian release.",
        ),
    ] = None,
    dry_run: DryRunOption = False,
    as_json: JsonOption = False,
) -> None:
    """Resolve the Python requirements and the Debian packages of recipes or bases to exact files.

    A lock of Python lists the newest compatible wheels for Linux x86_64. A lock of Debian packages
    lists, for each stage, the newest version of every package that apt would install, for amd64 and
    arm64 machines; a recipe without one gets the key that names it. Each file has its sha256. The
    command prints the changes. The bases of a recipe are locked before it.

    The exit code is 3 if no compatible versions exist, and 5 if a package index or Debian's archive
    does not answer.
    """
    from builder.core import settings
    from builder.upstream.locks import lockable, make_lock

    loaded = settings.load()
    loaded.require_directories()
    found = catalog_at(catalog)

    def python_lock(name: str) -> NewLock:
        return make_lock(lockable(found, name), python, loaded.cache_dir, log)

    described: list[dict[str, Any]] = []
    with debian_session(found) as session:
        for name in sorted(names, key=lambda name: _depth(found, name)):
            entry = found.base(name) if name in found.bases else found.engine(name)
            kinds = [kind for kind in _kinds(entry) if only in {None, kind}]
            if not kinds:
                what = {None: "nothing", Kind.python: "no Python requirements"}
                raise RecipeError(
                    f"{entry.name} has {what.get(only, 'no Debian packages')} to lock",
                    hint=HINT,
                )
            for kind in kinds:
                made: Made = session.make(entry) if kind is Kind.debian else python_lock(entry.name)
                new = not made.file.exists()
                if not dry_run:
                    made.write()
                described.append(
                    {
                        "file": str(made.file),
                        "size": made.size,
                        "files": made.described(),
                        "changes": made.changes,
                        "new": new,
                    }
                )
                if not as_json:
                    _print(made, new=new)
    if as_json:
        print_json(described)


def _depth(catalog: Catalog, name: str) -> int:
    return len(catalog.chain(name)) if name in catalog.bases else len(catalog.bases) + 1


def _kinds(entry: AnyEntry) -> Iterator[Kind]:
    from builder.upstream.locks import has_packages

    if entry.recipe.python is not None and entry.recipe.python.requirements:
        yield Kind.python
    if has_packages(entry.recipe):
        yield Kind.debian


def _print(made: Made, *, new: bool) -> None:
    for change in made.changes or ([] if new else ["no changes"]):
        line(change)
    of_all = f", {sizes.shown(made.size)} to download" if made.size else ""
    line(f"{made.file.name}: {counted(len(made.files), 'file')}{of_all}")


@contextmanager
def debian_session(catalog: Catalog) -> Iterator[DebianSession]:
    """A session on Debian's package lists, with the user's settings."""
    from builder.core import settings
    from builder.core.files import workspace
    from builder.upstream.locks import DebianSession

    loaded = settings.load()
    with workspace(loaded.cache_dir) as work:
        yield DebianSession(catalog, loaded.cache_dir, work, log, loaded.debian_servers)


# The commands.

group = typer.Typer(
    no_args_is_help=True, help="Update, mirror and lock the pinned inputs of recipes."
)


@group.command()
def update(
    recipe: RecipeName,
    catalog: CatalogOption = None,
    to: Annotated[
        str | None,
        typer.Option(
            metavar="REF",
            help="Tag, branch, commit or release. Default: the upstream that [track] names, else "
            "the newest release.",
        ),
    ] = None,
    force: Annotated[
        bool,
        typer.Option("--force", help="Write the recipe even if patches or names no longer fit."),
    ] = False,
    keep_old: Annotated[
        bool,
        typer.Option("--keep-old", help="Keep the recipe, if the new one gets another name."),
    ] = False,
    dry_run: DryRunOption = False,
) -> None:
    """Move the pin of a recipe, show the diff, and check its patches against the new source.

    The command replaces the commit, the ref and the build number; for a source on PyPI, the version
    and the sha256. A version or tag that contains the old pin is changed too, and the file is
    renamed, with its lock files. Comments and the order of keys are preserved.

    If the base installs the package by its lock, the base gets a new file with the new requirement,
    and the recipe names the new base. The base's lock files are copied: `builder pin lock BASE`
    writes them anew.

    The exit code is 11 if a patch no longer applies, and 3 if the new source lacks something that
    the recipe names: a directory, a submodule, the built web page, a definition of cmake, an option
    of a probe or one of its values. In both cases nothing is written unless --force is given.
    """
    from builder.upstream.update import evaluate
    from builder.upstream.update import update as move_pin

    found = catalog_at(catalog)
    entry = found.engine(recipe)
    with open_session(found) as session:
        change = move_pin(session, entry, to)
        problems, findings = evaluate(session, entry, change)
    print_change(change, findings)
    bad = misfits(findings)
    written = not dry_run and (force or not (bad or problems))
    if written:
        change.write(keep=keep_old)
        if not keep_old:
            _log_presets_of(found, entry.name, change.new_file.stem)
        if change.base is not None:
            name = change.base.recipe.name
            log(f"{name} still has the old locks; next: `builder pin lock {name}`")
            log("its notes, and the notes and [[accept]] of the recipe, are the old release's")
            if change.recipe.patch:
                log("its patches are tried when the image is built")
    outcome = f"{change.new_file.name} was written anyway" if written else "nothing was written"
    hint = "" if written else "correct the recipe, or write it with --force"
    if bad:
        if hint and any(each.state == PatchState.UPSTREAM for each in findings):
            hint = f"remove the patches that upstream contains; {hint}"
        what = f"{len(bad)} of the patches do not apply to the new pin: {outcome}"
        raise PatchError(what, "\n".join([*bad, *map(str, problems)]), hint)
    if problems:
        what = f"the new source lacks something that {change.recipe.name} names: {outcome}"
        raise RecipeError(what, hint=hint, problems=problems)


def _log_presets_of(recipes: Catalog, name: str, new_name: str) -> None:
    """Name the presets whose recipe was renamed: their figures belong to the old pin."""
    from builder.presets import catalog as preset_files

    presets = preset_files.load(recipes).of_recipe(name) if new_name != name else []
    if presets:
        names = ", ".join(entry.name for entry in presets)
        log(f"the recipe {name} is now {new_name}; presets that name the old one: {names}")


@group.command()
def outdated(
    recipe: SomeRecipe = None,
    catalog: CatalogOption = None,
    offline: OfflineOption = False,
    as_json: JsonOption = False,
) -> None:
    """List pins that are behind upstream: by how much, since when, and what becomes of patches.

    Without RECIPE, the table has the newest recipe of each engine. The last column has the state of
    its patches at the newest version, as `builder patch check` finds it: `upstream` means that the
    new pin needs the patch no longer. For a source on PyPI, and for a package that the base
    installs by its lock, newer releases are counted, without pre-releases and yanked releases; with
    --offline, these recipes are left out.
    `builder status` shows the published images. `builder pin lock NAME --dry-run` shows the locked
    packages of Debian and PyPI that have newer versions. The exit code is 5 if an upstream does not
    answer.
    """
    from builder.upstream import status, track

    found = catalog_at(catalog)
    known: list[status.Pinned] = []
    failures: list[str] = []
    recipes = chosen(found, recipe)
    with open_session(found, offline=offline) as session:
        for entry in recipes:
            with collected(failures, entry.name):
                lag = track.lag(entry.recipe, found, session.repositories)
                known += [status.Pinned(entry, lag)] if lag is not None else []
        without = len(recipes) - len(known) - len(failures)
        rows = status.by_engine(known)
        for index, row in enumerate(rows):
            with collected(failures, row.pinned.entry.name):
                patches = status.patches_on_newest(session, row.pinned)
                rows[index] = replace(row, patches=patches)
    if as_json:
        print_json([row.as_json() for row in rows])
    else:
        _print_outdated(rows)
        if without:
            log(f"{counted(without, 'recipe')} without an upstream to compare with")
    raise_failures(failures, "pin outdated")


def _print_outdated(rows: Sequence[Outdated]) -> None:
    behind = [row for row in rows if row.pinned.behind]
    table(
        ("recipe", "pinned", "newest", "behind", "since", "patches there"),
        [
            (
                row.pinned.entry.name,
                row.pinned.pin,
                _named(row.pinned.lag.target),
                _behind(row.pinned.lag),
                row.pinned.lag.since,
                ", ".join(f"{each.patch}: {each.state}" for each in row.patches),
            )
            for row in behind
        ],
    )
    if rows:
        log(f"{len(rows) - len(behind)} of {counted(len(rows), 'recipe')} up to date")
    older = [name for row in rows for name in row.older]
    if older:
        log(f"not in the table, because the engine has a newer recipe: {', '.join(older)}")


def _behind(lag: Lag) -> str:
    count = counted(lag.ahead, "release" if lag.target.kind == "release" else "commit")
    days = [f"{lag.days} d"] if lag.days is not None else []
    rewritten = ["the pin is not in its history"] if lag.rewritten else []
    return ", ".join([count, *days, *rewritten])


def _named(target: NamedCommit) -> str:
    return target.name if target.kind == "release" else f"{target.name} {target.commit[:9]}"


@group.command()
def mirror(recipe: SomeRecipe = None, catalog: CatalogOption = None) -> None:
    """Download and keep every pinned input, so that builds do not depend on upstream.

    The cache directory (BUILDER_CACHE_DIR) then contains bare mirrors of the repositories with the
    pinned commits, submodules and pull requests, the histories that `builder patch check` reads,
    and all wheels, sdists and locked Debian packages. With it, `builder build --offline` and
    `builder patch check --offline` need no network.
    """
    from builder.engines.families import bases_of
    from builder.upstream import update as pins

    found = catalog_at(catalog)
    failures: list[str] = []
    entries = chosen(found, recipe)
    with open_session(found) as session:
        for entry in entries:
            with collected(failures, entry.name):
                for mirrored in pins.mirror(session.patch_set(entry), entry, session.settings):
                    line(f"{entry.name}: {mirrored}")
        bases: dict[str, dict[Architecture, None]] = {}
        for entry in entries:
            for name in bases_of(found, entry.recipe):
                bases.setdefault(name, {}).update(dict.fromkeys(entry.recipe.targets))
        for name, targets in bases.items():
            base = found.base(name)
            with collected(failures, name):
                for mirrored in pins.mirror_base(base, targets, session.settings, log):
                    line(f"{name}: {mirrored}")
    raise_failures(failures, "pin mirror")


group.command()(lock)


@group.command()
def image(
    base: Annotated[
        str, typer.Argument(metavar="BASE", help="A base that starts from a published image.")
    ],
    catalog: CatalogOption = None,
    dry_run: DryRunOption = False,
) -> None:
    """Pin the image that a base starts from to its current digest in the registry.

    Without a digest, every build asks the registry for the tag and prints the digest that it found.
    The exit code is 5 if the registry does not answer.
    """
    from builder.build.roots import pinned
    from builder.recipes.edit import difference, write

    entry = catalog_at(catalog).base(base)
    text = pinned(entry)
    changes = difference(entry.text, text, entry.file.name, entry.file.name)
    line(changes or f"{base} is already pinned to this digest")
    if changes and not dry_run:
        write(entry.file, text)
