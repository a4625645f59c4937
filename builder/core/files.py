"""Locks, work directories, atomic writes and disk space.

A run that is killed at any moment leaves nothing that hinders the next one.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import shlex
import shutil
import stat
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO
from uuid import uuid4

from builder.core.errors import BusyError, SpaceError, WorldError
from builder.core.log import Log

ALMOST_FULL = 1 / 16  # GiB: a tool that meets a full disk may leave this much
FULL_WORDS = ("no space left on device", "out of diskspace", "disk quota exceeded")
FREE_SPACE_HINT = (
    "free some space there (`builder clean` shows what can go), then run the same command again"
)
ACTIVITIES = {
    "tags": "gives or deletes tags",
    "nightly": "builds the nightly images",
    "reproduce": "reproduces an image",
}
"""The activity of a run while it holds a lock that belongs to no recipe or base."""
PID_DIGITS = 10  # of the largest process id, with room (proc(5), pid_max)


@contextmanager
def workspace(cache: Path) -> Iterator[Path]:
    """An empty directory for this run, removed afterwards; directories of dead runs are removed
    first.

    A run holds a lock beside its directory while it lives, so a directory whose lock is free has no
    owner.  The lock of all directories protects the moment between a directory and its lock.
    """
    work = cache / "work"
    with ExitStack() as mine:
        with file_lock(work / ".lock"):
            for old in work.iterdir():
                if old.is_dir() and not old.is_symlink():
                    with suppress(BlockingIOError), file_lock(_beside(old), wait=False):
                        _remove(old)
            folder = Path(tempfile.mkdtemp(dir=work))
            mine.enter_context(file_lock(_beside(folder)))
        try:
            with _name_full_disk(folder):
                yield folder
        finally:
            _remove(folder)


def _beside(folder: Path) -> Path:
    return folder.with_name(f"{folder.name}.lock")


def _remove(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    _beside(folder).unlink(missing_ok=True)


@contextmanager
def named_lock(cache: Path, name: str, wait: Callable[[str], None] | None = None) -> Iterator[None]:
    """Hold the lock of a recipe, a base, the tags or the nightly builds, on this machine.

    Where another run holds it, ``wait`` gets a line and the lock is waited for; without ``wait``
    raises ``BusyError``.  The lock file holds the id of the process that has the lock.
    """
    lock = _opened(cache / "locks" / f"{name}.lock")
    does = ACTIVITIES.get(name, f"is at work on {name}")
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
    """Hold the lock file ``file`` and give its descriptor; both it and its directory are created.

    Raises ``BlockingIOError`` where another process holds the lock and ``wait`` is false;
    ``WorldError`` where the file cannot be opened, or is a link.
    """
    lock = _opened(file)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield lock
    finally:
        os.close(lock)


def _opened(file: Path) -> int:
    try:
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        return os.open(file, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        if is_disk_full(error):
            raise
        raise _unusable(f"the lock file {file} cannot be used", file, error) from error


@contextmanager
def atomic_write(file: Path) -> Iterator[Path]:
    """A path to write to; on success it replaces ``file``, on failure it is removed.

    Raises ``SpaceError`` where the disk is full, ``OSError`` where the directory is not writable.
    """
    file.parent.mkdir(parents=True, exist_ok=True)
    temporary = file.with_name(f".{file.name}.{uuid4().hex}")
    try:
        with _name_full_disk(file.parent):
            yield temporary
            temporary.replace(file)
    finally:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)


def keep_newest(folder: Path, most: int, pattern: str = "*") -> None:
    """Remove the files of ``folder`` that match, save the ``most`` that were written last."""
    found = sorted(folder.glob(pattern), key=lambda file: file.stat().st_mtime, reverse=True)
    for file in found[most:]:
        file.unlink(missing_ok=True)


def link(file: Path, place: Path) -> None:
    """Give a file a second name, on another file system a copy."""
    try:
        os.link(file, place)
    except OSError:
        shutil.copyfile(file, place)


def write_json(file: Path, value: Any) -> None:
    """Write ``value`` to ``file`` as JSON, atomically and synced to the disk.

    Raises like ``atomic_write``.
    """
    with atomic_write(file) as temporary, temporary.open("w", encoding="utf-8") as stream:
        json.dump(value, stream, indent=2)
        stream.write("\n")
        stream.flush()
        os.fsync(stream.fileno())


def nearest_existing(path: Path) -> Path:
    """``path``, or the nearest directory above it that exists."""
    while not path.exists():
        path = path.parent
    return path


def require_writable(folder: Path, hint: str = "") -> None:
    """Raise ``WorldError`` where ``folder``, whether it exists or not, cannot be written.

    It is tried: a file in it, and directories that do not exist, are created and removed.
    """
    there = nearest_existing(folder)
    missing = [each for each in (folder, *folder.parents) if there in each.parents]
    why = ""
    if not there.is_dir():
        why = f"{there} is not a directory"
    elif not os.access(there, os.W_OK):
        why = f"this user may not write to {there}, or its disk is read-only"
    else:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            tempfile.TemporaryFile(dir=folder).close()
        except OSError as error:
            if is_disk_full(error):
                raise
            why = f"{error.filename or folder}: {error.strerror or error}"
        finally:
            for each in missing:
                with suppress(OSError):  # it was not created, or another run uses it
                    each.rmdir()
    if why:
        raise WorldError(f"cannot write to the directory {folder}", why, hint)


def require_space(folder: Path, gib: float, what: str) -> None:
    """Raise ``SpaceError`` unless the disk of ``folder`` has ``gib`` GiB free."""
    for error in too_full([(folder, gib, what)]):
        raise error


def too_full(needs: Iterable[tuple[Path, float, str]]) -> Iterator[SpaceError]:
    """An error for each disk that lacks the GiB that all of its folders need together."""
    disks: dict[Path, list[tuple[Path, float, str]]] = {}
    for need in needs:
        disks.setdefault(_disk_of(need[0])[0], []).append(need)
    for several in disks.values():
        mount, free, total = _disk_of(several[0][0])
        gib, folders = sum(each[1] for each in several), {str(each[0]): "" for each in several}
        if free < gib:
            what = " and ".join(each[2] for each in several)
            yield SpaceError(
                f"{what} need{'s' if len(several) == 1 else ''} {gib:.1f} GiB of free disk space",
                f"{' and '.join(folders)} {'is' if len(folders) == 1 else 'are'} on the disk "
                f"mounted at {mount}, which has {free:.1f} of {total:.1f} GiB free",
                FREE_SPACE_HINT,
            )


def full_disk(why: str, *folders: Path) -> SpaceError:
    """The error of a full disk: the fullest disk among the disks of ``folders``.

    The disk is named only where it is almost full: otherwise its space was freed in the meantime,
    or another disk is meant.
    """
    mount, free, total = min(map(_disk_of, folders), key=lambda disk: disk[1])
    if free > ALMOST_FULL:
        hint = "`df -h` shows the disks: free some space, then run the same command again"
        return SpaceError("a disk is full", why, hint)
    space = f"{free:.1f} of its {total:.1f} GiB are free"
    return SpaceError(f"the disk mounted at {mount} is full: {space}", why, FREE_SPACE_HINT)


def mentions_full_disk(text: str) -> bool:
    """Whether a program's output says that a disk, or a quota, is full."""
    return any(words in text.lower() for words in FULL_WORDS)


