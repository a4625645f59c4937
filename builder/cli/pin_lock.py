"""``builder pin lock``: Python requirements and Debian packages become exact files."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from builder.cli.options import CatalogOption, DryRunOption, JsonOption, catalog_at
from builder.cli.tables import counted
from builder.cli.terminal import line, log, print_json
from builder.core import sizes
from builder.core.errors import RecipeError

if TYPE_CHECKING:
    from builder.plan.debian import AnyEntry
    from builder.recipes.catalog import Catalog
    from builder.upstream.locks import DebianSession, NewDebianLock
    from builder.upstream.resolve_lock import NewLock

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
    from builder.upstream.resolve_lock import lockable, make

    loaded = settings.load()
    loaded.require_directories()
    found = catalog_at(catalog)

    def python_lock(name: str) -> NewLock:
        return make(lockable(found, name), python, loaded.cache_dir, log)

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
