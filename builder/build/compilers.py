"""A table of compilers for the source tree of a recipe: every nvcc of the package index."""

from __future__ import annotations

import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from builder.build.compiler_table import Compiler, Table
from builder.checks import simulated
from builder.core import archives
from builder.core.errors import GoneError, UntriedError, UsageError
from builder.core.files import workspace
from builder.core.log import Log, duration
from builder.core.settings import Settings
from builder.plan.inputs import GitCommit, where
from builder.plan.resolver import Resolver
from builder.recipes.catalog import Catalog
from builder.sources import gather, pypi
from builder.sources.gather import GatherOptions
from builder.sources.pypi import IndexFile
from simulator import SimulatorError, compilers
from simulator.compilers import Kernels, find_kernels

# nvcc's releases on the package index, each with the wheels that it compiles with.

NVCC = "nvidia-cuda-nvcc"
SAME_VERSION = ("nvidia-cuda-crt", "nvidia-nvvm")
"""Parts of the compiler: their wheels have its version."""
SAME_DAY = ("nvidia-cuda-runtime", "nvidia-cuda-cccl")
"""Headers with versions of their own: the newest ones of the day when nvcc was released."""
CUBLAS = "nvidia-cublas"
"""Headers again; the wheel has 400 MB, so only its texts are read."""
CUDA = "13."
PROGRAMS = ("bin", "nvvm/bin")
PYTHON = "3.11"  # the wheels fit every version


@dataclass(frozen=True, slots=True)
class Toolkit:
    """A release of nvcc."""

    version: str
    day: str
    """Day of its upload (YYYY-MM-DD)."""
    wheels: tuple[IndexFile, ...]
    cublas: IndexFile


def listed(versions: Sequence[str] | None = None) -> list[Toolkit]:
    """The releases for CUDA 13, the oldest first, or only the given ``versions``.

    Raises ``FetchError`` where the index does not answer, or lacks a part; ``UsageError`` where it
    lacks one of the ``versions``.
    """
    offered = {
        name: pypi.releases(name, PYTHON) for name in (NVCC, *SAME_VERSION, *SAME_DAY, CUBLAS)
    }
    found = [each for each in offered[NVCC] if each.version.startswith(CUDA)]
    missing = sorted({*(versions or [])} - {each.version for each in found})
    if missing:
        raise UsageError(
            f"the package index has no nvcc {', '.join(missing)}",
            f"it has {', '.join(each.version for each in found)}",
        )
    return [_toolkit(each, offered) for each in found if not versions or each.version in versions]


def _toolkit(nvcc: IndexFile, offered: Mapping[str, Sequence[IndexFile]]) -> Toolkit:
    same = [_of_version(name, nvcc, offered[name]) for name in SAME_VERSION]
    headers = [_of_day(name, nvcc, offered[name]) for name in SAME_DAY]
    cublas = _of_day(CUBLAS, nvcc, offered[CUBLAS])
    return Toolkit(nvcc.version, nvcc.day, (nvcc, *same, *headers), cublas)


def _of_version(name: str, nvcc: IndexFile, releases: Sequence[IndexFile]) -> IndexFile:
    for each in releases:
        if each.version == nvcc.version:
            return each
    raise GoneError(f"the package index has no {name} {nvcc.version}, which nvcc needs")


def _of_day(name: str, nvcc: IndexFile, releases: Sequence[IndexFile]) -> IndexFile:
    """The newest release of CUDA 13 on the day of ``nvcc``; old branches get releases, too."""
    known = [each for each in releases if each.version.startswith(CUDA)]
    until = [each for each in known if each.day and each.day <= nvcc.day]
    if not until:
        raise GoneError(
            f"the package index has no {name} of {nvcc.day or 'a known day'} or before",
            "it goes by the days on which the index got the files",
            "use an index that tells them, such as PyPI",
        )
    return max(until, key=lambda each: each.day)


def install(toolkit: Toolkit, cache: Path, target: Path, log: Log) -> Path:
    """Unpack the parts that compile to PTX below the new directory ``target``; return ``nvcc``.

    The wheels are kept in ``cache``.  Raises ``FetchError``.
    """
    parts = target / "parts"
    parts.mkdir(parents=True)
    for file in pypi.fetch(toolkit.wheels, cache, log):
        archives.unpack(file, parts / file.name, texts_only=True)
    pypi.fetch_text_files(toolkit.cublas, parts / CUBLAS, log)
    root = target / "cuda"
    for tree in parts.glob("*/nvidia/*"):
        shutil.copytree(tree, root, copy_function=shutil.move, dirs_exist_ok=True)
    shutil.rmtree(parts)
    expected, elsewhere = root / "nvvm" / "bin" / "cicc", root / "bin" / "cicc"
    if elsewhere.exists() and not expected.exists():  # in 13.0.48
        expected.parent.mkdir(parents=True, exist_ok=True)
        elsewhere.rename(expected)
    for folder in PROGRAMS:
        for program in (root / folder).glob("*"):
            if program.is_file():
                program.chmod(0o755)
    return root / "bin" / "nvcc"


# The table: one row a release.


def tabled(
    catalog: Catalog, name: str, settings: Settings, log: Log, versions: Sequence[str] | None = None
) -> Table:
    """Try all releases of nvcc for CUDA 13, or the given ``versions``, on the kernels of a recipe.

    Patches are applied, as in a build.  Raises ``RecipeError``, ``FetchError``, ``PatchError``,
    ``UntriedError`` where the tree has no such kernels, ``WorldError`` where this machine has no
    g++, ``UsageError`` for an unknown version.
    """
    simulated.require_compiler()
    settings.require_directories()
    cache = settings.cache_dir
    plan = Resolver(catalog, "amd64").plans(name)[0]
    releases = listed(versions)
    program = simulated.ptx_program(cache, log)
    with workspace(cache) as work:
        source, committed = gather.source_of(plan, GatherOptions(cache, log), work)
        try:
            kernels = compilers.kernels_of(find_kernels(source))
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
        nvcc = install(toolkit, cache, work / "toolkit", log)
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
