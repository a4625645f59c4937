"""``builder pin lock``: Python requirements and Debian packages become exact files."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from builder.cli.options import CatalogOption, DryRunOption, JsonOption, catalog_at
from builder.cli.tables import counted, table
from builder.cli.terminal import line, log, print_json
from builder.errors import RecipeError
from builder.tools import sizes

if TYPE_CHECKING:
    from builder.recipes.catalog import Catalog
    from builder.upstream.lock_debian import AnyEntry, DebianSession


HINT = (
    "a recipe names Python packages in [python]: requirements, and Debian packages in [debian]; a "
    "base names Debian packages in [root], [devel] and [runtime]"
)


class Kind(StrEnum):
    """What a lock is of."""

    python = "python"
    debian = "debian"


@dataclass(frozen=True, slots=True)
class _Made:
    """A lock that was resolved; it is written by ``write``."""

    file: str
    size: int
    files: list[dict[str, Any]]
    changes: Sequence[str]
    new: bool
    """There was none before."""


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
            help="Version of CPython. Default: that of the Debian release of the base.",
        ),
    ] = None,
    dry_run: DryRunOption = False,
    as_json: JsonOption = False,
) -> None:
    """Resolve the Python requirements and the Debian packages of recipes or bases to exact files.

    A lock of Python lists the newest compatible wheels for Linux x86_64. A lock of Debian packages
    lists, for each stage, the newest version of every package that apt would install, for amd64 and
    arm64 machines; a recipe without one gets the key that names it. Each file has its sha256. The
    command prints what changed. The bases of a recipe are locked before it.

    The exit code is 3 if no compatible versions exist, and 5 if a package index or Debian's archive
    does not answer.
    """
    from builder import settings

    loaded = settings.load()
    loaded.require_directories()
    found = catalog_at(catalog)
    made: list[_Made] = []
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
            if Kind.python in kinds:
                made.append(_lock_python(found, entry.name, python, dry_run=dry_run))
            if Kind.debian in kinds:
                made.append(_lock_debian(session, entry, dry_run=dry_run))
            if not as_json:
                _print(made[-len(kinds) :])
    if as_json:
        print_json([asdict(each) for each in made])


def _depth(catalog: Catalog, name: str) -> int:
    """How many bases are below a base; recipes come last."""
    return len(catalog.chain(name)) if name in catalog.bases else len(catalog.bases) + 1


def _kinds(entry: AnyEntry) -> Iterator[Kind]:
    from builder.upstream.lock_debian import has_packages

    if entry.recipe.python is not None and entry.recipe.python.requirements:
        yield Kind.python
    if has_packages(entry.recipe):
        yield Kind.debian


def _lock_python(catalog: Catalog, name: str, python: str | None, *, dry_run: bool) -> _Made:
    from builder import settings
    from builder.recipes.edit import write
    from builder.upstream.resolve_lock import lockable, make

    made = make(lockable(catalog, name), python, settings.load().cache_dir, log)
    new = not made.file.exists()
    if not dry_run:
        write(made.file, made.text)
    files = [asdict(file) for file in made.files]
    return _Made(str(made.file), made.size, files, made.changes, new)


def _lock_debian(session: DebianSession, entry: AnyEntry, *, dry_run: bool) -> _Made:
    made = session.make(entry)
    new = not made.file.exists()
    if not dry_run:
        made.write()
    files = [{"name": each.name, **each.model_dump()} for each in made.files]
    return _Made(str(made.file), made.size, files, made.changes, new)


def _print(made: Sequence[_Made]) -> None:
    for each in made:
        for change in each.changes or ([] if each.new else ["no changes"]):
            line(change)
        of_all = f", {sizes.shown(each.size)} to download" if each.size else ""
        line(f"{each.file.rpartition('/')[2]}: {counted(len(each.files), 'file')}{of_all}")


@contextmanager
def debian_session(catalog: Catalog) -> Iterator[DebianSession]:
    """A session on Debian's package lists, with the user's settings."""
    from builder import settings
    from builder.tools.files import workspace
    from builder.upstream.lock_debian import DebianSession

    loaded = settings.load()
    with workspace(loaded.cache_dir) as work:
        yield DebianSession(catalog, loaded.cache_dir, work, log, loaded.debian_servers)


def print_outdated(catalog: Catalog, entries: Sequence[AnyEntry], *, as_json: bool) -> None:
    """Print the locked Debian packages of recipes and of their bases that Debian has newer."""
    from builder.upstream.debian_pins import locked

    rows = []
    with debian_session(catalog) as session:
        for entry, as_of in locked(catalog, entries):
            rows.append((entry.name, as_of, session.newer(entry)))
    if as_json:
        print_json([{"name": name, "as_of": as_of, "newer": newer} for name, as_of, newer in rows])
        return
    behind = [(name, f"as of {as_of:%Y-%m-%d}", newer) for name, as_of, newer in rows if newer]
    table(
        ("lock", "", "newer in Debian"),
        [(name, as_of, change) for name, as_of, newer in behind for change in newer],
    )
    if behind:
        log(f"update them: `builder pin lock {' '.join(name for name, _, _ in behind)}`")
    log(f"{len(rows) - len(behind)} of {counted(len(rows), 'Debian lock')} up to date")
