"""The files of an image, read from its layers without running it.

The image is read as an OCI image layout in a tar file, layer by layer
(https://github.com/opencontainers/image-spec: image-layout.md, layer.md).
"""

from __future__ import annotations

import hashlib
import json
import posixpath
import tarfile
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any, BinaryIO, Literal, cast

from builder.errors import UntriedError
from builder.tools import elf

BLOCK = 1 << 20
IN_MEMORY = 16 << 20  # bytes of a file that are kept out of the disk while it is read
WHITEOUT, OPAQUE = ".wh.", ".wh..wh..opq"


@dataclass(frozen=True, slots=True)
class File:
    """One path of an image.  Paths begin with ``/``; ``target`` is a link's, as written."""

    path: str
    kind: Literal["file", "link", "directory", "other"]
    size: int = 0
    mode: int = 0
    target: str = ""
    digest: str = ""
    """sha256 of a file's content; a hard link has that of what it links to."""
    elf: elf.ElfFile | None = None
    text: str = ""
    """Content, kept of the loader's configuration only."""
    malformed: str = ""
    """Why an ELF file could not be read."""
    shares: str = ""
    """For a hard link: the path that it shares its content with."""


@dataclass(frozen=True, slots=True)
class Contents:
    """The flattened file system of an image, and its configuration."""

    files: Mapping[str, File]
    config: Mapping[str, Any]
    """The ``config`` object of the OCI image configuration."""
    download_size: int

    @property
    def unpacked_size(self) -> int:
        """Bytes of all files, each content once."""
        return sum(file.size for file in self.files.values() if not file.shares)

    def elves(self) -> Iterator[tuple[File, elf.ElfFile]]:
        """Every ELF file that could be read."""
        for file in self.files.values():
            if file.elf is not None:
                yield file, file.elf

    def resolve(self, path: str) -> str | None:
        """The path of the file behind all links of ``path``, or None where it ends nowhere."""
        done: list[str] = []
        waiting = [part for part in path.split("/") if part]
        for _ in range(1000):
            if not waiting:
                return "/" + "/".join(done)
            part = waiting.pop(0)
            if part == "..":
                done = done[:-1]
                continue
            if part == ".":
                continue
            here = "/" + "/".join([*done, part])
            file = self.files.get(here)
            if file is None:
                return None
            if file.kind == "link":
                steps = [step for step in file.target.split("/") if step]
                waiting = steps + waiting
                if file.target.startswith("/"):
                    done = []
            else:
                done.append(part)
        return None  # links in a circle


def _keeps_text(path: str) -> bool:
    return path == "/etc/ld.so.conf" or path.startswith("/etc/ld.so.conf.d/")


def read(archive: Path, platform: str = "linux/amd64") -> Contents:
    """Read an image from a tar of its OCI layout.

    Raises ``UntriedError`` when it is none, or holds no image of ``platform``.
    """
    try:
        with tarfile.open(archive) as tar:
            manifest = _manifest(tar, platform)
            config = _json(tar, manifest["config"]["digest"])
            files: dict[str, File] = {}
            for layer in manifest["layers"]:
                _read_layer(_blob(tar, layer["digest"]), layer["mediaType"], files)
            size = sum(part["size"] for part in [manifest["config"], *manifest["layers"]])
            return Contents(files, config.get("config") or {}, size)
    except (tarfile.TarError, KeyError, ValueError) as error:
        reason = f"{type(error).__name__}: {error}"
        raise UntriedError("the saved image cannot be read as an OCI layout", reason) from error


def _blob(tar: tarfile.TarFile, digest: str) -> IO[bytes]:
    stream = tar.extractfile("blobs/" + digest.replace(":", "/"))
    if stream is None:
        raise KeyError(digest)
    return stream


def _json(tar: tarfile.TarFile, digest: str) -> dict[str, Any]:
    return cast(dict[str, Any], json.load(_blob(tar, digest)))


def _manifest(tar: tarfile.TarFile, platform: str) -> dict[str, Any]:
    index = tar.extractfile("index.json")
    if index is None:
        raise KeyError("index.json")
    found = json.load(index)
    while "manifests" in found:
        wanted = [entry for entry in found["manifests"] if _platform(entry) in {platform, ""}]
        if not wanted:
            there = ", ".join(sorted(_platform(entry) for entry in found["manifests"]))
            raise UntriedError(f"the image is not for {platform}", f"it is for {there}")
        found = _json(tar, wanted[0]["digest"])
    return cast(dict[str, Any], found)


def _platform(entry: Mapping[str, Any]) -> str:
    platform = entry.get("platform")
    return f"{platform['os']}/{platform['architecture']}" if platform else ""


def _read_layer(blob: IO[bytes], media_type: str, files: dict[str, File]) -> None:
    if media_type.endswith("zstd"):
        raise UntriedError("a layer is compressed with zstd", media_type, "build with gzip layers")
    with tarfile.open(fileobj=blob, mode="r|*") as layer:
        for member in layer:
            path = posixpath.normpath("/" + member.name)
            folder, name = posixpath.split(path)
            if name == OPAQUE:
                _remove_below(folder, files)
            elif name.startswith(WHITEOUT):
                hidden = posixpath.join(folder, name.removeprefix(WHITEOUT))
                files.pop(hidden, None)
                _remove_below(hidden, files)
            else:
                if path in files and files[path].kind == "directory" and not member.isdir():
                    _remove_below(path, files)
                files[path] = _file(layer, member, path, files)


def _remove_below(folder: str, files: dict[str, File]) -> None:
    for path in [path for path in files if path.startswith(folder.rstrip("/") + "/")]:
        del files[path]


def _file(
    layer: tarfile.TarFile, member: tarfile.TarInfo, path: str, files: Mapping[str, File]
) -> File:
    if member.isdir():
        return File(path, "directory", mode=member.mode)
    if member.issym():
        return File(path, "link", target=member.linkname)
    if member.islnk():
        original = posixpath.normpath("/" + member.linkname)
        return replace(files[original], path=path, shares=original)
    if not member.isreg():
        return File(path, "other", mode=member.mode)
    stream = layer.extractfile(member)
    assert stream is not None
    return _regular(stream, member, path)


def _regular(stream: IO[bytes], member: tarfile.TarInfo, path: str) -> File:
    file = File(path, "file", size=member.size, mode=member.mode)
    head = stream.read(BLOCK)
    digest = hashlib.sha256(head)
    if not elf.is_elf(head):
        while block := stream.read(BLOCK):
            digest.update(block)
        text = head.decode(errors="replace") if _keeps_text(path) else ""
        return replace(file, digest=digest.hexdigest(), text=text)
    with tempfile.SpooledTemporaryFile(IN_MEMORY) as copy:
        copy.write(head)
        while block := stream.read(BLOCK):
            digest.update(block)
            copy.write(block)
        copy.seek(0)
        try:
            parsed = elf.read(cast(BinaryIO, copy))
        except elf.MalformedElf as error:
            return replace(file, digest=digest.hexdigest(), malformed=str(error))
    return replace(file, digest=digest.hexdigest(), elf=parsed)
