"""The contents of an image: its files as a container sees them, layers and configuration."""

from __future__ import annotations

import fnmatch
import hashlib
import posixpath
import re
import sys
import tempfile
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from threading import Event
from typing import Any, BinaryIO, NamedTuple, cast

from pydantic import TypeAdapter
from pydantic_core import PydanticSerializationError

from builder.core.errors import SpaceError, UntriedError
from builder.core.files import atomic_write, keep_newest
from builder.docker.containers import Blobs
from builder.image import layers as images
from builder.image.layers import Content, Kind, LayerEntry, Node, final, first_names, layer_entries
from simulator import MalformedElf, ledger
from simulator.elf import ElfFile, is_elf, read_symbols
from simulator.elf import read as read_elf
from simulator.ledger import FatBinary, Library
from simulator.selection import Capability


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
    modified: int = 0  # seconds since 1970
    target: str = ""
    digest: str = ""  # sha256 of a file's content; a hard link has its target's
    elf: ElfFile | None = None
    user: int = 0
    group: int = 0
    script: str = ""  # the first line of a script, from ``#!`` on, as far as the kernel reads it
    text: str | None = None  # content; kept only for files in ``ReadOptions``
    malformed: str = ""  # why an ELF file could not be read
    shares: str = ""  # the first of a file's several names, sorted, if it is another one
    symbols: frozenset[str] | None = None  # a library's own; only for ``ReadOptions``
    needs: tuple[str, ...] = ()  # symbols that other files must define, sorted; no weak ones
    defines: frozenset[int] = frozenset()
    """For an ELF file, ``name_hash`` of each symbol that other files can use: with the names, scans
    would have ten times the size."""
    secrets: tuple[str, ...] = ()  # kinds of secret that its text seems to contain
    fat_binaries: tuple[FatBinary, ...] = ()  # kept only for ``ReadOptions``
    ptx: tuple[str, str] | None = None  # version and target of a file with PTX: ("9.0", "sm_80")
    release: str = ""  # the CUDA that a tool or a header of its toolkit belongs to: "13.0"
    unread_code: str = ""  # why its device code could not be read


class Layer(NamedTuple):
    """One layer of an image, from the lowest on; sizes are bytes."""

    digest: str
    size: int  # as stored and downloaded
    unpacked: int  # the bytes of its files
    hidden: int  # bytes of its files that no container sees: later layers remove or replace them
    created_by: str  # the instruction that made it, from the image's history
    files: tuple[File, ...]  # also files that later layers hide; no whiteouts
    media_type: str = ""


@dataclass(frozen=True, slots=True)
class Contents:
    """The flattened file system of an image, with its layers and configuration."""

    files: Mapping[str, File]
    image: Mapping[str, Any]  # the OCI image configuration (image-spec: config.md)
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
        waiting = path.split("/")
        for _ in range(1000):
            if not waiting:
                return "/" + "/".join(done)
            part = waiting.pop(0)
            if part in ("", "."):
                continue
            if part == "..":
                done = done[:-1]
                continue
            file = self.files.get("/" + "/".join([*done, part]))
            if file is None:
                return None
            if file.kind == "link":
                waiting = file.target.split("/") + waiting
                done = [] if file.target.startswith("/") else done
            else:
                done.append(part)
        return None  # links in a circle


# The parts of an image's files that are kept while it is read.

