"""nvcc's releases on the package index, each with the wheels that it compiles with."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from builder.core import archives
from builder.core.errors import GoneError, UsageError
from builder.core.log import Log
from builder.sources import pypi
from builder.sources.pypi import IndexFile

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
