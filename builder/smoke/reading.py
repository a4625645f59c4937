"""Reads the contents of an image from its blobs, without starting a container.

OCI image specification (https://github.com/opencontainers/image-spec): manifest.md, layer.md.
"""

from __future__ import annotations

import hashlib
import json
import posixpath
import tarfile
import tempfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any, BinaryIO, cast

from builder.errors import UntriedError
from builder.kernels import ledger
from builder.smoke import scans, secrets
from builder.smoke.contents import Contents, Entry, File, Layer
from builder.smoke.wanted import LARGEST_TEXT, Wanted
from builder.tools import elf
from builder.tools.docker.blobs import Blobs

BLOCK = 1 << 20
BUFFER = 1 << 16  # bytes: tarfile copies the rest of its buffer for every small file
IN_MEMORY = 16 << 20  # bytes of a library that are kept out of the disk while it is read
LARGEST_DOCUMENT = 16 << 20  # bytes of a manifest or configuration
WHITEOUT, OPAQUE = ".wh.", ".wh..wh..opq"
SCANS = "scans"  # in the cache directory
GZIP_MAGIC = b"\x1f\x8b"  # RFC 1952, 2.3.1
ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"  # RFC 8878, 3.1.1
PREFERRED = {"linux/amd64": 0, "": 1}
"""The platforms of an index, the first before the second and that before any other: an engine runs
an image that names its platform rather than one that names none."""
BROKEN = (
    *(OSError, EOFError, tarfile.TarError, zlib.error),
    *(AttributeError, KeyError, TypeError, ValueError),
)
"""Exceptions that a damaged image causes."""


def read(
    blobs: Blobs, work: Path, wanted: Wanted | None = None, cache: Path | None = None
) -> Contents:
    """Read an image from its blobs; ``work`` takes large libraries for a while.

    From an index, the image for linux/amd64 is read, else the first one that is there.  With the
    directory ``cache``, a layer that was read before is only hashed.  Raises ``UntriedError`` if a
    blob is missing or damaged.
    """
    from backports.zstd import ZstdError

    scanner = _Scanner(work, wanted or Wanted(), cache / SCANS if cache else None)
    try:
        manifest = _manifest(blobs)
        image = _document(blobs.file(manifest["config"]["digest"]))
        digests = [part["digest"] for part in manifest["layers"]]
        # Unpacking and hashing leave Python's lock: two layers at a time.
        with ThreadPoolExecutor(2) as pool:
            files = map(blobs.file, digests)
            entries = list(pool.map(scanner.layer, files, range(len(digests))))
        return _composed(manifest, image, entries)
    except (*BROKEN, ZstdError) as error:
        reason = f"{type(error).__name__}: {error}"
        raise UntriedError("the image cannot be read", reason) from error


def _document(file: Path) -> dict[str, Any]:
    """A manifest, an index or a configuration."""
    if file.stat().st_size > LARGEST_DOCUMENT:
        raise ValueError(f"{file.name} is larger than {LARGEST_DOCUMENT} bytes")
    content = file.read_bytes()
    _require_digest(file, hashlib.sha256(content))
    found = json.loads(content)
    return dict(found.items())


def _require_digest(file: Path, found: hashlib._Hash) -> None:
    """Raise ``ValueError`` if a blob does not match its digest."""
    if found.hexdigest() != file.name:
        raise ValueError(f"the blob {file.name} has the sha256 {found.hexdigest()}")


class _Hashed:
    """A file that is hashed as it is read."""

    def __init__(self, file: IO[bytes]) -> None:
        self.digest = hashlib.sha256()
        self._file = file

    def read(self, size: int = -1) -> bytes:
        block = self._file.read(size)
        self.digest.update(block)
        return block

    def readable(self) -> bool:
        return True