LARGEST_TEXT = 16 << 20  # bytes of a file whose text is kept
TORCH_VERSION = "/torch/version.py"
TRITON_COMPILER = "/triton/backends/nvidia/compiler.py"
FLASHINFER_CONTEXT = "/flashinfer/compilation_context.py"
TOOLKIT_VERSION = "/version.json"
ALWAYS = (
    *("/etc/ld.so.conf", "/etc/ld.so.conf.d/*"),
    *(f"*{TORCH_VERSION}", f"*{TRITON_COMPILER}"),
    *(f"*{FLASHINFER_CONTEXT}", "*/flashinfer*/_build_meta.py"),
    *("*/bin/nvcc", "*/bin/ptxas*", f"*{TOOLKIT_VERSION}"),
)
"""Files whose text is kept of every image."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions:
    """Which texts, symbols and kernels are kept while reading."""

    texts: frozenset[str] = frozenset()  # paths of files whose text is kept; ``*`` is a wildcard
    symbols: frozenset[str] = frozenset()  # prefixes of libraries whose symbols are kept
    card: Capability | None = None  # its device code is unpacked; None: none is
    code_above: int = 0  # the code of so many lowest layers is not unpacked
    code_outside: str = ""  # the code of files below this directory is not unpacked

    def text(self, path: str) -> bool:
        """Whether the text of a file is kept."""
        return any(fnmatch.fnmatchcase(path, glob) for glob in (*ALWAYS, *self.texts))

    def symbol(self, path: str) -> bool:
        """Whether the symbols of a library are kept."""
        return any(posixpath.basename(path).startswith(name) for name in self.symbols)

    def lacks(self, file: File) -> bool:
        """Whether a text or symbols of a file are wanted that were not kept."""
        if file.kind != "file" or not file.digest or file.malformed:
            return False
        if file.elf is not None:
            return file.symbols is None and self.symbol(file.path)
        return file.text is None and file.size <= LARGEST_TEXT and self.text(file.path)


# Secrets in the layers and the configuration of an image, even if a later layer removes them.  A
# finding is reported by its kind and place; the secret itself is never shown.

TOKENS: Mapping[str, tuple[str, str]] = {
    "private key": (
        "PRIVATE KEY-----",
        r"-----BEGIN (?:[A-Z]+ )?PRIVATE KEY-----\s+[A-Za-z0-9+/=]{40}",
    ),
    "AWS key": ("AKIA", r"\bAKIA(?![A-Z0-9]*EXAMPLE)[A-Z0-9]{16}\b"),
    "temporary AWS key": ("ASIA", r"\bASIA(?![A-Z0-9]*EXAMPLE)[A-Z0-9]{16}\b"),
    "GitHub token": ("github_pat_", r"\bgithub_pat_[A-Za-z0-9]{22}_[A-Za-z0-9]{59}\b"),
    "classic GitHub token": ("ghp_", r"\bghp_[A-Za-z0-9]{36}\b"),
    "GitHub OAuth token": ("gho_", r"\bgho_[A-Za-z0-9]{36}\b"),
    "GitHub server token": ("ghs_", r"\bghs_[A-Za-z0-9]{36}\b"),
    "GitLab token": ("glpat-", r"\bglpat-[A-Za-z0-9_-]{20}"),
    "Docker Hub token": ("dckr_", r"\bdckr_(?:pat|oat)_[A-Za-z0-9_-]{27}"),
    "Hugging Face token": ("hf_", r"\bhf_[A-Za-z]{34}\b"),
    "NVIDIA API key": ("nvapi-", r"\bnvapi-[A-Za-z0-9_-]{60}"),
    "OpenAI key": ("T3BlbkFJ", r"\bsk-[A-Za-z0-9_-]{10,}T3BlbkFJ[A-Za-z0-9_-]{20}"),
    "PyPI token": ("pypi-AgEIcHlwaS5vcmc", r"\bpypi-AgEIcHlwaS5vcmc[A-Za-z0-9_-]{50}"),
    "npm token": ("npm_", r"\bnpm_[A-Za-z0-9]{36}\b"),
    "Slack token": ("xox", r"\bxox[abprs]-[0-9]{8,}-[0-9A-Za-z-]{10}"),
}
"""By kind: a text that every such token contains, which is searched first, and its format."""
FORMS = [
    (kind, literal.encode(), re.compile(form.encode())) for kind, (literal, form) in TOKENS.items()
]
PASSWORD_IN_URL = re.compile(rb"\b[a-z][a-z0-9+.-]*://[^\s/:@\"'<>{}$]+:[^\s/@\"'<>{}$]+@")
CREDENTIAL_FILES = re.compile(
    r"/(?:\.git-credentials|\.netrc|_netrc|\.pypirc|\.npmrc|\.docker/config\.json"
    r"|\.aws/credentials|\.config/gh/hosts\.yml|\.cache/huggingface/token|\.kube/config"
    r"|\.ssh/id_[a-z0-9]+|id_(?:rsa|dsa|ecdsa|ed25519))$"
)
SECRET_NAME = re.compile(r"(?:TOKEN|PASSWORD|PASSWD|SECRET|API_?KEY|CREDENTIALS?)$", re.IGNORECASE)
ARGUMENTS = re.compile(r"^(?:RUN )?\|(\d+) (.*)")
ARGUMENT = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)=(\"[^\"]*\"|\S*)")


def kinds(path: str, head: bytes) -> tuple[str, ...]:
    """Kinds of secret that a file seems to contain, by its name and the first MiB of its text."""
    found = ["credentials"] if CREDENTIAL_FILES.search(path) else []
    if b"\0" not in head[:8192]:
        found += _tokens(head)
        if path.startswith("/etc/") and PASSWORD_IN_URL.search(head):
            found.append("password in a URL")
    return tuple(dict.fromkeys(found))


def _tokens(text: bytes) -> list[str]:
    return [kind for kind, literal, form in FORMS if literal in text and form.search(text)]


def found_in(contents: Contents) -> Iterator[tuple[str, str]]:
    """Paths of every layer with a secret, each with a description."""
    for number, layer in enumerate(contents.layers, 1):
        for file in layer.files:
            for kind in file.secrets:
                shown = contents.files.get(file.path)
                gone = shown is None or shown.digest != file.digest
                where = f", of layer {number} only" if gone else ""
                yield file.path, f"{file.path} ({kind}{where})"


def found_in_configuration(image: Mapping[str, Any]) -> Iterator[str]:
    """Descriptions of secrets in environment, labels and history."""
    config = image.get("config") or {}
    pairs = [tuple(entry.partition("=")[::2]) for entry in config.get("Env") or []]
    for name, value in pairs:
        if value and SECRET_NAME.search(name):
            yield f"the environment sets {name}"
    texts = {f"the environment's {name}": value for name, value in pairs}
    texts |= {f"the label {name}": text for name, text in (config.get("Labels") or {}).items()}
    for number, step in enumerate(image.get("history") or [], 1):
        texts[f"step {number} of the history"] = text = str(step.get("created_by", ""))
        for name, value in arguments_of(text):
            if value and SECRET_NAME.search(name):
                yield f"step {number} of the history was given {name}"
    for place, text in texts.items():
        found = _tokens(text.encode())
        found += ["password in a URL"] if PASSWORD_IN_URL.search(text.encode()) else []
        for kind in found:
            yield f"{place} ({kind})"


def arguments_of(created_by: str) -> list[tuple[str, str]]:
    """The build arguments of an instruction of the history, which BuildKit writes before a RUN:
    ``RUN |2 A=1 B= /bin/sh -c ...`` (dockerfile2llb/convert.go, ``runCommandString``)."""
    match = ARGUMENTS.match(created_by)
    if match is None:
        return []
    found = ARGUMENT.findall(match[2])[: int(match[1])]
    return [(name, value.strip('"')) for name, value in found]


# Scans of layers, kept in the cache: a layer is unpacked and taken apart once.
# A scan counts for the layer with the same digest, and only for the code that made the scan.  Texts
# and symbols that one recipe wants are left out, device code is not.

SMALLEST = 1 << 20  # bytes of a layer whose scan is kept: others are read as fast
MOST = 200  # scans that are kept: 1 MB is much for one
READERS = ("builder/image", "simulator")  # the packages whose code takes layers apart
PLAIN = ReadOptions()
DIGEST = 64  # hex digits of the sha256 that a file begins with


def scanned(folder: Path, digest: str, options: ReadOptions) -> list[LayerEntry[File]] | None:
    """The scan of a layer, or None; ``digest`` is its sha256 in hex."""
    file = _file(folder, digest, options)
    try:
        content = file.read_bytes()
        file.touch()  # the oldest are removed first
    except OSError:
        return None
    head, body = content[:DIGEST], content[DIGEST:]
    if hashlib.sha256(body).hexdigest().encode() != head:
        return None
    return adapter().validate_json(body)


def keep(
    folder: Path, digest: str, options: ReadOptions, entries: Sequence[LayerEntry[File]]
) -> None:
    """Keep a layer's scan without texts and symbols of few recipes; it is no error if it fails."""
    plain = [
        replace(entry, node=replace(entry.node, text=None, symbols=None))
        if entry.node.symbols is not None or not PLAIN.text(entry.path)
        else entry
        for entry in entries
    ]
    with suppress(OSError, SpaceError, PydanticSerializationError):
        body = adapter().dump_json(plain, exclude_defaults=True)
        with atomic_write(_file(folder, digest, options)) as temporary:
            temporary.write_bytes(hashlib.sha256(body).hexdigest().encode() + body)
        keep_newest(folder, MOST)


