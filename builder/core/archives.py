"""Unpack tar and zip files into a directory: nothing is written outside of it.

The number of members and the unpacked size are bounded.  Where an archive is refused or damaged,
the directory is removed.
"""

from __future__ import annotations

import errno
import lzma
import os
import re
import shutil
import stat
import struct
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import IO, Any

from backports import zstd

from builder.core import sizes
from builder.core.errors import FetchError
from builder.core.files import is_disk_full
from builder.core.names import LONGEST_PATH, escaped

# Where the symbolic links of a tree lead: found in the tree itself, no link is followed.

MOST_LINKS = 40
"""Links that one path may pass: as many as Linux follows (path_resolution(7))."""


def below(folder: Path) -> dict[str, str]:
    """The symbolic links below a directory: target by path."""
    found = {}
    for parent, folders, files in os.walk(folder):
        for path in (Path(parent) / name for name in (*folders, *files)):
            if path.is_symlink():
                found[path.relative_to(folder).as_posix()] = str(path.readlink())
    return found


def leaving(links: Mapping[str, str]) -> dict[str, str]:
    """The links of a tree that lead out of it, on their own or by way of other links.

    ``links`` are all links of the tree: target by path.
    """
    return {path: target for path, target in links.items() if _leaves(path, links)}


def _leaves(path: str, links: Mapping[str, str]) -> bool:
    """Whether following the link at ``path`` leaves the tree, or never ends."""
    where: list[str] = []
    steps = path.split("/")[::-1]  # the next one is the last
    passed = 0
    while steps:
        step = steps.pop()
        if step == "..":
            if not where:
                return True
            where.pop()
        elif step not in {"", "."}:
            where.append(step)
        target = links.get("/".join(where)) if step not in {"", ".", ".."} else None
        if target is not None:
            passed += 1
            if target.startswith("/") or passed > MOST_LINKS:
                return True
            where.pop()
            steps += target.split("/")[::-1]
    return False


# Unpacking.

OBJECT = re.compile(r"\.(?:a|cubin|fatbin|pyc|so(?:\.[0-9.]+)?)$")
LARGEST = 64 << 30  # bytes of all files of an archive
FREE = 1 << 30  # bytes that any archive may have
RATIO = 100  # unpacked bytes for each packed one; sources have 3 to 15, zeros 1000
MOST_MEMBERS = 500_000  # the largest source of a recipe has 20,000
DEEPEST = 64  # components of a path: sources have fewer than 20
LONGEST_HEADER = 1 << 20  # bytes of a member's name or of its PAX records
DAMAGED = (
    *(EOFError, LookupError, OverflowError, RuntimeError, ValueError),
    *(lzma.LZMAError, struct.error, zipfile.BadZipFile, zlib.error, zstd.ZstdError),
)
"""Exceptions for damaged archives; a hard link to nothing is a LookupError, an encrypted member a
RuntimeError."""
OF_THIS_MACHINE = {errno.EACCES, errno.EIO, errno.EMFILE, errno.ENFILE, errno.EROFS}
"""Errors of the file system that no archive causes."""


def unpack(archive: Path, target: Path, *, texts_only: bool = False) -> None:
    """Unpack a tar (of any compression) or a zip, such as a wheel, into the new ``target``.

    ``texts_only`` omits the shared objects and static libraries of a zip.  Raises ``FetchError``
    where the file is neither, is damaged or too large, or a member would leave the directory.
    """
    budget = _Budget(archive.stat().st_size)
    with _filling(target, archive.name):
        if zipfile.is_zipfile(archive):
            with zipfile.ZipFile(archive) as found:
                members = _texts(found) if texts_only else found.infolist()
                _write(found, members, target, budget)
        else:
            with _opened_tar(name=archive) as tar:
                _extract(tar, target, budget)


def unpack_stream(tar: IO[bytes], target: Path, packed: int | None = None) -> None:
    """Unpack a tar stream into the new ``target``.  Raises ``FetchError`` like ``unpack``.

    ``packed`` are the bytes of the file that the stream is decompressed from; None: it was not
    compressed.
    """
    with _filling(target, "the stream"), _opened_tar(fileobj=tar, mode="r|") as found:
        _extract(found, target, _Budget(LARGEST if packed is None else packed))


def extract_texts(archive: zipfile.ZipFile, name: str, size: int, target: Path) -> None:
    """Like ``unpack`` with ``texts_only``, of an open zip of ``size`` bytes."""
    with _filling(target, name):
        _write(archive, _texts(archive), target, _Budget(size))


class _Budget:
    """Counts the members and the bytes that an archive of ``size`` bytes may still unpack."""

    def __init__(self, size: int) -> None:
        self._limit = self._left = min(max(FREE, size * RATIO), LARGEST)
        self._members = MOST_MEMBERS

    def take(self, size: int) -> None:
        """Count a member.  Raises ``ValueError`` where it is too many or too large."""
        self._members -= 1
        self._left -= size
        if self._members < 0:
            raise ValueError(f"it has more than {MOST_MEMBERS} members")
        if size < 0 or self._left < 0:
            raise ValueError(f"it has more than {sizes.shown(self._limit)} when it is unpacked")


@contextmanager
def _filling(target: Path, name: str) -> Iterator[None]:
    """Create ``target``; where that or its filling fails, remove it and say why."""
    target.mkdir(parents=True)
    try:
        yield
    except BaseException as error:
        shutil.rmtree(target, ignore_errors=True)
        here = isinstance(error, OSError) and error.errno in OF_THIS_MACHINE
        damaged = isinstance(error, (*DAMAGED, OSError, _tarfile().TarError))
        if here or is_disk_full(error) or not damaged:
            raise
        raise FetchError(
            f"{name} cannot be unpacked",
            _why(error, target),
            "check where it is from; where that is right, it is damaged: fetch it again",
        ) from error


