"""The contents of an image: its files as a container sees them, layers and configuration."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from builder.core.errors import UntriedError
from builder.image.entries import Kind
from simulator.ledger import FatBinary, Library
from simulator.library import ElfFile


def name_hash(name: str) -> int:
    """The number by which ``File.defines`` knows a symbol."""
    return zlib.crc32(name.encode())


@dataclass(frozen=True, slots=True)
class File:
    """One path of an image.  Paths begin with ``/``; ``target`` is a link's, as written."""

    path: str
    kind: Kind
    size: int = 0
    mode: int = 0
    modified: int = 0
    """Seconds since 1970."""
    target: str = ""
    digest: str = ""
    """sha256 of a file's content; a hard link has its target's."""
    elf: ElfFile | None = None
    user: int = 0
    group: int = 0
    script: str = ""
    """The first line of a script, from ``#!`` on, as far as the kernel reads it."""
    text: str | None = None
    """Content; kept only for files in ``ReadOptions``."""
    malformed: str = ""
    """Why an ELF file could not be read."""
    shares: str = ""
    """For a file with several names: the first of them, sorted, if it is another one."""
    symbols: frozenset[str] | None = None
    """Symbols that a library defines; kept only for libraries in ``ReadOptions``."""
    needs: tuple[str, ...] = ()
    """For an ELF file, the symbols that other files must define, sorted; without weak ones."""
    defines: frozenset[int] = frozenset()
    """For an ELF file, ``name_hash`` of each symbol that other files can use: with the names, scans
    would have ten times the size."""
    secrets: tuple[str, ...] = ()
    """Kinds of secret that its text seems to contain."""
    fat_binaries: tuple[FatBinary, ...] = ()
    """Its device code; kept only for files in ``ReadOptions``."""
    ptx: tuple[str, str] | None = None
    """Version and target of a file with PTX: ("9.0", "sm_80")."""
    release: str = ""
    """The CUDA that a tool or a header of its toolkit belongs to: "13.0"."""
    unread_code: str = ""
    """Why its device code could not be read."""


@dataclass(frozen=True, slots=True)
class Layer:
    """One layer of an image, from the lowest on."""

    digest: str
    size: int
    """Bytes as stored and downloaded."""
    unpacked: int
    """Bytes of its files."""
    hidden: int
    """Bytes of its files that no container sees: later layers remove or replace them."""
    created_by: str
    """The instruction that made it, from the image's history."""
    files: tuple[File, ...]
    """Its own files without whiteouts, including those that later layers hide."""
    media_type: str = ""
    """``application/vnd.oci.image.layer.v1.tar+gzip`` (image-spec: media-types.md)."""


@dataclass(frozen=True, slots=True)
class Contents:
    """The flattened file system of an image, with its layers and configuration."""

    files: Mapping[str, File]
    image: Mapping[str, Any]
    """The OCI image configuration (image-spec: config.md)."""
    layers: tuple[Layer, ...]
    download_size: int

    @property
    def config(self) -> Mapping[str, Any]:
        """The defaults of its containers: Env, Entrypoint, User, ..."""
        found: Mapping[str, Any] = self.image.get("config") or {}
        return found

    @property
    def platform(self) -> str:
        """``linux/amd64``."""
        return f"{self.image.get('os', '')}/{self.image.get('architecture', '')}"

    @property
    def environment(self) -> dict[str, str]:
        """The environment variables of its containers."""
        pairs = (entry.partition("=") for entry in self.config.get("Env") or [])
        return {name: value for name, _, value in pairs}

    @property
    def unpacked_size(self) -> int:
        """Bytes of all files, each content once."""
        return sum(file.size for file in self.files.values() if not file.shares)

    def elves(self) -> Iterator[tuple[File, ElfFile]]:
        """Every ELF file that could be read."""
        for file in self.files.values():
            if file.elf is not None:
                yield file, file.elf

    def libraries(self) -> Iterator[Library]:
        """Every file with device code that was read, each content once.

        Raises ``UntriedError`` where one could not be read.
        """
        for file in self.files.values():
            if file.unread_code:
                raise UntriedError(
                    f"the GPU code of {file.path} cannot be read",
                    file.unread_code,
                    "the file is damaged, or has a format of a newer CUDA; `cuobjdump --list-elf` "
                    "of that CUDA tells which",
                )
            if file.fat_binaries and not file.shares:
                yield Library(file.path, file.fat_binaries)

    def resolve(self, path: str) -> str | None:
        """``path`` with all links followed, or None if it does not exist."""
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