@cache
def adapter() -> TypeAdapter[list[LayerEntry[File]]]:
    """Reads and writes scans as JSON."""
    return TypeAdapter(list[LayerEntry[File]])


def _file(folder: Path, digest: str, options: ReadOptions) -> Path:
    code = f"{options.card}{options.code_outside}" if options.card else ""
    made = hashlib.sha256(f"{_reader()} {code}".encode()).hexdigest()
    return folder / f"{digest}-{made[:16]}.json"


@cache
def _reader() -> str:
    """Identifies the code that takes layers apart: its own, and Python's."""
    root = Path(__file__).parents[2]
    own = hashlib.sha256()
    for package in READERS:
        for file in sorted((root / package).glob("*.py")):
            own.update(file.read_bytes())
    return f"{own.hexdigest()} {sys.version}"


BLOCK = 1 << 20
IN_MEMORY = 16 << 20  # bytes of a library that are kept out of the disk while it is read
LONGEST_LINE = 256  # bytes of a script's first line: execve(2), "Interpreter scripts"
SCANS = "scans"  # in the cache directory
TOOLS = {"nvcc", "ptxas", "ptxas-blackwell", "cicc", "cudafe++", "fatbinary", "nvlink"}
RELEASE = re.compile(rb"release (\d+\.\d+), V\d")  # as --version prints it
HEADER = "/include/cuda_runtime_api.h"
HEADER_RELEASE = re.compile(rb"^#define CUDART_VERSION +(\d+)(\d\d)\d$", re.MULTILINE)