@dataclass(frozen=True, slots=True)
class _Scanner:
    work: Path
    wanted: Wanted
    scans: Path | None
    """Where scans are kept."""

    def layer(self, blob: Path, number: int) -> list[Entry]:
        """The entries of a layer, in its order; the lowest has the number 0."""
        code = self.wanted.code
        if code is not None and number < code.above:
            return replace(self, wanted=replace(self.wanted, code=None)).layer(blob, number)
        if self.scans is None or blob.stat().st_size < scans.SMALLEST:
            return self.unpacked(blob)
        kept = scans.find(self.scans, blob.name, code)
        if kept is not None and not any(e.file and self.wanted.lacks(e.file) for e in kept):
            with blob.open("rb") as file:
                _require_digest(blob, hashlib.file_digest(file, "sha256"))
            return kept
        found = self.unpacked(blob)
        if kept is None:
            scans.keep(self.scans, blob.name, code, found)
        return found

    def unpacked(self, blob: Path) -> list[Entry]:
        """The entries of a layer, read from its bytes."""
        from backports.zstd import ZstdFile

        with blob.open("rb") as file:
            head = file.read(4)
            file.seek(0)
            stream = _Hashed(file)
            if head == ZSTD_MAGIC:
                with ZstdFile(cast("IO[bytes]", stream)) as unpacked:
                    found = list(self.entries(cast("IO[bytes]", unpacked), "r|"))
            else:
                mode = "r|gz" if head[:2] == GZIP_MAGIC else "r|"
                found = list(self.entries(cast("IO[bytes]", stream), mode))
            while stream.read(BLOCK):
                pass  # the end of a tar is not the end of its blob
        _require_digest(blob, stream.digest)
        return found

    def entries(self, stream: IO[bytes], mode: Any) -> Iterator[Entry]:
        with tarfile.open(fileobj=stream, mode=mode, bufsize=BUFFER) as layer:
            for member in layer:
                path = posixpath.normpath("/" + member.name)
                folder, name = posixpath.split(path)
                if name == OPAQUE:
                    yield Entry(folder, opaque=True)
                elif name.startswith(WHITEOUT):
                    yield Entry(posixpath.join(folder, name.removeprefix(WHITEOUT)))
                else:
                    yield Entry(path, self.file(layer, member, path))

    def file(self, layer: tarfile.TarFile, member: tarfile.TarInfo, path: str) -> File:
        if member.isdir():
            return File(path, "directory", mode=member.mode)
        if member.issym():
            return File(path, "link", target=member.linkname)
        if member.islnk():
            return File(path, "file", shares=posixpath.normpath("/" + member.linkname))
        stream = layer.extractfile(member) if member.isreg() else None
        if stream is None:
            return File(path, "other", mode=member.mode)
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
            library = cast(BinaryIO, copy)
            try:
                kept = self.wanted.symbol(file.path)
                symbols = elf.read_symbols(library).defined if kept else None
                file = replace(file, elf=elf.read(library), symbols=symbols)
            except elf.MalformedElf as error:
                return replace(file, malformed=str(error))
            return self.with_kernels(library, file)

    def with_kernels(self, library: BinaryIO, file: File) -> File:
        code = self.wanted.code
        if code is None or not (file.elf and file.elf.code):
            return file
        if code.outside and file.path.startswith(code.outside + "/"):
            return file
        try:
            return replace(file, fat_binaries=tuple(ledger.read(library, code.card)))
        except elf.MalformedElf as error:
            return replace(file, unread_code=str(error))


def _composed(
    manifest: Mapping[str, Any], image: Mapping[str, Any], scans: Sequence[list[Entry]]
) -> Contents:
    files: dict[str, File] = {}
    owner: dict[str, int] = {}
    hidden = [0] * len(manifest["layers"])
    for number, scan in enumerate(scans):
        for entry in scan:
            _apply(entry, number, files, owner, hidden)
    made_by = _history(image, len(manifest["layers"]))
    layers = tuple(
        _layer(part, scans[number], hidden[number], made_by[number])
        for number, part in enumerate(manifest["layers"])
    )
    size = sum(part["size"] for part in [manifest["config"], *manifest["layers"]])
    return Contents(files, image, layers, size)


def _layer(part: Mapping[str, Any], scan: list[Entry], hidden: int, created_by: str) -> Layer:
    files = tuple(entry.file for entry in scan if entry.file is not None)
    unpacked = sum(file.size for file in files)
    return Layer(part["digest"], part["size"], unpacked, hidden, created_by, files)


def _apply(
    entry: Entry, number: int, files: dict[str, File], owner: dict[str, int], hidden: list[int]
) -> None:
    """Apply one entry of a layer to the files of the layers below it."""
    before = files.get(entry.path)
    gone = [entry.path] if before is not None and not entry.opaque else []
    was_folder = before is not None and before.kind == "directory"
    if entry.file is None or (was_folder and entry.file.kind != "directory"):
        start = entry.path.rstrip("/") + "/"
        gone += [path for path in files if path.startswith(start)]
    for path in gone:
        if owner[path] < number:  # a whiteout does not apply to its own layer
            hidden[owner[path]] += files.pop(path).size
    if entry.file is not None:
        files[entry.path] = _linked(entry.file, files)
        owner[entry.path] = number


def _linked(file: File, files: Mapping[str, File]) -> File:
    """A hard link with the properties of the file that it shares its content with."""
    if not file.shares:
        return file
    return replace(files[file.shares], path=file.path, shares=file.shares)


def _manifest(blobs: Blobs) -> dict[str, Any]:
    """The manifest of the image, through indexes."""
    found = blobs.index
    while "manifests" in found:
        there = [entry for entry in found["manifests"] if blobs.file(entry["digest"]).is_file()]
        images = [entry for entry in there if _platform(entry) != "unknown/unknown"]
        if not images:
            raise UntriedError("Docker has no image of the index")
        wanted = min(images, key=lambda entry: PREFERRED.get(_platform(entry), len(PREFERRED)))
        found = _document(blobs.file(wanted["digest"]))
    return dict(found)


def _platform(entry: Mapping[str, Any]) -> str:
    platform = entry.get("platform")
    return f"{platform['os']}/{platform['architecture']}" if platform else ""


def _history(image: Mapping[str, Any], count: int) -> list[str]:
    """The instruction of each layer; empty if the history does not match the layers."""
    made = [
        str(step.get("created_by", ""))
        for step in image.get("history") or []
        if not step.get("empty_layer")
    ]
    return made if len(made) == count else [""] * count
