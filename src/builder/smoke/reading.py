"""Reads an image out of ``docker image save`` as it comes: no container, no copy on the disk.

What comes is a tar of an OCI image layout (https://github.com/opencontainers/image-spec:
image-layout.md, layer.md).  Its blobs stand in the order of their digests, so every layer is
looked through before it is known where it belongs.
"""

from __future__ import annotations

import fnmatch
import hashlib
import json
import posixpath
import tarfile
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any, BinaryIO, cast

from builder.errors import UntriedError
from builder.smoke import secrets
from builder.smoke.contents import Contents, File, Layer
from builder.tools import elf

BLOCK = 1 << 20
BUFFER = 1 << 16  # bytes: tarfile copies the rest of its buffer for every small file
IN_MEMORY = 16 << 20  # bytes of a library that are kept out of the disk while it is read
LARGEST_DOCUMENT = 16 << 20  # bytes of a manifest or configuration
LARGEST_TEXT = 16 << 20  # bytes of a file whose text is asked for
WHITEOUT, OPAQUE = ".wh.", ".wh..wh..opq"
ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"  # RFC 8878, 3.1.1
LOADER = ("/etc/ld.so.conf", "/etc/ld.so.conf.d/*")
TARGET = "linux/amd64"


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is kept of files beside what is kept of all."""

    texts: frozenset[str] = frozenset()
    """Paths of files whose text is looked at; ``*`` stands for anything."""
    symbols: frozenset[str] = frozenset()
    """Names with which libraries begin whose symbols are looked at."""

    def text(self, path: str) -> bool:
        """Whether the text of a file is kept."""
        return any(fnmatch.fnmatchcase(path, glob) for glob in (*LOADER, *self.texts))

    def symbol(self, path: str) -> bool:
        """Whether the symbols of a library are kept."""
        return any(posixpath.basename(path).startswith(name) for name in self.symbols)


@dataclass(frozen=True, slots=True)
class _Entry:
    """What a layer says of a path: a file, or that what stood there is gone."""

    path: str
    file: File | None = None
    opaque: bool = False


def read(stream: IO[bytes], work: Path, wanted: Wanted | None = None) -> Contents:
    """Read an image from a tar of its OCI layout; ``work`` takes large libraries meanwhile.

    Of an image for several platforms that for linux/amd64 is taken, else the first that is there.
    Raises ``UntriedError`` when it is none, or parts of it are missing.
    """
    documents: dict[str, Any] = {}
    scans: dict[str, list[_Entry]] = {}
    try:
        with tarfile.open(fileobj=stream, mode="r|", bufsize=BUFFER) as tar:
            for member in tar:
                blob = tar.extractfile(member)
                if blob is not None:
                    _read_blob(member, blob, documents, scans, _Scanner(work, wanted or Wanted()))
        return _composed(documents, scans)
    except (tarfile.TarError, KeyError, ValueError, EOFError) as error:
        reason = f"{type(error).__name__}: {error}"
        raise UntriedError("the saved image cannot be read as an OCI layout", reason) from error


class _Ahead:
    """A stream whose beginning has been looked at."""

    def __init__(self, head: bytes, stream: IO[bytes]) -> None:
        self._head = head
        self._stream = stream

    def read(self, size: int = -1) -> bytes:
        if not self._head:
            return self._stream.read(size)
        if size < 0:
            size = len(self._head) + LARGEST_DOCUMENT
        given, self._head = self._head[:size], self._head[size:]
        return given + (self._stream.read(size - len(given)) if size > len(given) else b"")

    def readable(self) -> bool:
        return True


def _read_blob(
    member: tarfile.TarInfo,
    blob: IO[bytes],
    documents: dict[str, Any],
    scans: dict[str, list[_Entry]],
    scanner: _Scanner,
) -> None:
    name = "sha256:" + posixpath.basename(member.name)
    name = name if member.name.startswith("blobs/") else member.name
    head = blob.read(4)
    stream = _Ahead(head, blob)
    if head[:1] in {b"{", b"["}:
        if member.size <= LARGEST_DOCUMENT:
            documents[name] = json.loads(stream.read())
    elif member.name.startswith("blobs/"):
        scans[name] = list(scanner.layer(cast("IO[bytes]", stream), head))


@dataclass(frozen=True, slots=True)
class _Scanner:
    work: Path
    wanted: Wanted

    def layer(self, stream: IO[bytes], head: bytes) -> Iterator[_Entry]:
        if head == ZSTD_MAGIC:
            from backports.zstd import ZstdFile

            with ZstdFile(stream) as unpacked:
                yield from self.entries(cast("IO[bytes]", unpacked), "r|")
        else:
            yield from self.entries(stream, "r|gz" if head[:2] == b"\x1f\x8b" else "r|")

    def entries(self, stream: IO[bytes], mode: Any) -> Iterator[_Entry]:
        with tarfile.open(fileobj=stream, mode=mode, bufsize=BUFFER) as layer:
            for member in layer:
                path = posixpath.normpath("/" + member.name)
                folder, name = posixpath.split(path)
                if name == OPAQUE:
                    yield _Entry(folder, opaque=True)
                elif name.startswith(WHITEOUT):
                    yield _Entry(posixpath.join(folder, name.removeprefix(WHITEOUT)))
                else:
                    yield _Entry(path, self.file(layer, member, path))

    def file(self, layer: tarfile.TarFile, member: tarfile.TarInfo, path: str) -> File:
        if member.isdir():
            return File(path, "directory", mode=member.mode)
        if member.issym():
            return File(path, "link", target=member.linkname)
        if member.islnk():
            return File(path, "file", shares=posixpath.normpath("/" + member.linkname))
        if not member.isreg():
            return File(path, "other", mode=member.mode)
        stream = layer.extractfile(member)
        assert stream is not None
        return self.regular(stream, member, path)

    def regular(self, stream: IO[bytes], member: tarfile.TarInfo, path: str) -> File:
        file = File(path, "file", size=member.size, mode=member.mode)
        head = stream.read(BLOCK)
        if elf.is_elf(head):
            return self.library(stream, head, file)
        digest = hashlib.sha256(head)
        keep = self.wanted.text(path) and member.size <= LARGEST_TEXT
        kept = [head]
        while block := stream.read(BLOCK):
            digest.update(block)
            if keep:
                kept.append(block)
        return replace(
            file,
            digest=digest.hexdigest(),
            text=b"".join(kept).decode(errors="replace") if keep else None,
            secrets=secrets.kinds(path, head),
        )

    def library(self, stream: IO[bytes], head: bytes, file: File) -> File:
        digest = hashlib.sha256(head)
        with tempfile.SpooledTemporaryFile(IN_MEMORY, dir=str(self.work)) as copy:
            copy.write(head)
            while block := stream.read(BLOCK):
                digest.update(block)
                copy.write(block)
            file = replace(file, digest=digest.hexdigest())
            whole = cast(BinaryIO, copy)
            try:
                kept = self.wanted.symbol(file.path)
                symbols = elf.read_symbols(whole).defined if kept else None
                return replace(file, elf=elf.read(whole), symbols=symbols)
            except elf.MalformedElf as error:
                return replace(file, malformed=str(error))


def _composed(documents: Mapping[str, Any], scans: Mapping[str, list[_Entry]]) -> Contents:
    manifest = _manifest(documents)
    image = documents[manifest["config"]["digest"]]
    files: dict[str, File] = {}
    owner: dict[str, int] = {}
    hidden = [0] * len(manifest["layers"])
    for number, layer in enumerate(manifest["layers"]):
        for entry in scans[layer["digest"]]:
            _apply(entry, number, files, owner, hidden)
    made_by = _history(image, len(manifest["layers"]))
    layers = tuple(
        _layer(part, scans[part["digest"]], hidden[number], made_by[number])
        for number, part in enumerate(manifest["layers"])
    )
    size = sum(part["size"] for part in [manifest["config"], *manifest["layers"]])
    return Contents(files, image, layers, size)


def _layer(part: Mapping[str, Any], scan: list[_Entry], hidden: int, created_by: str) -> Layer:
    own = tuple(entry.file for entry in scan if entry.file is not None)
    unpacked = sum(file.size for file in own)
    return Layer(part["digest"], part["size"], unpacked, hidden, created_by, own)


def _apply(
    entry: _Entry, number: int, files: dict[str, File], owner: dict[str, int], hidden: list[int]
) -> None:
    """Lay one entry of a layer over what the layers below it left."""
    before = files.get(entry.path)
    gone = [entry.path] if before is not None and not entry.opaque else []
    was_folder = before is not None and before.kind == "directory"
    if entry.file is None or (was_folder and entry.file.kind != "directory"):
        start = entry.path.rstrip("/") + "/"
        gone += [path for path in files if path.startswith(start)]
    for path in gone:
        if owner[path] < number:  # a whiteout says nothing of its own layer
            hidden[owner[path]] += files.pop(path).size
    if entry.file is not None:
        files[entry.path] = _linked(entry.file, files)
        owner[entry.path] = number


def _linked(file: File, files: Mapping[str, File]) -> File:
    """A hard link has what the file has that it shares its content with."""
    if not file.shares:
        return file
    return replace(files[file.shares], path=file.path, shares=file.shares)


def _manifest(documents: Mapping[str, Any]) -> dict[str, Any]:
    found = documents["index.json"]
    while "manifests" in found:
        there = [entry for entry in found["manifests"] if entry["digest"] in documents]
        images = [entry for entry in there if _platform(entry) != "unknown/unknown"]
        wanted = [entry for entry in images if _platform(entry) in {TARGET, ""}] or images
        if not wanted:
            raise UntriedError("the engine has no platform of the image")
        found = documents[wanted[0]["digest"]]
    return cast(dict[str, Any], found)


def _platform(entry: Mapping[str, Any]) -> str:
    platform = entry.get("platform")
    return f"{platform['os']}/{platform['architecture']}" if platform else ""


def _history(image: Mapping[str, Any], count: int) -> list[str]:
    """The instruction behind each layer; empty where the history does not match the layers."""
    made = [
        str(step.get("created_by", ""))
        for step in image.get("history") or []
        if not step.get("empty_layer")
    ]
    return made if len(made) == count else [""] * count
