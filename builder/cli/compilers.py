"""``builder compilers``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from builder.cli.options import CatalogOption, JsonOption, RecipeName, catalog_at
from builder.cli.tables import table
from builder.cli.terminal import line, log, print_json

if TYPE_CHECKING:
    from builder.build.compiler_table import Table


def compilers(
    recipe: RecipeName,
    catalog: CatalogOption = None,
    versions: Annotated[
        list[str] | None,
        typer.Option(
            "--nvcc",
            metavar="VERSION",
            help="Only this version, as the package index has it: 13.2.51. May be repeated. "
            "Default: all releases for CUDA 13.",
        ),
    ] = None,
    save: Annotated[
        bool,
        typer.Option("--save", help="Write the table to compilers/RECIPE.toml of the catalog."),
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Find compilers that miscompile the quantizations of a recipe's tree; no GPU is needed.

    Each release of nvcc for CUDA 13 that the package index has compiles ggml's quantization
    kernels to PTX, and the PTX interpreter computes them on random blocks. The table has the
    normalized mean square error against gguf-py for each type; above 5e-4, which is ggml's own
    limit, the type is wrong. `builder recipe check` warns of a base whose nvcc is wrong in a saved
    table, and `builder site` shows the tables.

    The machine needs g++ and make. The first run compiles the interpreter, which takes two minutes;
    then a release takes about half a minute. The wheels of a release have 110 MB and stay in the
    cache directory.
    """
    from builder.build import compiler_table as tables
    from builder.build.compilers import tabled
    from builder.core import settings
    from builder.core.errors import UsageError

    if save and versions:
        raise UsageError("--save writes the table of all releases", hint="leave out --nvcc")
    loaded = catalog_at(catalog)
    found = tabled(loaded, recipe, settings.load(), log, versions)
    if save:
        log(f"written  {tables.write(found, loaded.root)}")
    if as_json:
        print_json(found.model_dump() | {"limit": tables.LIMIT})
    else:
        print_table(found)


def print_table(found: Table) -> None:
    """Print a row for each type, and a column for each compiler; then the types without a row."""
    header = ("type", *(each.nvcc for each in found.compiler))
    rows = [
        (name, *(_cell(each.results.get(name, "")) for each in found.compiler))
        for name in found.types
    ]
    table(header, rows)
    for each in found.compiler:
        for name, words in each.ended.items():
            line(f"nvcc {each.nvcc}, {name}: {words}")
    for name, why in found.not_compared.items():
        line(f"not compared: {name}: {why}")


def _cell(result: float | str) -> str:
    """The error, or the kind of end: its place follows the table."""
    return f"{result:.1e}" if isinstance(result, float) else result.partition(",")[0]
