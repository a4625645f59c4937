"""``builder recipe new``."""

from __future__ import annotations

import shlex
from typing import Annotated

import typer

from builder.cli.options import CatalogOption, DryRunOption, catalog_at
from builder.cli.sources import open_session
from builder.cli.terminal import line, log
from builder.core.errors import PROGRAM, WorldError


def new(
    url: Annotated[
        str,
        typer.Argument(
            metavar="URL", help="Git repository; git's own configuration may rewrite it."
        ),
    ],
    ref: Annotated[
        str | None,
        typer.Option(
            "--ref",
            metavar="REF",
            help="Tag, branch or commit. Default: the newest tag, else the default branch.",
        ),
    ] = None,
    like: Annotated[
        str | None,
        typer.Option(
            "--like",
            metavar="RECIPE",
            help="Take family, base, CMake definitions and image settings from this recipe.",
        ),
    ] = None,
    name: Annotated[
        str | None,
        typer.Option(
            "--name",
            metavar="ENGINE-VERSION",
            help="Name of the recipe. Default: the repository's name and the tag or commit.",
        ),
    ] = None,
    about: Annotated[
        str | None,
        typer.Option(
            "--about",
            metavar="TEXT",
            help="Description of the engine, one line. Default: the first heading of its README.",
        ),
    ] = None,
    license_id: Annotated[
        str | None,
        typer.Option(
            "--license",
            metavar="SPDX",
            help="SPDX license expression. Default: the license file's, if its text is known.",
        ),
    ] = None,
    catalog: CatalogOption = None,
    force: Annotated[
        bool, typer.Option("--force", help="Replace the recipe of that name if there is one.")
    ] = False,
    dry_run: DryRunOption = False,
) -> None:
    """Write a recipe for a git repository: a fork of llama.cpp, or an engine like another recipe's.

    The recipe has the commit, the build number, the license, and probes for the options that the
    source shows. It passes `recipe check` before it is written. A tree that no family recognizes
    needs --like. The exit code is 3 if the recipe would not be valid, and 4 if it exists
    already.
    """
    from builder.recipes.edit import write
    from builder.upstream import new_recipe

    recipes = catalog_at(catalog)
    wish = new_recipe.Wish(
        url=url, ref=ref, like=like, name=name, summary=about, license=license_id
    )
    with open_session(recipes) as session:
        found = new_recipe.draft(recipes, wish, session.repositories)
    for each in new_recipe.lines(found):
        log(each)
    if dry_run:
        line(found.text)
        return
    if found.file.exists() and not force:
        raise WorldError(
            f"{found.file} exists already",
            hint="another --name ENGINE-VERSION, or --force to replace it",
        )
    write(found.file, found.text)
    line(f"written {found.file}")
    if like is not None:
        log(
            f"look over what it has from {like}: entrypoint, definitions, packages, probes, summary"
        )
    where = f" --catalog {shlex.quote(str(catalog))}" if catalog else ""
    log(f"next: {PROGRAM} build {found.recipe.name}{where}")
