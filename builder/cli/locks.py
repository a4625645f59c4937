"""Commands that write exact digests: of a recipe's Python packages, of a base's image."""

from __future__ import annotations

import re
from dataclasses import asdict
from typing import Annotated

import typer

from builder.cli.options import (
    CatalogOption,
    DryRunOption,
    JsonOption,
    catalog_at,
    pin_group,
    print_json,
)


def _python(value: str | None) -> str | None:
    if value is not None and not re.fullmatch(r"3\.[1-9][0-9]?", value):
        raise typer.BadParameter("must be a version as 3.13")
    return value


Lockable = Annotated[
    str, typer.Argument(metavar="NAME", help="A recipe or a base that says requirements")
]


@pin_group.command()
def lock(
    name: Lockable,
    catalog: CatalogOption = None,
    python: Annotated[
        str | None,
        typer.Option(
            metavar="3.N",
            callback=_python,
            help="CPython's version. Default: that of the Debian it stands on.",
        ),
    ] = None,
    dry_run: DryRunOption = False,
    as_json: JsonOption = False,
) -> None:
    """Resolve the requirements of a recipe or a base into its lock file.

    The lock lists the newest versions that fit together, as wheels for linux x86_64, each by name,
    version and sha256. Nothing is installed, and only metadata is fetched. The command shows what
    changes. The exit code is 3 when no versions fit together, 5 when the package index does not
    answer.
    """
    from builder import settings
    from builder.cli import console
    from builder.recipes.edit import write
    from builder.upstream.resolve_lock import lockable, make

    chosen = settings.load()
    chosen.require_directories()
    made = make(lockable(catalog_at(catalog), name), python, chosen.cache_dir, console.log)
    if as_json:
        files = [asdict(file) for file in made.files]
        print_json({"file": str(made.file), "size": made.size, "files": files})
    else:
        for change in made.changes or ("nothing changes",):
            console.line(change)
        size = f", {made.size / 1e9:.1f} GB to download" if made.size else ""
        console.line(f"{made.file.name}: {len(made.files)} files{size}")
    if not dry_run:
        write(made.file, made.text)


@pin_group.command("image")
def pin(
    base: Annotated[str, typer.Argument(metavar="BASE", help="A base that starts from an image")],
    catalog: CatalogOption = None,
    dry_run: DryRunOption = False,
) -> None:
    """Write the digest that a base's image has in the registry today into the base.

    Without a digest, every build asks the registry for the tag and prints the digest that it
    finds. The exit code is 5 when the registry does not answer.
    """
    from builder.cli import console
    from builder.plan.published_image import pinned
    from builder.recipes.edit import difference, write

    entry = catalog_at(catalog).base(base)
    text = pinned(entry)
    told = difference(entry.text, text, entry.file.name, entry.file.name)
    console.line(told or f"{base} is pinned to that already")
    if told and not dry_run:
        write(entry.file, text)
