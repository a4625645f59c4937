"""Remove the device code of installed wheels that no card of the image runs; runs inside a stage.

``diet.py SITE 12.0 ... [-- LIBRARY ...]``: in the libraries of every package below the directory
SITE, NVIDIA's excepted, the fat binary of a module keeps only the entries that the driver takes on
a card with one of the compute capabilities: machine code first, PTX where it is the only way.  What
is kept moves to the front, zeros follow, and compress to nothing.  No module and no other byte of
the file moves: it keeps its size.  A module of which nothing runs stays as it is.  LIBRARY is a
path in a package of which nothing runs: each module gets the smallest entry of the library, so that
the driver finds what it found before, code for another card.  RECORD gets the new hashes.

The layout of fat binaries is described in builder/tools/fatbin.py, the driver's choice in
builder/kernels/selection.py; the tests compare this program with both.  Needs only the standard
library.
"""

from __future__ import annotations

import hashlib
import re
import struct
import sys
from base64 import urlsafe_b64encode
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from typing import IO, NamedTuple

NVIDIAS = re.compile(r"lib(?:cu|nv|np|nccl|caffe_nvrtc)[A-Za-z0-9_.-]*\.so")
LIBRARY = re.compile(r"\.so(?:\.[0-9.]+)?$")
SECTION = b".nv_fatbin"
REGION = struct.Struct("<IHHQ")
MAGIC = 0xBA55ED50
SIZE = 8  # where a region has the size of its entries
ENTRY = struct.Struct("<H2xIQI8xI8xQ")
PTX, ELF = 1, 2
FLAG_A, FLAG_F = 1 << 20, 1 << 21
BLOCK = 1 << 20


class Entry(NamedTuple):
    """An entry of a region: the code, and the bytes in the file, with its header."""

    kind: int
    arch: int
    suffix: str
    offset: int
    size: int


def main(site: Path, capabilities: Iterable[str], dead: Collection[str] = ()) -> None:
    """Remove what no card of these capabilities runs; print the sums.

    In the libraries ``dead``, nothing may run.
    """
    cards = [int(major) * 10 + int(minor) for major, minor in (c.split(".") for c in capabilities)]
    emptied = whole = 0
    missing = set(dead)
    for record in sorted(site.rglob("*.dist-info/RECORD")):
        if record.parent.name.lower().startswith("nvidia"):
            continue
        text = record.read_bytes().decode()
        for line in text.splitlines():
            path, _, rest = line.partition(",sha256=")
            file = record.parents[1] / path
            if not LIBRARY.search(path) or NVIDIAS.match(file.name) or file.is_symlink():
                continue
            lost, found = empty(file, cards, dead=path in dead)
            missing.discard(path)
            emptied, whole = emptied + lost, whole + found
            if lost:
                print(f"{lost / 1e6:.1f} of {found / 1e6:.1f} MB of device code removed: {path}")
                size = rest.rpartition(",")[2]
                text = text.replace(f"{path},sha256={rest}", f"{path},sha256={digest(file)},{size}")
        record.write_bytes(text.encode())
    if missing:
        raise SystemExit(f"no package has {', '.join(sorted(missing))}")
    print(f"{emptied / 1e6:.1f} of {whole / 1e6:.1f} MB of device code removed in all")


def digest(file: Path) -> str:
    """The sha256 of a file as RECORD has it (PyPA, "Recording installed projects")."""
    with file.open("rb") as stream:
        found = hashlib.file_digest(stream, "sha256").digest()
    return urlsafe_b64encode(found).decode().rstrip("=")


def empty(file: Path, cards: Iterable[int], *, dead: bool) -> tuple[int, int]:
    """Remove the entries of a library; bytes that were removed, and of all entries."""
    emptied = whole = 0
    with file.open("r+b") as stream:
        found = [each for part in sections(stream) for each in regions(stream, *part)]
        every = [entry for _, _, region in found for entry in region]
        smallest = read(stream, min(every, key=lambda each: each.size)) if dead and every else b""
        for at, header, region in found:
            size = sum(each.size for each in region)
            whole += size
            wanted = {taken(region, card) for card in cards} - {None}
            if wanted and dead:
                raise SystemExit(f"{file.name} has code that runs: it cannot be emptied")
            if wanted:
                kept = [
                    read(stream, each)
                    for each in region
                    if each.kind not in (PTX, ELF) or each[:3] in wanted
                ]
            else:
                kept = [smallest] if dead and region else []
            left = sum(map(len, kept))
            if kept and left < size:
                write(stream, at, header, kept, size - left)
                emptied += size - left
    return emptied, whole


