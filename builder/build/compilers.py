"""Tables of compilers: every nvcc of the package index, tried on the kernels of a recipe.

They stand in ``compilers/RECIPE.toml``, and threads about compilers in ``threads.toml`` beside
them: `recipe lint` and the site read both.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from pydantic import Field, StringConstraints

from builder.checks import simulated
from builder.core import archives, farm
from builder.core.errors import GoneError, UntriedError, UsageError
from builder.core.files import atomic_write, workspace
from builder.core.log import Log, duration
from builder.core.settings import Settings
from builder.plan.inputs import GitCommit, where
from builder.plan.resolver import Resolver
from builder.recipes.catalog import Catalog, read_model
from builder.recipes.fields import THREAD, Model, Text
from builder.sources import gather, pypi, releases
from builder.sources.gather import GatherOptions
from builder.sources.releases import IndexFile
from simulator import SimulatorError, compilers
from simulator.compilers import Kernels, find_kernels

Result = float | str  # the normalized mean square error, or how the kernel ended
NOT_RUN = "not "  # begins a result that says nothing about the compiler: not run, not compiled
FOLDER = "compilers"
THREADS = "threads.toml"
LIMIT = 5e-4  # the largest error that ggml accepts for products (tests/test-backend-ops.cpp)


class Compiler(Model):
    """The results of an nvcc: by type, the error, or how a kernel ended that gave no numbers."""

    nvcc: Text  # version
    released: Text  # day on which the package index got it
    nmse: dict[str, float]
    ended: dict[str, Text] = Field(default_factory=dict)

    @property
    def results(self) -> Mapping[str, Result]:
        """The result of each type."""
        return {**self.nmse, **self.ended}

    @property
    def wrong(self) -> tuple[str, ...]:
        """The types that it miscompiles."""
        return tuple(sorted(name for name, each in self.results.items() if is_wrong(each)))


def is_wrong(result: Result) -> bool:
    """Whether a result shows a wrong kernel: an error above the limit, or a fault."""
    if isinstance(result, str):
        return not result.startswith(NOT_RUN)
    return not result <= LIMIT


class Table(Model):
    """All results for the tree of a recipe."""

    recipe: Text
    source: Text  # repository, or the origin of other sources
    commit: Text | None = None
    committed: Text | None = None  # day of the commit
    tried: Text  # day
    architecture: Text
    not_compared: dict[str, Text] = Field(default_factory=dict)  # why, by type
    compiler: list[Compiler]

    @property
    def types(self) -> tuple[str, ...]:
        """The types of all rows, by name; the kernels with a name of two words come last."""
        names = {name for each in self.compiler for name in each.results}
        return tuple(sorted(names, key=lambda name: (" " in name, name.lower())))


class Thread(Model):
    """A thread of GitHub about a compiler, and the findings of the tables about it."""

    thread: Annotated[str, StringConstraints(pattern=THREAD)]
    about: Text
    nvcc: list[Text]  # versions
    types: list[Text]
    answer: Text | None = None


class _Threads(Model):
    thread: list[Thread]


def load(root: Path) -> tuple[Table, ...]:
    """All tables, by name of the recipe.  Raises ``RecipeError`` where a file is invalid."""
    files = sorted(farm.folder(root, FOLDER).glob("*.toml"))
    return tuple(read_model(file, Table) for file in files if file.name != THREADS)


def threads(root: Path) -> tuple[Thread, ...]:
    """The threads.  Raises ``RecipeError`` where the file is invalid."""
    file = farm.folder(root, FOLDER) / THREADS
    return tuple(read_model(file, _Threads).thread) if file.is_file() else ()


def about(found: Iterable[Thread], compiler: Compiler) -> list[Thread]:
    """The threads about the version of a compiler and a type that it miscompiles."""
    wrong = {*compiler.wrong}
    return [each for each in found if compiler.nvcc in each.nvcc and wrong & {*each.types}]


def warnings(root: Path) -> dict[str, list[str]]:
    """What the tables say against versions of nvcc, by version; raises ``RecipeError``."""
    found: dict[str, list[str]] = {}
    known = threads(root)
    for table in load(root):
        for each in table.compiler:
            if each.wrong:
                named = ", ".join(thread.thread for thread in about(known, each))
                message = f"nvcc {each.nvcc} miscompiles {', '.join(each.wrong)} of {table.recipe}"
                found.setdefault(each.nvcc, []).append(f"{message}{f': {named}' if named else ''}")
    return found


def write(table: Table, root: Path) -> Path:
    """Write a table to its file, and return the file; raises ``SpaceError``, ``OSError``."""
    head = table.model_dump(exclude={"not_compared", "compiler"}, exclude_none=True)
    text = [f"# Made by `builder compilers {table.recipe} --save`.", *_lines(head)]
    if table.not_compared:
        text += ["", "[not_compared]", *_lines(table.not_compared, json.dumps)]
    for each in table.compiler:
        text += ["", "[[compiler]]", *_lines({"nvcc": each.nvcc, "released": each.released})]
        text += ["", "[compiler.nmse]", *_lines(each.nmse, json.dumps)]
        text += ["", "[compiler.ended]", *_lines(each.ended, json.dumps)] if each.ended else []
    file = root / FOLDER / f"{table.recipe}.toml"
    with atomic_write(file) as new:
        new.write_text("\n".join(text) + "\n", "utf-8")
    return file


def _lines(values: Mapping[str, Any], key: Callable[[str], str] = str) -> list[str]:
    """Basic strings and floats of TOML; JSON escapes as TOML does."""
    shown = {
        name: f"{x:.1e}" if isinstance(x, float) else json.dumps(x) for name, x in values.items()
    }
    return [f"{key(name)} = {value}" for name, value in shown.items()]


# nvcc's releases on the package index, each with the wheels that it compiles with.

NVCC = "nvidia-cuda-nvcc"
SAME_VERSION = ("nvidia-cuda-crt", "nvidia-nvvm")
"""Parts of the compiler: their wheels have its version."""
SAME_DAY = ("nvidia-cuda-runtime", "nvidia-cuda-cccl")
"""Headers with versions of their own: the newest ones of the day when nvcc was released."""
CUBLAS = "nvidia-cublas"  # headers again; the wheel has 400 MB, so only its texts are read
CUDA = "13."
PYTHON = "3.11"  # the wheels fit every version


class Toolkit(NamedTuple):
    """A release of nvcc, and the day of its upload (YYYY-MM-DD)."""

    version: str
    day: str
    wheels: tuple[IndexFile, ...]
    cublas: IndexFile


def listed(versions: Sequence[str] | None = None) -> list[Toolkit]:
    """The releases for CUDA 13, the oldest first, or only the given ``versions``."""
    names = (NVCC, *SAME_VERSION, *SAME_DAY, CUBLAS)
    offered = {name: releases.releases(name, PYTHON) for name in names}
    found = [each for each in offered[NVCC] if each.version.startswith(CUDA)]
    missing = sorted({*(versions or [])} - {each.version for each in found})
    if missing:
        raise UsageError(
            f"the package index has no nvcc {', '.join(missing)}",
            f"it has {', '.join(each.version for each in found)}",
        )
    made = []
    for nvcc in found:
        if not versions or nvcc.version in versions:
            parts = [nvcc]
            for name in SAME_VERSION:
                same = [each for each in offered[name] if each.version == nvcc.version]
                if not same:
                    missing_part = f"{name} {nvcc.version}, which nvcc needs"
                    raise GoneError(f"the package index has no {missing_part}")
                parts.append(same[0])
            parts += [_of_day(name, nvcc, offered[name]) for name in SAME_DAY]
            cublas = _of_day(CUBLAS, nvcc, offered[CUBLAS])
            made.append(Toolkit(nvcc.version, nvcc.day, tuple(parts), cublas))
    return made


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
    """Unpack the parts that compile to PTX below the new directory ``target``; return ``nvcc``."""
    parts, root = target / "parts", target / "cuda"
    parts.mkdir(parents=True)
    for file in pypi.fetch(toolkit.wheels, cache, log):
        archives.unpack(file, parts / file.name, texts_only=True)
    releases.fetch_text_files(toolkit.cublas, parts / CUBLAS, log)
    for tree in parts.glob("*/nvidia/*"):
        shutil.copytree(tree, root, copy_function=shutil.move, dirs_exist_ok=True)
    shutil.rmtree(parts)
    expected, elsewhere = root / "nvvm" / "bin" / "cicc", root / "bin" / "cicc"
    if elsewhere.exists() and not expected.exists():  # in 13.0.48
        expected.parent.mkdir(parents=True, exist_ok=True)
        elsewhere.rename(expected)
    for program in (*root.glob("bin/*"), *root.glob("nvvm/bin/*")):
        if program.is_file():
            program.chmod(0o755)
    return root / "bin" / "nvcc"


def tabled(
    catalog: Catalog, name: str, settings: Settings, log: Log, versions: Sequence[str] | None = None
) -> Table:
    """Try all releases of nvcc for CUDA 13, or the given ``versions``, on the kernels of a recipe.

    Patches are applied, as in a build.  Raises ``UntriedError`` where the tree has no such kernels,
    ``WorldError`` where this machine has no g++, ``UsageError`` for an unknown version.
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
    verdict = f"{', '.join(row.wrong) or 'none'} wrong{f', {unknown} not run,' if unknown else ''}"
    took = f"{fetching} to fetch, {running} to compile and run"
    log(f"nvcc {row.nvcc}: {verdict} of {len(results)} ({took})")
    return row


def _day(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).date().isoformat()
