"""Directories and locks of a run, made so that a run killed at any moment leaves no obstacle."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import shlex
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any
from uuid import uuid4

from builder.errors import BusyError, SpaceError, WorldError

WRITABLE_BY_OTHERS = stat.S_IWGRP | stat.S_IWOTH
HARDLY_ANY = 1 / 16  # GiB: a tool that meets a full disk may leave this much
FULL_WORDS = ("no space left on device", "out of diskspace", "disk quota exceeded")
FREE_SPACE_HINT = (
    "free some space there (`docker system df` shows what Docker keeps, `docker builder prune` "
    "drops build caches), then run the same command again"
)
DOES = {"tags": "gives or deletes tags", "nightly": "builds the nightly images"}
"""What a run does while it holds a lock that is no recipe's and no base's."""
PID_DIGITS = 10  # of the largest process id, with room (proc(5), pid_max)


@contextmanager
def workspace(cache: Path) -> Iterator[Path]:
    """An empty directory of this run, gone afterwards; what dead runs left is swept first.

    A run holds a lock beside its directory for as long as it lives, so a directory whose lock is
    free has no owner.  Nobody sweeps between a directory and its lock.
    """
    work = cache / "work"
    with ExitStack() as mine:
        with file_lock(work / ".lock"):
            _sweep(work)
            folder = Path(tempfile.mkdtemp(dir=work))
            mine.enter_context(file_lock(_beside(folder)))
        try:
            with _naming_the_full_disk(folder):
                yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)
            _beside(folder).unlink(missing_ok=True)


def _beside(folder: Path) -> Path:
    return folder.with_name(f"{folder.name}.lock")


def _sweep(work: Path) -> None:
    for folder in work.iterdir():
        if folder.is_dir() and not folder.is_symlink():
            with suppress(BlockingIOError), file_lock(_beside(folder), wait=False):
                shutil.rmtree(folder, ignore_errors=True)
                _beside(folder).unlink(missing_ok=True)


@contextmanager
def named_lock(cache: Path, name: str, wait: Callable[[str], None] | None = None) -> Iterator[None]:
    """Hold the lock of a recipe, a base, the tags or the nightlies, on this machine.

    When another run holds it, ``wait`` is told and the lock waited for; without it ``BusyError``
    is raised.  The lock file names the process that holds it.
    """
    lock = _opened(cache / "locks" / f"{name}.lock")
    does = DOES.get(name, f"is at work on {name}")
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            by = os.pread(lock, PID_DIGITS, 0).decode("ascii", "replace").strip() or "unknown"
            if wait is None:
                raise BusyError(
                    f"another run on this machine {does}",
                    f"process {by}",
                    "wait for it, or stop it",
                ) from error
            wait(f"waiting for process {by}, which {does}")
            fcntl.flock(lock, fcntl.LOCK_EX)
        os.ftruncate(lock, 0)
        os.pwrite(lock, str(os.getpid()).encode(), 0)
        yield
    finally:
        os.close(lock)


@contextmanager
def file_lock(file: Path, *, wait: bool = True) -> Iterator[int]:
    """Hold the lock file ``file``, made where it is not, and give its descriptor.

    Its directory is made where it is not, and must be this user's own: other users lose the right
    to write to it.  Raises ``BlockingIOError`` where another process holds the lock and ``wait``
    is false; ``WorldError`` where the file is a link or a directory, or its directory is a link or
    another user's.
    """
    lock = _opened(file)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield lock
    finally:
        os.close(lock)


def _opened(file: Path) -> int:
    """Open a lock file in a directory of ours; no link is followed, so no other file is written.

    Raises like ``file_lock``.
    """
    folder = _own_directory(file.parent)
    try:
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW
        lock = os.open(file.name, flags, 0o600, dir_fd=folder)
    except IsADirectoryError as error:
        raise WorldError(
            f"the lock file {file} cannot be used",
            "it is a directory",
            f"find out who made it, then remove it: `rm -r {shlex.quote(str(file))}`",
        ) from error
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
        raise _planted(file) from error
    finally:
        os.close(folder)
    if os.fstat(lock).st_nlink > 1:
        os.close(lock)
        raise _planted(file)
    return lock


def _planted(file: Path) -> WorldError:
    return WorldError(
        f"the lock file {file} is a link to another file",
        "locking it would overwrite that file",
        f"find out who made the link, then remove it: `rm {shlex.quote(str(file))}`",
    )


def _own_directory(folder: Path) -> int:
    """Open a directory, made where it is not; raises ``WorldError`` where it is not this user's."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    hint = "set BUILDER_CACHE_DIR and BUILDER_STATE_DIR to directories of your own"
    try:
        opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except NotADirectoryError as error:  # also a link, with both flags (open(2))
        raise WorldError(f"{folder} is not a directory", "it is a link or a file", hint) from error
    found = os.fstat(opened)
    if found.st_uid != os.geteuid():
        os.close(opened)
        raise WorldError(
            f"the directory {folder} belongs to another user",
            f"its owner is user {found.st_uid}, this is user {os.geteuid()}",
            hint,
        )
    if found.st_mode & WRITABLE_BY_OTHERS:
        os.fchmod(opened, stat.S_IMODE(found.st_mode) & ~WRITABLE_BY_OTHERS)
    return opened


