"""A table of compilers for the source tree of a recipe: every nvcc of the package index."""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from builder.build import toolkits
from builder.build.compiler_table import Compiler, Table
from builder.build.toolkits import Toolkit
from builder.checks import interpreter
from builder.core.errors import UntriedError
from builder.core.files import workspace
from builder.core.log import Log, duration
from builder.core.settings import Settings
from builder.plan.inputs import GitCommit, where
from builder.plan.resolver import Resolver
from builder.recipes.catalog import Catalog
from builder.sources import gather
from builder.sources.gather import GatherOptions
from simulator import compilers, tree
from simulator.compilers import Kernels
from simulator.errors import SimulatorError


def tabled(
    catalog: Catalog, name: str, settings: Settings, log: Log, versions: Sequence[str] | None = None
) -> Table:
    """Try all releases of nvcc for CUDA 13, or the given ``versions``, on the kernels of a recipe.

    Patches are applied, as in a build.  Raises ``RecipeError``, ``FetchError``, ``PatchError``,
    ``UntriedError`` where the tree has no such kernels, ``WorldError`` where this machine has no
    g++, ``UsageError`` for an unknown version.
    """
    interpreter.require_compiler()
    settings.require_directories()
    cache = settings.cache_dir
    plan = Resolver(catalog, "amd64").plans(name)[0]
    releases = toolkits.listed(versions)
    program = interpreter.program(cache, log)
    with workspace(cache) as work:
        source, committed = gather.source_of(plan, GatherOptions(cache, log), work)
        try:
            kernels = compilers.kernels_of(tree.find(source))
        except SimulatorError as error:
            raise UntriedError(*error.args) from error
        rows = [_row(toolkit, kernels, program, cache, log) for toolkit in releases]
    return Table(
        recipe=plan.name,
        source=where(plan.recipe.source),
        commit=plan.source.commit if isinstance(plan.source, GitCommit) else None,
        committed=_day(committed) if committed else None,
        tried=_day(time.time()),
        architecture=compilers.ARCHITECTURE,
        not_compared={**kernels.not_compared},
        compiler=rows,
    )


def _row(toolkit: Toolkit, kernels: Kernels, program: Path, cache: Path, log: Log) -> Compiler:
    start = time.monotonic()
    with workspace(cache) as work:
        nvcc = toolkits.install(toolkit, cache, work / "toolkit", log)
        installed = time.monotonic()
        results = compilers.results(kernels, nvcc, program, work)
    fetching, running = duration(installed - start), duration(time.monotonic() - installed)
    row = Compiler(
        nvcc=toolkit.version,
        released=toolkit.day,
        nmse={name: each for name, each in results.items() if isinstance(each, float)},
        ended={name: each for name, each in results.items() if isinstance(each, str)},
    )
    unknown = len(row.ended.keys() - {*row.wrong})
    verdict = f"{', '.join(row.wrong) or 'none'} wrong"
    verdict += f", {unknown} not run," if unknown else ""
    log(
        f"nvcc {row.nvcc}: {verdict} of {len(results)} "
        f"({fetching} to fetch, {running} to compile and run)"
    )
    return row


def _day(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).date().isoformat()