def is_disk_full(error: BaseException) -> bool:
    """Whether an exception means that a disk, or a quota, is full."""
    return isinstance(error, OSError) and error.errno in {errno.ENOSPC, errno.EDQUOT}


@contextmanager
def _name_full_disk(folder: Path) -> Iterator[None]:
    """Turn the error of a full disk into a ``SpaceError`` before anything is removed from it."""
    try:
        yield
    except OSError as error:
        if is_disk_full(error) and _disk_of(folder)[1] <= ALMOST_FULL:
            raise full_disk(f"writing to {folder}: {error.strerror}", folder) from error
        raise


def _disk_of(folder: Path) -> tuple[Path, float, float]:
    """The mount point, the free and the total GiB of a directory's disk; it need not exist."""
    mount = nearest_existing(folder).resolve()
    usage = shutil.disk_usage(mount)
    while not mount.is_mount():
        mount = mount.parent
    return mount, usage.free / 2**30, usage.total / 2**30


@contextmanager
def own_file(file: Path) -> Iterator[BinaryIO]:
    """Open a file to append to it and to read it; it and its directory are created if absent.

    Raises ``WorldError`` where a link, or anything but a file, has its name.
    """
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK
        opened = os.open(file, flags, 0o666)
    except OSError as error:
        if is_disk_full(error):
            raise
        raise _unusable(f"cannot write to {file}", file, error) from error
    if not stat.S_ISREG(os.fstat(opened).st_mode):
        os.close(opened)
        raise _unusable(f"cannot write to {file}", file, OSError("it is no file"))
    with os.fdopen(opened, "a+b") as stream:
        yield stream


def _unusable(what: str, file: Path, error: OSError) -> WorldError:
    """The hint names what is in the place of a file, or of a directory above it."""
    there = next(each for each in (file, *file.parents) if os.path.lexists(each))
    why, hint = error.strerror or str(error), "name directories of your own: BUILDER_CACHE_DIR, "
    hint += "BUILDER_STATE_DIR, BUILDER_MODELS_DIR"
    if there == file or not there.is_dir():
        which = "it" if there == file else there
        why = f"{which} is a link to {there.readlink()}" if there.is_symlink() else why
        shown = shlex.quote(str(there))
        hint = f"find out who created {shown}, then remove it: `rm -r {shown}`; or {hint}"
    return WorldError(what, why, hint)


# Directories that are made once for a key, and removed when no run uses them any more.

UNUSED = 7 * 86400  # seconds without use after which a directory is removed


def made_once(
    cache: Path, name: str, key: str, log: Log, make: Callable[[Path, Path], None]
) -> Path:
    """The directory ``cache / name / key``.

    Where there is none, ``make`` is called with the path to write it at, which does not exist, and
    an empty directory for its own files.  Raises like ``make``, and ``SpaceError``.
    """
    folder = cache / name / key
    if _is_there(folder):
        return folder
    with named_lock(cache, f"{name}-{key}", wait=log), workspace(cache) as work:
        if _is_there(folder):  # another run has made it
            return folder
        remove_unused(folder.parent)
        made, own = work / "made", work / "own"
        own.mkdir()
        make(made, own)
        folder.parent.mkdir(parents=True, exist_ok=True)
        made.rename(folder)
    return folder


def remove_unused(folder: Path) -> None:
    """Remove directories that no run has started to use for a week: they belong to other sources or
    bases, and no run takes a week."""
    oldest = time.time() - UNUSED
    for found in folder.glob("*"):
        with suppress(FileNotFoundError):
            if found.stat().st_mtime < oldest:
                shutil.rmtree(found, ignore_errors=True)


def _is_there(folder: Path) -> bool:
    """Whether there is such a directory; it counts as used now."""
    with suppress(FileNotFoundError):
        os.utime(folder)
        return True
    return False