def _why(error: BaseException, target: Path) -> str:
    """The text of an error; files are named as in the archive."""
    if isinstance(error, OSError) and error.errno:
        path = str(error.filename or "").removeprefix(f"{target}/")
        return f"{error.strerror}: {escaped(path)}" if path else str(error.strerror)
    text = str(error.args[0]) if error.args else type(error).__name__
    return text.replace(f"{target}/", "").replace(str(target), ".")[:1000]


def _opened_tar(**named: Any) -> Any:
    """A tar whose headers are bounded; errors that it would only note are raised."""
    tarfile = _tarfile()
    longest = {tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK}
    longest |= {tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.SOLARIS_XHDTYPE}

    class ArchiveMember(tarfile.TarInfo):  # type: ignore[misc, name-defined]
        def _proc_member(self, tar: Any) -> Any:
            if self.type in longest and not 0 <= self.size <= LONGEST_HEADER:
                raise tarfile.ReadError("it has a member with too long a name")
            if self.type == tarfile.GNUTYPE_SPARSE:
                self._proc_gnusparse_10()
            return super()._proc_member(tar)

        def _proc_gnusparse_10(self, *_: Any) -> None:
            raise tarfile.ReadError(f"its member {escaped(self.name)} is a sparse file")

    return tarfile.open(tarinfo=ArchiveMember, errorlevel=2, **named)


def _extract(tar: Any, target: Path, budget: _Budget) -> None:
    """Write all members.  The filter refuses devices and members outside of it (PEP 706)."""
    symlinks: set[str] = set()

    def checked(member: Any, path: str) -> Any:
        budget.take(member.size if member.isreg() else 0)
        _require_direct(member, symlinks)
        return _tarfile().data_filter(member, path)

    tar.extractall(target, filter=checked)
    # The filter checks each link when it is written: a later one may redirect it.
    for path, leads in leaving(below(target)).items():
        raise ValueError(f"its link {escaped(path)} points to {escaped(leads)}, outside of it")


def _require_direct(member: Any, symlinks: set[str]) -> None:
    """Raise ``ValueError`` where a member is written, or is linked to, by way of a symbolic link.

    ``symlinks`` are the symbolic links among the members so far; a new one is added.  The filter
    alone does not suffice: it resolves links with ``realpath``, which gives up at PATH_MAX
    (CVE-2025-4517), and ``tarfile`` writes a copy of a link without asking it (CVE-2025-4330).
    """
    shown = escaped(member.name)
    name, leads = PurePosixPath(member.name.lstrip("/")), PurePosixPath(member.linkname)
    longest = max(len(each.encode(errors="replace")) for each in (member.name, member.linkname))
    if longest > LONGEST_PATH or len(name.parts) > DEEPEST or len(leads.parts) > DEEPEST:
        limits = f"{LONGEST_PATH} bytes, or {DEEPEST} components"
        raise ValueError(f"its member {shown} has a path of more than {limits}")
    for path in (name, leads) if member.islnk() else (name,):
        if ".." in path.parts:
            raise ValueError(f"its member {shown} has a path with ..")
        if any(str(each) in symlinks for each in (path, *path.parents)):
            raise ValueError(f"its member {shown} is reached by way of a link of the archive")
    if not name.parts and not member.isdir():
        raise ValueError(f"its member {shown} is in the place of the directory")
    if member.issym():
        symlinks.add(str(name))


def _tarfile() -> Any:
    """``tarfile`` with extraction filters, which Python has since 3.11.4."""
    import tarfile

    if hasattr(tarfile, "data_filter"):
        return tarfile
    import backports.tarfile as newer

    return newer


def _texts(archive: zipfile.ZipFile) -> list[zipfile.ZipInfo]:
    """The members that are neither shared objects nor static libraries, in the file's order."""
    found = [member for member in archive.infolist() if not OBJECT.search(member.filename)]
    return sorted(found, key=lambda member: member.header_offset)


def _write(
    archive: zipfile.ZipFile, members: Iterable[zipfile.ZipInfo], target: Path, budget: _Budget
) -> None:
    for member in members:
        budget.take(member.file_size)
        path = PurePosixPath(member.filename)
        mode = member.external_attr >> 16  # of Unix, where the archive was made on one
        shown = escaped(member.filename)
        if path.is_absolute() or ".." in path.parts or "\\" in member.filename:
            raise ValueError(f"its member {shown} is outside of the directory")
        if not path.parts and not member.is_dir():
            raise ValueError(f"its member {shown} is in the place of the directory")
        if stat.S_ISLNK(mode):
            raise ValueError(f"its member {shown} is a link, which is not supported in a zip file")
        written = Path(archive.extract(member, target))
        if mode & 0o111 and written.is_file():
            written.chmod(0o755)


def subdirectory_of(folder: Path, subdirectory: str, archive: str) -> Path:
    """``subdirectory`` of an unpacked archive.  Raises ``FetchError`` where it does not exist."""
    found = folder / subdirectory
    if not found.is_dir() or not found.resolve().is_relative_to(folder.resolve()):
        names = sorted(path.name for path in folder.iterdir())[:12]
        raise FetchError(
            f"{archive} has no directory {subdirectory}", f"at its top: {', '.join(names)}"
        )
    return found