@contextmanager
def atomic_write(file: Path) -> Iterator[Path]:
    """A name beside ``file`` to write to: it becomes the file when all went well, else it goes.

    Raises ``SpaceError`` where the disk is full, ``OSError`` where the directory does not take it.
    """
    file.parent.mkdir(parents=True, exist_ok=True)
    waiting = file.with_name(f".{file.name}.{uuid4().hex}")
    try:
        with _naming_the_full_disk(file.parent):
            yield waiting
            waiting.replace(file)
    finally:
        with suppress(OSError):
            waiting.unlink(missing_ok=True)


def write_json(file: Path, value: Any) -> None:
    """Write ``value`` to ``file`` as JSON, whole and on the disk when this returns.

    Raises like ``whole``.
    """
    with atomic_write(file) as waiting, waiting.open("w", encoding="utf-8") as stream:
        json.dump(value, stream, indent=2)
        stream.write("\n")
        stream.flush()
        os.fsync(stream.fileno())


def nearest_existing(path: Path) -> Path:
    """``path``, or the nearest of the directories above it that is there."""
    while not path.exists():
        path = path.parent
    return path


def require_writable(folder: Path, hint: str = "") -> None:
    """Raise ``WorldError`` where ``folder``, there or not, can be no directory of ours."""
    there = nearest_existing(folder)
    why = "" if there.is_dir() else f"{there} is not a directory"
    if not why and not os.access(there, os.W_OK):
        why = f"this user may not write to {there}, or its disk is read-only"
    if why:
        raise WorldError(f"cannot write to the directory {folder}", why, hint)


def require_space(folder: Path, gib: float, what: str) -> None:
    """Raise ``SpaceError`` unless the disk of ``folder`` has ``gib`` GiB free."""
    mount, free, total = _disk_of(folder)
    if free < gib:
        raise SpaceError(
            f"{what} needs {gib:.1f} GiB of free disk space",
            f"{folder} is on the disk mounted at {mount}, which has {free:.1f} of {total:.1f} GiB "
            "free",
            FREE_SPACE_HINT,
        )


def full_disk(why: str, *folders: Path) -> SpaceError:
    """The error of a disk that filled up: of those that hold ``folders``, the fullest one.

    The disk is named only where hardly any room is left on it: else its room was given back in the
    meantime, or another disk is meant.
    """
    mount, free, total = min(map(_disk_of, folders), key=lambda disk: disk[1])
    if free > HARDLY_ANY:
        hint = "`df -h` shows the disks: free some space, then run the same command again"
        return SpaceError("a disk is full", why, hint)
    room = f"{free:.1f} of its {total:.1f} GiB are free"
    return SpaceError(f"the disk mounted at {mount} is full: {room}", why, FREE_SPACE_HINT)


def mentions_full_disk(text: str) -> bool:
    """Whether what a program printed says that a disk, or a quota, is full."""
    return any(words in text.lower() for words in FULL_WORDS)


def is_disk_full(error: BaseException) -> bool:
    """Whether an exception means that a disk, or a quota, is full."""
    return isinstance(error, OSError) and error.errno in {errno.ENOSPC, errno.EDQUOT}


@contextmanager
def _naming_the_full_disk(folder: Path) -> Iterator[None]:
    """Name the disk of ``folder`` where it fills up, before anything is removed from it."""
    try:
        yield
    except OSError as error:
        if is_disk_full(error) and _disk_of(folder)[1] <= HARDLY_ANY:
            raise full_disk(f"writing to {folder}: {error.strerror}", folder) from error
        raise


def _disk_of(folder: Path) -> tuple[Path, float, float]:
    """Where the disk of a directory, there or not, is mounted; its free and its whole GiB."""
    mount = nearest_existing(folder).resolve()
    usage = shutil.disk_usage(mount)
    while not mount.is_mount():
        mount = mount.parent
    return mount, usage.free / 2**30, usage.total / 2**30
