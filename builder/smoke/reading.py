"""Reads the contents of an image from its blobs, without starting a container."""

from __future__ import annotations

import hashlib
import posixpath
import tarfile
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Event
from typing import IO, Any, BinaryIO, cast

from builder.kernels import ledger
from builder.smoke import scans, secrets
from builder.smoke.contents import Contents, Entry, File, Layer
from builder.smoke.wanted import LARGEST_TEXT, Wanted
from builder.tools import elf, layers
from builder.tools.docker.blobs import Blobs
from builder.tools.layers import BLOCK, created_by

IN_MEMORY = 16 << 20  # bytes of a library that are kept out of the disk while it is read
SCANS = "scans"  # in the cache directory


def read(
    blobs: Blobs, work: Path, wanted: Wanted | None = None, cache: Path | None = None
) -> Contents:
    """Read an image from its blobs; ``work`` takes large libraries for a while.

    From an index, the image for the platform of ``blobs`` is read, else the first one that is
    there.  With the directory ``cache``, a layer that was read before is only hashed.  Raises
    ``UntriedError`` if a blob is missing or damaged.
    """
    with layers.damage_reported():
        _, manifest = layers.manifest_of(blobs)
        image = layers.document(blobs.file(manifest["config"]["digest"]))
        digests = [part["digest"] for part in manifest["layers"]]
        with layers.two_at_a_time() as (pool, stop):
            kept = cache / SCANS if cache else None
            scanner = _Scanner(work, wanted or Wanted(), kept, stop)
            files = map(blobs.file, digests)
            entries = list(pool.map(scanner.layer, files, range(len(digests))))
        return _composed(manifest, image, entries)


@dataclass(frozen=True, slots=True)
class _Scanner:
    work: Path
    wanted: Wanted
    scans: Path | None
    """Where scans are kept."""
    stop: Event
    """Ends the reading."""

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
                layers.require_digest(blob, hashlib.file_digest(file, "sha256"))
            return kept
        found = self.unpacked(blob)
        if kept is None:
            scans.keep(self.scans, blob.name, code, found)
        return found

    def unpacked(self, blob: Path) -> list[Entry]:
        """The entries of a layer, read from its bytes."""
        with layers.opened(blob, self.stop) as layer:
            return [self.entry(layer, member) for member in layer]

    def entry(self, layer: tarfile.TarFile, member: tarfile.TarInfo) -> Entry:
        path, hides = layers.place(member)
        if hides:
            return Entry(path, opaque=hides == "below")
        return Entry(path, self.file(layer, member, path))

    def file(self, layer: tarfile.TarFile, member: tarfile.TarInfo, path: str) -> File:
        modified = int(member.mtime)
        if member.isdir():
            return File(path, "directory", mode=member.mode, modified=modified)
        if member.issym():
            return File(path, "link", target=member.linkname, modified=modified)
        if member.islnk():
            target = posixpath.normpath("/" + member.linkname)
            return File(path, "file", shares=target, modified=modified)
        stream = layer.extractfile(member) if member.isreg() else None
        if stream is None:
            return File(path, "other", mode=member.mode, modified=modified)
        return self.regular(stream, member, path)

    def regular(self, stream: IO[bytes], member: tarfile.TarInfo, path: str) -> File:
        modified = int(member.mtime)
        file = File(path, "file", size=member.size, mode=member.mode, modified=modified)
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
    made_by = created_by(image, len(manifest["layers"]))
    layers = tuple(
        _layer(part, scans[number], hidden[number], made_by[number])
        for number, part in enumerate(manifest["layers"])
    )
    size = sum(part["size"] for part in [manifest["config"], *manifest["layers"]])
    return Contents(files, image, layers, size)


def _layer(part: Mapping[str, Any], scan: list[Entry], hidden: int, created_by: str) -> Layer:
    files = tuple(entry.file for entry in scan if entry.file is not None)
    unpacked = sum(file.size for file in files)
    return Layer(
        part["digest"], part["size"], unpacked, hidden, created_by, files, part.get("mediaType", "")
    )


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