def read(stream: IO[bytes], entry: Entry) -> bytes:
    """The bytes of an entry, with its header."""
    stream.seek(entry.offset)
    return stream.read(entry.size)


def write(stream: IO[bytes], at: int, header: int, kept: Iterable[bytes], zeros: int) -> None:
    """Write a region with fewer entries over itself."""
    stream.seek(at + header)
    place = at + header
    for entry in kept:
        place += stream.write(entry)
    for done in range(0, zeros, BLOCK):
        stream.write(bytes(min(BLOCK, zeros - done)))
    stream.seek(at + SIZE)
    stream.write(struct.pack("<Q", place - at - header))


def taken(region: list[Entry], card: int) -> tuple[int, int, str] | None:
    """The code that the driver takes for a card; None if the card can run none of it."""
    usable = [entry[:3] for entry in region if entry.kind in (PTX, ELF) and runs(entry, card)]
    return max(usable, key=lambda each: (each[0] == ELF, *each[1:]), default=None)


def runs(entry: Entry, card: int) -> bool:
    """Whether a card can take this code, as it is or compiled by the driver."""
    if entry.suffix == "z":
        return entry.arch == card
    same_major = entry.arch // 10 == card // 10
    return entry.arch <= card and (same_major or (entry.kind == PTX and not entry.suffix))


def sections(stream: IO[bytes]) -> Iterator[tuple[int, int]]:
    """Where the fat binaries are that a library registers."""
    stream.seek(0)
    head = stream.read(64)
    if head[:6] != b"\x7fELF\x02\x01":  # CUDA is for 64 bits, little-endian
        return
    table, each, count, names = struct.unpack_from("<40xQ10xHHH", head)
    rows = []
    for number in range(count):
        stream.seek(table + number * each)
        name, offset, size = struct.unpack("<I20xQQ", stream.read(40))
        rows.append((name, offset, size))
    if not rows:
        return
    stream.seek(rows[names][1])
    texts = stream.read(rows[names][2])
    for name, offset, size in rows:
        if texts[name : texts.index(b"\0", name)] == SECTION:
            yield offset, offset + size


def regions(stream: IO[bytes], at: int, end: int) -> Iterator[tuple[int, int, list[Entry]]]:
    """Each module: where it is, the size of its header, its entries."""
    while at + REGION.size <= end:
        stream.seek(at)
        magic, version, header, size = REGION.unpack(stream.read(REGION.size))
        if magic == 0:  # regions are aligned to 8 bytes
            at += 8
            continue
        if magic != MAGIC or version != 1 or at + header + size > end:
            raise SystemExit(f"{stream.name}: unknown fat binary at byte {at:#x}")
        yield at, header, list(entries(stream, at + header, at + header + size))
        at += header + size


def entries(stream: IO[bytes], at: int, end: int) -> Iterator[Entry]:
    """The entries of one module; a suffix sorts as the driver prefers it: none, f, a."""
    while at < end:
        stream.seek(at)
        kind, header, padded, _, arch, flags = ENTRY.unpack(stream.read(ENTRY.size))
        if header < ENTRY.size or padded == 0 or at + header + padded > end:
            raise SystemExit(f"{stream.name}: unknown entry at byte {at:#x}")
        suffix = "z" if flags & FLAG_A else "f" if flags & FLAG_F else ""
        yield Entry(kind, arch, suffix, at, header + padded)
        at += header + padded


if __name__ == "__main__":
    site, *arguments = sys.argv[1:]
    end = arguments.index("--") if "--" in arguments else len(arguments)
    main(Path(site), arguments[:end], arguments[end + 1 :])
