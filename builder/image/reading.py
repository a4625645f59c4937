"""Reads the contents of an image from its blobs, without starting a container."""

from __future__ import annotations

import hashlib
import posixpath
import re
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Event
from typing import Any, BinaryIO, cast

from builder.docker.blobs import Blobs
from builder.image import image as images
from builder.image import scans, secrets
from builder.image.contents import Contents, File, Layer, name_hash
from builder.image.entries import Content, LayerEntry, Node, entries
from builder.image.layers import final, first_names
from builder.image.options import LARGEST_TEXT, ReadOptions
from simulator import ledger
from simulator.elf import MalformedElf, is_elf
from simulator.library import read as read_elf
from simulator.library import read_symbols

BLOCK = 1 << 20
IN_MEMORY = 16 << 20  # bytes of a library that are kept out of the disk while it is read
LONGEST_LINE = 256  # bytes of a script's first line: execve(2), "Interpreter scripts"
SCANS = "scans"  # in the cache directory
TOOLS = {"nvcc", "ptxas", "ptxas-blackwell", "cicc", "cudafe++", "fatbinary", "nvlink"}
RELEASE = re.compile(rb"release (\d+\.\d+), V\d")  # as --version prints it
HEADER = "/include/cuda_runtime_api.h"
HEADER_RELEASE = re.compile(rb"^#define CUDART_VERSION +(\d+)(\d\d)\d$", re.MULTILINE)


def read(
    blobs: Blobs, work: Path, options: ReadOptions | None = None, cache: Path | None = None
) -> Contents:
    """Read an image from its blobs; ``work`` takes large libraries for a while.

    From an index, the image for the platform of ``blobs`` is read, else the first one that is
    there.  With the directory ``cache``, a layer that was read before is only hashed.  Raises
    ``UntriedError`` if a blob is missing or damaged.
    """
    with images.damage_reported():
        _, manifest = images.manifest_of(blobs)
        image = images.document(blobs.file(manifest["config"]["digest"]))
        digests = [part["digest"] for part in manifest["layers"]]
        with images.two_at_a_time() as (pool, stop):
            kept = cache / SCANS if cache else None
            scanner = _Scanner(work, options or ReadOptions(), kept, stop)
            files = map(blobs.file, digests)
            found = list(pool.map(scanner.layer, files, range(len(digests))))
        return _composed(manifest, image, found)


@dataclass(frozen=True, slots=True)
class _Scanner:
    work: Path
    options: ReadOptions
    scans: Path | None
    """Where scans are kept."""
    stop: Event
    """Ends the reading."""

    def layer(self, blob: Path, number: int) -> list[LayerEntry[File]]:
        """The entries of a layer, in its order; the lowest has the number 0."""
        options = self.options
        if options.card is not None and number < options.code_above:
            return replace(self, options=replace(options, card=None)).layer(blob, number)
        if self.scans is None or blob.stat().st_size < scans.SMALLEST:
            return self.unpacked(blob)
        kept = scans.find(self.scans, blob.name, options)
        if kept is not None and not any(options.lacks(each.node) for each in kept):
            with blob.open("rb") as file:
                images.require_digest(blob, hashlib.file_digest(file, "sha256"))
            return kept
        found = self.unpacked(blob)
        if kept is None:
            scans.keep(self.scans, blob.name, options, found)
        return found

    def unpacked(self, blob: Path) -> list[LayerEntry[File]]:
        """The entries of a layer, read from its bytes."""
        return list(entries(blob, self.file, self.stop))

    def file(self, path: str, node: Node, content: Content | None) -> File:
        file = File(
            path,
            node.kind,
            node.size,
            node.mode,
            int(node.time),
            node.target,
            user=node.user,
            group=node.group,
        )
        if content is None:
            return file
        head = content.read(BLOCK)
        if is_elf(head):
            return self.library(content, head, file)
        text = None
        if self.options.text(path) and file.size <= LARGEST_TEXT:
            text = b"".join((head, *content.blocks())).decode(errors="replace")
        stated = HEADER_RELEASE.search(head) if path.endswith(HEADER) else None
        line = head[:LONGEST_LINE].partition(b"\n")[0].decode(errors="replace")
        return replace(
            file,
            digest=content.digest(),
            script=line if head.startswith(b"#!") else "",
            text=text,
            secrets=secrets.kinds(path, head),
            ptx=ledger.ptx_head(head) if path.endswith(".ptx") else None,
            release=f"{int(stated[1])}.{int(stated[2])}" if stated else "",
        )

    def library(self, content: Content, head: bytes, file: File) -> File:
        with tempfile.SpooledTemporaryFile(IN_MEMORY, dir=str(self.work)) as copy:
            copy.write(head)
            for block in content.blocks():
                copy.write(block)
            file = replace(file, digest=content.digest())
            library = cast(BinaryIO, copy)
            if posixpath.basename(file.path) in TOOLS:
                copy.seek(0)
                stated = RELEASE.search(copy.read())
                file = replace(file, release=stated[1].decode() if stated else "")
            try:
                parsed = read_elf(library)
                kept = self.options.symbol(file.path)
                symbols = read_symbols(library)
                file = replace(
                    file,
                    elf=parsed,
                    symbols=symbols.defined if kept else None,
                    needs=tuple(sorted(symbols.undefined)),
                    defines=frozenset(map(name_hash, symbols.defined)),
                )
            except MalformedElf as error:
                return replace(file, malformed=str(error))
            return self.with_kernels(library, file)

    def with_kernels(self, library: BinaryIO, file: File) -> File:
        card, outside = self.options.card, self.options.code_outside
        if card is None or not (file.elf and file.elf.code):
            return file
        if outside and file.path.startswith(outside + "/"):
            return file
        try:
            return replace(file, fat_binaries=tuple(ledger.read(library, card)))
        except MalformedElf as error:
            return replace(file, unread_code=str(error))


def _composed(
    manifest: Mapping[str, Any], image: Mapping[str, Any], scans: Sequence[list[LayerEntry[File]]]
) -> Contents:
    placed = final(scans)
    places = {path: (each.layer, each.path) for path, each in placed.items()}
    first = first_names(places)
    files = {
        path: replace(
            each.node, path=path, shares="" if first.get(path, path) == path else first[path]
        )
        for path, each in placed.items()
    }
    seen: Counter[int] = Counter()
    for path, file in files.items():
        if not file.shares:
            seen[placed[path].layer] += file.size
    made_by = images.created_by(image, len(manifest["layers"]))
    layers = []
    for number, (part, scan) in enumerate(zip(manifest["layers"], scans, strict=True)):
        own = tuple(entry.node for entry in scan if not entry.hides)
        unpacked = sum(file.size for file in own)
        layers.append(
            Layer(
                part["digest"],
                part["size"],
                unpacked,
                unpacked - seen[number],
                made_by[number],
                own,
                part.get("mediaType", ""),
            )
        )
    size = sum(part["size"] for part in [manifest["config"], *manifest["layers"]])
    return Contents(files, image, tuple(layers), size)
