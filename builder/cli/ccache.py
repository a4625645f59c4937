"""Commands that carry the compiler cache from one machine to another."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from builder.cli.options import (
    BuilderOption,
    CatalogOption,
    JsonOption,
    RecipeName,
    build_options,
    build_session,
    ci_group,
    print_json,
)

if TYPE_CHECKING:
    from builder.images.ccache import Carried

ccache = typer.Typer(
    no_args_is_help=True,
    help="Save the compiler cache of the engine to a file, and load it on another machine.",
)
ci_group.add_typer(ccache, name="ccache")


@ccache.command()
def save(
    recipe: RecipeName,
    file: Annotated[
        Path,
        typer.Argument(
            metavar="FILE", dir_okay=False, help="A tar file; an existing one is replaced."
        ),
    ],
    catalog: CatalogOption = None,
    builder: BuilderOption = None,
    limit: Annotated[
        float,
        typer.Option(
            metavar="GIB",
            min=0.01,
            max=1000,
            help="Size limit; the entries that were not used for longest are left out.",
        ),
    ] = 1.0,
    as_json: JsonOption = False,
) -> None:
    """Write the compiler cache of the engine into a file.

    All recipes share one cache on an engine. The command does nothing if the recipe compiles
    nothing. It does not change the cache.
    """
    from builder.images import ccache as compiler_cache
    from builder.tools.files import workspace

    session = build_session(catalog, build_options(builder=builder))
    image = compiler_cache.compile_image(session.resolve(recipe), session)
    if image is None:
        _nothing(recipe, as_json)
        return
    with workspace(session.settings.cache_dir) as work:
        on, place = session.settings.buildx, file.absolute()
        kept = compiler_cache.save(image, place, work, limit, builder=on)
        _tell("kept in", kept, as_json)


@ccache.command()
def load(
    recipe: RecipeName,
    file: Annotated[
        Path,
        typer.Argument(metavar="FILE", dir_okay=False, help="A file that `ccache save` wrote."),
    ],
    catalog: CatalogOption = None,
    builder: BuilderOption = None,
    as_json: JsonOption = False,
) -> None:
    """Add the contents of a file to the compiler cache of the engine, before a build.

    The recipe's base is built if it is missing, because the cache is loaded inside it. The command
    does nothing if the recipe compiles nothing. An incomplete file, or one that `ccache save` did
    not write, is refused. Whoever wrote the file decides what your builds contain: load only files
    from people whom you trust.
    """
    from builder.images import ccache as compiler_cache
    from builder.tools.files import workspace

    session = build_session(catalog, build_options(builder=builder))
    image = compiler_cache.compile_image(session.resolve(recipe), session)
    if image is None:
        _nothing(recipe, as_json)
        return
    with workspace(session.settings.cache_dir) as work:
        on, place = session.settings.buildx, file.absolute()
        _tell("taken from", compiler_cache.load(image, place, work, builder=on), as_json)


def _nothing(recipe: str, as_json: bool) -> None:
    from builder.cli import console

    if as_json:
        print_json(None)
    else:
        console.line(f"{recipe} compiles nothing: it has no compiler cache")


def _tell(verb: str, carried: Carried, as_json: bool) -> None:
    from builder.cli import console

    if as_json:
        print_json(asdict(carried) | {"file": str(carried.file)})
    else:
        console.line(f"compiler cache {verb} {carried.file}  ({console.size(carried.size)})")
