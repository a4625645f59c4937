"""Unpack tar and zip files into a directory; nothing is written outside of it."""

from __future__ import annotations

import gzip
import lzma
import re
import stat
import zipfile
import zlib
from collections.abc import Iterable
from pathlib import Path, PurePosixPath
from typing import IO, Any

from builder.errors import FetchError
from builder.tools.git import links

OBJECT = re.compile(r"\.(?:a|cubin|fatbin|pyc|so(?:\.[0-9.]+)?)$")
BROKEN = (
    *(EOFError, NotImplementedError, gzip.BadGzipFile, lzma.LZMAError),
    *(zipfile.BadZipFile, zlib.error),
)
"""Errors of the decompressors for a truncated file, or one of another format."""


def unpack(archive: Path, target: Path, *, texts_only: bool = False) -> None:
    """Unpack a tar (of any compression) or a zip, such as a wheel, into the new ``target``.

    ``texts_only`` omits the shared objects and static libraries of a zip.  Raises ``FetchError``
    where the file is neither, or a member would leave the directory.
    """
    tarfile = _tarfile()
    try:
        if zipfile.is_zipfile(archive):
            with zipfile.ZipFile(archive) as found:
                members = text_members(found) if texts_only else found.infolist()
                extract(found, archive.name, members, target)
        else:
            with tarfile.open(archive) as tar:
                # "data" refuses absolute paths, "..", links that leave, and devices (PEP 706).
                tar.extractall(target, filter="data")
    except (tarfile.TarError, *BROKEN) as error:
        raise FetchError(f"{archive.name} cannot be unpacked", str(error)) from error
    # The filter checks each link when it is written: a later one may redirect it.
    for path, leads in links.leaving(links.below(target)).items():
        raise FetchError(
            f"{archive.name} cannot be unpacked",
            f"its link {path} points to {leads}, outside of it",
        )


def unpack_stream(tar: IO[bytes], target: Path) -> None:
    """Unpack a tar stream into the new ``target``.  Raises ``FetchError`` like ``unpack``."""
    tarfile = _tarfile()
    try:
        with tarfile.open(fileobj=tar, mode="r|") as found:
            found.extractall(target, filter="data")
    except tarfile.TarError as error:
        raise FetchError("the stream is not a complete tar file", str(error)) from error


def _tarfile() -> Any:
    """``tarfile`` with extraction filters, which Python has since 3.11.4."""
    import tarfile

    if hasattr(tarfile, "data_filter"):
        return tarfile
    import backports.tarfile as newer

    return newer


def text_members(archive: zipfile.ZipFile) -> list[zipfile.ZipInfo]:
    """The members that are neither shared objects nor static libraries, in the file's order."""
    found = [member for member in archive.infolist() if not OBJECT.search(member.filename)]
    return sorted(found, key=lambda member: member.header_offset)


def extract(
    archive: zipfile.ZipFile, name: str, members: Iterable[zipfile.ZipInfo], target: Path
) -> None:
    """Write members of a zip below ``target``; raises ``FetchError`` like ``unpack``."""
    for member in members:
        path = PurePosixPath(member.filename)
        mode = member.external_attr >> 16  # of Unix, where the archive was made on one
        if path.is_absolute() or ".." in path.parts or "\\" in member.filename:
            raise FetchError(f"{name} has the member {member.filename!r}, outside of the directory")
        if stat.S_ISLNK(mode):
            raise FetchError(
                f"{name} has the link {member.filename!r}, which is not supported in a zip file"
            )
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
