"""The tables of compilers for the site."""

from __future__ import annotations

from pathlib import Path

from builder.compilers import table as tables
from builder.compilers.table import Compiler, Table
from builder.site.facts import CompilerRow, CompilerTable, ThreadFact

GITHUB = "https://github.com/{0}/issues/{1}"  # GitHub redirects the number of a pull request


def compiler_tables(root: Path) -> tuple[CompilerTable, ...]:
    """All tables of the farm at ``root``.  Raises ``RecipeError`` where a file is invalid."""
    return tuple(_table(each) for each in tables.load(root))


def _table(found: Table) -> CompilerTable:
    return CompilerTable(
        recipe=found.recipe,
        source=found.source,
        commit=found.commit or "",
        committed=found.committed or "",
        tried=found.tried,
        architecture=found.architecture,
        limit=tables.LIMIT,
        types=found.types,
        compilers=tuple(map(_row, found.compiler)),
        not_compared=found.not_compared,
    )


def _row(each: Compiler) -> CompilerRow:
    return CompilerRow(each.nvcc, each.released, each.wrong, each.nmse, each.ended)


def compiler_threads(root: Path) -> tuple[ThreadFact, ...]:
    """The threads about compilers.  Raises ``RecipeError`` where the file is invalid."""
    return tuple(
        ThreadFact(
            each.thread,
            GITHUB.format(*each.thread.split("#")),
            each.about,
            tuple(each.nvcc),
            tuple(each.types),
            each.answer or "",
        )
        for each in tables.threads(root)
    )