def read_contents(
    blobs: Blobs, work: Path, options: ReadOptions | None = None, cache: Path | None = None
) -> Contents:
    """Read an image from its blobs, as ``manifest_of``; ``work`` takes large libraries for
    a while.  With the directory ``cache``, a layer that was read before is only hashed."""
    with images.damage_reported():
        _, manifest = images.manifest_of(blobs)
        image = images.image_document(blobs.file(manifest["config"]["digest"]))
        digests = [part["digest"] for part in manifest["layers"]]
        with images.two_at_a_time() as (pool, stop):
            kept = cache / SCANS if cache else None
            scanner = _Scanner(work, options or ReadOptions(), kept, stop)
            files = map(blobs.file, digests)
            found = list(pool.map(scanner.layer, files, range(len(digests))))
        return _composed(manifest, image, found)


class _Scanner(NamedTuple):
    work: Path
    options: ReadOptions
    scans: Path | None  # where scans are kept
    stop: Event  # ends the reading

    def layer(self, blob: Path, number: int) -> list[LayerEntry[File]]:
        """The entries of a layer, in its order; the lowest has the number 0."""
        options = self.options
        if options.card is not None and number < options.code_above:
            return self._replace(options=replace(options, card=None)).layer(blob, number)
        if self.scans is None or blob.stat().st_size < SMALLEST:
            return list(layer_entries(blob, self.file, self.stop))
        kept = scanned(self.scans, blob.name, options)
        if kept is not None and not any(options.lacks(each.node) for each in kept):
            with blob.open("rb") as file:
                images.require_digest(blob, hashlib.file_digest(file, "sha256"))
            return kept
        found = list(layer_entries(blob, self.file, self.stop))
        if kept is None:
            keep(self.scans, blob.name, options, found)
        return found

    def file(self, path: str, node: Node, content: Content | None) -> File:
        time, users = int(node.time), (node.user, node.group)
        file = File(path, node.kind, node.size, node.mode, time, node.target, "", None, *users)
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
            secrets=kinds(path, head),
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
                symbols = read_symbols(library)
                file = replace(
                    file,
                    elf=read_elf(library),
                    symbols=symbols.defined if self.options.symbol(file.path) else None,
                    needs=tuple(sorted(symbols.undefined)),
                    defines=frozenset(map(name_hash, symbols.defined)),
                )
            except MalformedElf as error:
                return replace(file, malformed=str(error))
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
    first = first_names({path: (each.layer, each.path) for path, each in placed.items()})
    files = {}
    for path, each in placed.items():
        shares = first.get(path, path)
        files[path] = replace(each.node, path=path, shares=shares if shares != path else "")
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
