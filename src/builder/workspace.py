"""Directories and locks of a run, made so that a run killed at any moment leaves no obstacle."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from uuid import uuid4

from filelock import FileLock, Timeout

from builder.errors import BusyError, SpaceError, WorldError


@contextmanager
def workspace(cache: Path) -> Iterator[Path]:
    """An empty directory of this run, gone afterwards; what dead runs left is swept first.

    A run holds a lock beside its directory for as long as it lives, so a directory whose lock is
    free has no owner.  Nobody sweeps between a directory and its lock.
    """
    work = cache / "work"
    work.mkdir(parents=True, exist_ok=True)
    with FileLock(cache / "work.lock"):
        _sweep(work)
        folder = Path(tempfile.mkdtemp(dir=work))
        lock = FileLock(f"{folder}.lock")
        lock.acquire()
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        Path(lock.lock_file).unlink(missing_ok=True)
        lock.release()


def _sweep(work: Path) -> None:
    for folder in work.iterdir():
        if folder.is_dir():
            lock = FileLock(f"{folder}.lock")
            try:
                lock.acquire(timeout=0)
            except Timeout:
                continue
            shutil.rmtree(folder, ignore_errors=True)
            lock.release()
            Path(lock.lock_file).unlink(missing_ok=True)


@contextmanager
def alone(cache: Path, name: str, wait: Callable[[str], None] | None = None) -> Iterator[None]:
    """Hold the lock of a recipe or a base, on this machine.

    When another run holds it, ``wait`` is told and the lock waited for; without it ``BusyError``
    is raised.
    """
    folder = cache / "locks"
    folder.mkdir(parents=True, exist_ok=True)
    lock = FileLock(folder / f"{name}.lock")
    holder = folder / f"{name}.pid"
    try:
        lock.acquire(timeout=0)
    except Timeout as error:
        by = holder.read_text().strip() if holder.exists() else "unknown"
        if wait is None:
            raise BusyError(
                f"another run is at work on {name}", f"process {by}", "wait for it, or stop it"
            ) from error
        wait(f"waiting for {name}: process {by} is building it")
        lock.acquire()
    try:
        holder.write_text(str(os.getpid()))
        yield
    finally:
        lock.release()


@contextmanager
def whole(file: Path) -> Iterator[Path]:
    """A name beside ``file`` to write to: it becomes the file when all went well, else it goes.

    Raises ``OSError`` where the directory does not take it.
    """
    file.parent.mkdir(parents=True, exist_ok=True)
    waiting = file.with_name(f".{file.name}.{uuid4().hex}")
    try:
        yield waiting
        waiting.replace(file)
    finally:
        with suppress(OSError):
            waiting.unlink(missing_ok=True)


def keep_json(file: Path, value: Any) -> None:
    """Write ``value`` to ``file`` as JSON, whole and on the disk when this returns.

    Raises ``OSError`` when the disk does not take it.
    """
    with whole(file) as waiting, waiting.open("w", encoding="utf-8") as stream:
        json.dump(value, stream, indent=2)
        stream.write("\n")
        stream.flush()
        os.fsync(stream.fileno())


def standing(path: Path) -> Path:
    """``path``, or the nearest of the directories above it that is there."""
    while not path.exists():
        path = path.parent
    return path


def need_writable(folder: Path) -> None:
    """Raise ``WorldError`` where ``folder``, there or not, can be no directory of ours."""
    there = standing(folder)
    if not there.is_dir() or not os.access(there, os.W_OK):
        raise WorldError(f"nothing can be written to {folder}", f"see {there}")


def need_space(folder: Path, gib: float, what: str) -> None:
    """Raise ``SpaceError`` unless the disk of ``folder`` has ``gib`` GiB free."""
    folder = standing(folder)
    free = shutil.disk_usage(folder).free / 2**30
    if free < gib:
        raise SpaceError(
            f"{what} needs {gib:.1f} GiB of free disk",
            f"{folder} has {free:.1f} GiB",
            "free some (`docker system df` shows what Docker keeps, `docker builder prune` "
            "drops build caches)",
        )
