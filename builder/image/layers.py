"""The files of an image: its layers laid over each other.

OCI image specification (https://github.com/opencontainers/image-spec), layer.md: "Applying
Changesets", "Whiteouts" and "Hardlinks".  Where the specification leaves a choice, the code does as
containerd does (archive/tar.go, onto overlayfs): links are followed in the folder of an entry where
they are of its own layer; where a layer below has a link or a file in the place of a folder, the
folder replaces it; a hard link is for a file of its own layer that comes before it.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import posixpath
import tarfile
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tarfile import TarError
from threading import Event
from typing import IO, Any, Generic, Literal, NamedTuple, Protocol, TypeVar

from builder.core.errors import UntriedError
from builder.core.files import is_disk_full
from builder.docker.containers import Blobs

# An image in a directory of blobs: its manifest and its configuration (manifest.md, config.md).

LARGEST_DOCUMENT = 16 << 20  # bytes of a manifest or configuration
BROKEN = (
    *(OSError, EOFError, OverflowError, RecursionError, TarError, zlib.error),
    *(AttributeError, KeyError, TypeError, ValueError),
)
"""Exceptions that a damaged image causes."""


class DamagedImageError(ValueError):
    """A blob is damaged, or is no image that an engine takes; the text says where and how."""


@contextmanager
def damage_reported() -> Iterator[None]:
    """Raise ``UntriedError`` where reading an image fails: a blob is missing or damaged."""
    from backports.zstd import ZstdError

    try:
        yield
    except (*BROKEN, ZstdError) as error:
        if is_disk_full(error):
            raise
        named = "" if isinstance(error, DamagedImageError) else f"{type(error).__name__}: "
        reason = f"{named}{error}"
        raise UntriedError("the image cannot be read", reason) from error


def manifest_of(blobs: Blobs) -> tuple[str, dict[str, Any]]:
    """The manifest of the image with its digest.  An index leads to the image for the platform of
    ``blobs`` if there is one, else to the first one.  Use it within ``damage_reported``."""
    # An engine runs an image that names its platform rather than one that names none.
    preferred = {blobs.platform: 0, "": 1}
    digest, found = "", blobs.index
    while "manifests" in found:
        images = _images(blobs, found)
        if not images:
            raise UntriedError("Docker has no image of the index")
        wanted = min(images, key=lambda entry: preferred.get(_platform(entry), len(preferred)))
        digest = wanted["digest"]
        found = image_document(blobs.file(digest))
    return digest, dict(found)


def platforms_of(blobs: Blobs) -> list[str]:
    """The platforms of all images that are there, in the order of the indexes: "linux/arm64"."""

    def platforms(found: Mapping[str, Any]) -> Iterator[str]:
        if "manifests" not in found:
            yield _platform({"platform": image_document(blobs.file(found["config"]["digest"]))})
        for entry in _images(blobs, found) if "manifests" in found else ():
            if named := _platform(entry):
                yield named
            else:
                yield from platforms(image_document(blobs.file(entry["digest"])))

    return list(dict.fromkeys(platforms(blobs.index)))


def _images(blobs: Blobs, index: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The entries of an index that are there and no attestations."""
    there = (entry for entry in index["manifests"] if blobs.file(entry["digest"]).is_file())
    return [entry for entry in there if _platform(entry) != "unknown/unknown"]


def image_document(file: Path) -> dict[str, Any]:
    """A manifest, an index or a configuration."""
    if file.stat().st_size > LARGEST_DOCUMENT:
        raise DamagedImageError(f"{file.name} is larger than {LARGEST_DOCUMENT} bytes")
    content = file.read_bytes()
    require_digest(file, hashlib.sha256(content))
    found = json.loads(content)
    return dict(found.items())


def require_digest(blob: Path, found: hashlib._Hash) -> None:
    """Raise ``DamagedImageError`` if a blob does not match its digest."""
    if found.hexdigest() != blob.name:
        raise DamagedImageError(f"the blob {blob.name} has the sha256 {found.hexdigest()}")


@contextmanager
def two_at_a_time() -> Iterator[tuple[ThreadPoolExecutor, Event]]:
    """Threads that read two layers at a time: unpacking and hashing leave Python's lock.

    Where the block fails or is interrupted, the event is set: see ``layer_entries``.
    """
    stop = Event()
    with ThreadPoolExecutor(2) as pool:
        try:
            yield pool, stop
        except BaseException:
            stop.set()
            raise


def _platform(entry: Mapping[str, Any]) -> str:
    platform = entry.get("platform")
    return f"{platform['os']}/{platform['architecture']}" if platform else ""


def created_by(image: Mapping[str, Any], count: int) -> list[str]:
    """The instruction of each of ``count`` layers; empty if the history does not match them."""
    steps = (step for step in image.get("history") or [] if not step.get("empty_layer"))
    made = [str(step.get("created_by", "")) for step in steps]
    return made if len(made) == count else [""] * count


# The entries of a layer: files with their properties, hard links, and whiteouts.  tarfile reads
# the tar; what it would pass over or guess, and what an engine refuses, is an error here.  So are
# sparse files, which layer.md advises against: few bytes can claim any size.

Kind = Literal["file", "link", "directory", "device", "fifo"]
Hides = Literal["", "path", "below"]  # in layers below: none, its own, all below it
KINDS: dict[bytes, Kind] = {
    tarfile.REGTYPE: "file",
    tarfile.AREGTYPE: "file",
    tarfile.LNKTYPE: "file",
    tarfile.SYMTYPE: "link",
    tarfile.CHRTYPE: "device",
    tarfile.BLKTYPE: "device",
    tarfile.DIRTYPE: "directory",
    tarfile.FIFOTYPE: "fifo",
}
EXTENSIONS = {
    *(tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.SOLARIS_XHDTYPE),
    *(tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK),
}
"""Types of headers for the next member, and of a global one."""
ATTRIBUTE = "SCHILY.xattr."  # of an extended attribute in a pax header, as GNU tar writes it
WHITEOUT, OPAQUE = ".wh.", ".wh..wh..opq"
BLOCK = 1 << 20
SLACK = 8 << 20  # bytes of a blob: a decompressor reads ahead, less than 2 MB
GZIP_MAGIC = b"\x1f\x8b"  # RFC 1952, 2.3.1
ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"  # RFC 8878, 3.1.1
LONGEST_PATH = 4096  # PATH_MAX: no kernel takes a longer one
LARGEST_HEADER = 1 << 20  # bytes of a pax header or a long name, as in Go's archive/tar
LARGEST_HEADERS = 1 << 29  # bytes of a layer's: a million members; a layer of vLLM has 60,000
_TARFILE: Any = tarfile  # with the names that its stubs leave out


class StoppedError(Exception):
    """Ends a thread that reads a layer; nobody waits for its result any more."""


@dataclass(frozen=True, slots=True)
class Node:
    """One path of a tree of files."""

    kind: Kind
    mode: int = 0  # permission bits with set-user-ID, set-group-ID and sticky bit: 0o4755
    user: int = 0
    group: int = 0
    time: float = 0.0  # modification time, seconds since 1970
    size: int = 0
    digest: str = ""  # sha256 (hex) of a file's content
    target: str = ""  # A link's, as written; a device's kind and numbers: ``c 1:3``
    same_file: str = ""  # the first of a file's several names, sorted; else empty
    attributes: tuple[tuple[str, str], ...] = ()  # extended ones, sorted; values in hex
    head: bytes = b""  # the first bytes of a file


class HasKind(Protocol):
    """The kept value of an entry, a ``Node`` or one made of it: with its kind and its target."""

    @property
    def kind(self) -> str: ...  # noqa: D102

    @property
    def target(self) -> str: ...  # noqa: D102


N = TypeVar("N", bound=HasKind)


@dataclass(frozen=True, slots=True)
class LayerEntry(Generic[N]):
    """One entry of a layer; its path is absolute, but links in it are not followed."""

    path: str
    node: N
    hides: Hides = ""
    shares: str = ""  # for a hard link: the path that it shares its content with


class Content:
    """The bytes of a file of a layer: read forward once, and hashed."""

    def __init__(self, stream: _Forward, size: int) -> None:
        self._stream = stream
        self._left = size
        self._hash = hashlib.sha256()

    def read(self, size: int) -> bytes:
        """The next ``size`` bytes; fewer at the end of the file."""
        wanted = min(size, self._left)
        found = self._stream.read(wanted)
        if len(found) < wanted:
            raise DamagedImageError("the layer ends within a file")
        self._left -= wanted
        self._hash.update(found)
        return found

    def blocks(self) -> Iterator[bytes]:
        """The rest, in pieces."""
        while block := self.read(BLOCK):
            yield block

    def digest(self) -> str:
        """sha256 (hex) of all bytes; reads the rest."""
        for _ in self.blocks():
            pass
        return self._hash.hexdigest()


Look = Callable[[str, Node, Content | None], N]
"""Makes the kept value of an entry, from its path, its properties and a regular file's content."""


def layer_entries(blob: Path, look: Look[N], stop: Event | None = None) -> Iterator[LayerEntry[N]]:
    """The entries of a layer, in its order; then the digest of the whole blob is checked."""
    with _unpacked(blob, stop) as stream:
        for member in _members(stream):
            path, hides = _place(member.name)
            kind = KINDS[member.type]
            if path == "/" and not hides and kind != "directory":
                continue  # as the engine does
            shares = _absolute(member.linkname) if member.islnk() and not hides else ""
            regular = kind == "file" and not hides and not shares
            content = Content(stream, member.size) if regular else None
            yield LayerEntry(path, look(path, _node(member), content), hides, shares)


@contextmanager
def _unpacked(blob: Path, stop: Event | None) -> Iterator[_Forward]:
    with blob.open("rb") as file:
        head = file.read(4)
        file.seek(0)
        stream = _Forward(file, stop)
        packed: Any = _Packed(stream)
        if head.startswith(GZIP_MAGIC):
            stream.unpacked = gzip.GzipFile(fileobj=packed)
        elif head == ZSTD_MAGIC:
            from backports.zstd import ZstdFile

            stream.unpacked = ZstdFile(packed)
        else:
            stream.unpacked = packed
        yield stream
        while stream.packed(BLOCK):
            pass  # the end of a tar is not the end of its blob
    require_digest(blob, stream.digest)


class _Forward:
    """The unpacked bytes of a layer, in which tarfile seeks forward only."""

    def __init__(self, file: IO[bytes], stop: Event | None) -> None:
        self.digest = hashlib.sha256()
        self.unpacked: Any
        self.block = b""  # that was read last
        self._file = file
        self._stop = stop
        self._at = 0

    def packed(self, size: int) -> bytes:
        """The next bytes of the blob."""
        if self._stop is not None and self._stop.is_set():
            raise StoppedError
        block = self._file.read(size)
        self.digest.update(block)
        return block

    def read(self, size: int) -> bytes:
        self.block = self.unpacked.read(size)
        self._at += len(self.block)
        return self.block

    def tell(self) -> int:
        return self._at

    def seek(self, at: int) -> None:
        while self._at < at and self.read(min(at - self._at, BLOCK)):
            pass


class _Packed:
    """The bytes of a blob, for a decompressor."""

    def __init__(self, stream: _Forward) -> None:
        self._stream = stream
        self._read = 0

    def read(self, size: int) -> bytes:
        block = self._stream.packed(size)
        self._read += len(block)
        # Empty members of gzip, of 20 bytes each, take a hundred times as long as content.
        if self._read > 2 * self._stream.tell() + SLACK:
            raise DamagedImageError("the layer is packed into more bytes than it has")
        return block

    def readable(self) -> bool:
        return True


class _Member(tarfile.TarInfo):
    @classmethod
    def fromtarfile(cls, tar: tarfile.TarFile) -> _Member:
        try:
            return super().fromtarfile(tar)
        except (_TARFILE.InvalidHeaderError, _TARFILE.TruncatedHeaderError) as error:
            # Behind the first member, tarfile would take it for the end.
            raise DamagedImageError(f"a tar header is damaged: {error}") from error
        except _TARFILE.EmptyHeaderError as error:
            raise _TARFILE.EOFHeaderError from error

    def _proc_member(self, tar: Any) -> Any:
        header = tar.fileobj.block
        if header[345] and header[257:263] != b"ustar\0":
            raise DamagedImageError(f"{self.name!r} is of an old format, and has a prefix")
        largest = LARGEST_HEADER if self.type in EXTENSIONS else 1 << 63
        if not 0 <= self.size < largest:
            raise DamagedImageError(f"{self.name!r} has a size of {self.size:,} bytes")
        if self.type not in KINDS.keys() | EXTENSIONS:
            raise DamagedImageError(f"{self.name!r} has the type {self.type!r}, as no layer should")
        return super()._proc_member(tar)  # type: ignore[misc]


class _NoHeaders(dict[str, str]):
    """The records of global pax headers, which the engine ignores."""

    def __setitem__(self, key: str, value: str) -> None:
        pass


def _members(stream: _Forward) -> Iterator[tarfile.TarInfo]:
    tar = _TARFILE.TarFile(
        fileobj=stream,
        tarinfo=_Member,
        encoding="utf-8",
        errors="surrogateescape",
        pax_headers=_NoHeaders(),
    )
    headers = 0
    while (member := tar.next()) is not None:
        headers += member.offset_data - member.offset
        if headers > LARGEST_HEADERS:
            raise DamagedImageError(f"the layer has more than {LARGEST_HEADERS:,} bytes of headers")
        if member.size < 0 or not abs(member.mtime) < 1 << 63 or member.issparse():
            raise DamagedImageError(f"{member.name!r} is sparse, or has an odd size or time")
        if max(len(member.name), len(member.linkname)) > LONGEST_PATH:
            raise DamagedImageError(f"a path of more than {LONGEST_PATH:,} characters")
        if "\0" in member.name + member.linkname:
            raise DamagedImageError(f"NUL in the path {member.name!r}")
        yield member
        tar.members = []  # they would fill the memory


def _node(member: tarfile.TarInfo) -> Node:
    target = member.linkname if member.issym() else ""
    if member.ischr() or member.isblk():
        kind = "c" if member.ischr() else "b"
        target = f"{kind} {member.devmajor}:{member.devminor}"
    return Node(
        KINDS[member.type],
        member.mode & 0o7777,
        member.uid,
        member.gid,
        member.mtime,
        member.size if member.isreg() else 0,
        target=target,
        attributes=tuple(
            (key.removeprefix(ATTRIBUTE), value.encode(errors="surrogateescape").hex())
            for key, value in sorted(member.pax_headers.items())
            if key.startswith(ATTRIBUTE)
        ),
    )


def _place(name: str) -> tuple[str, Hides]:
    """The absolute path of an entry, and whether it hides paths of the layers below."""
    path = _absolute(name)
    folder, name = posixpath.split(path)
    if name == OPAQUE:
        return folder, "below"
    if not name.startswith(WHITEOUT):
        return path, ""
    hidden = name.removeprefix(WHITEOUT)
    if hidden in ("", ".", ".."):
        raise DamagedImageError(f"{path} is the whiteout of no file")
    return posixpath.join(folder, hidden), "path"


def _absolute(name: str) -> str:
    return posixpath.normpath(f"/{name.lstrip('/')}")


# The layers, laid over each other.

MOST_LINKS = 255  # that are followed for one path, as in containerd
MOST_STEPS, MOST_FOLDERS = 1 << 24, 1 << 20
"""Followed parts of a layer's paths, and folders of an image: no image has nearly as many."""


class Placed(NamedTuple, Generic[N]):
    """A path of an image, and where its content is: its layer (from 0), and its path there.

    The names of one file have the same place.
    """

    node: N
    layer: int
    path: str


def final(layers: Sequence[Sequence[LayerEntry[N]]]) -> dict[str, Placed[N]]:
    """The paths that a container sees."""
    image: _Tree[N] = _Tree()
    for number, entries in enumerate(layers):
        try:
            for path, placed in _applied(image, number, entries).nodes.items():
                image.put(path, placed)
        except DamagedImageError as error:
            raise DamagedImageError(f"layer {number + 1}: {error}") from None
    return image.nodes


def first_names(places: Mapping[str, object]) -> dict[str, str]:
    """For each name of a file with several, which have equal ``places``: the first, sorted."""
    first: dict[object, str] = {}
    for path in sorted(places):
        first.setdefault(places[path], path)
    names = Counter(places.values())
    return {path: first[place] for path, place in places.items() if names[place] > 1}


def _applied(below: _Tree[N], number: int, entries: Sequence[LayerEntry[N]]) -> _Tree[N]:
    """The files of a layer; paths that its whiteouts hide are removed from the layers below."""
    own: _Tree[N] = _Tree()
    for entry in entries:
        path = own.followed(entry.path)
        if entry.hides:
            below.remove(path, itself=entry.hides == "path")
            continue
        placed = Placed(entry.node, number, entry.path)
        if entry.shares:
            own.remove(path, itself=True)
            shared = own.nodes.get(own.followed(entry.shares))
            if shared is None or shared.node.kind == "directory":
                what = "a directory" if shared else "not in the layer before it"
                raise DamagedImageError(
                    f"{entry.path} is a hard link to {entry.shares}, which is {what}"
                )
            placed = shared
        own.put(path, placed)
    return own


class _Tree(Generic[N]):
    """Paths with the paths below them; a folder may have no entry of its own."""

    def __init__(self) -> None:
        self.nodes: dict[str, Placed[N]] = {}
        self._below: dict[str, dict[str, None]] = {}
        self._steps = 0

    def put(self, path: str, placed: Placed[N]) -> None:
        """Put a path here, in the place of an earlier one; a folder keeps the paths below it."""
        before = self.nodes.pop(path, None)
        if placed.node.kind != "directory" or (before and before.node.kind != "directory"):
            self.remove(path, itself=True)
        self.nodes[path] = placed
        while path != "/":
            folder = posixpath.dirname(path)
            siblings = self._below.get(folder)
            if siblings is None:
                siblings = self._below[folder] = {}
                if len(self._below) > MOST_FOLDERS:
                    raise DamagedImageError(f"more than {MOST_FOLDERS:,} folders")
                before = self.nodes.get(folder)
                if before is not None and before.node.kind != "directory":
                    del self.nodes[folder]
            if path in siblings:
                return  # and so are its folders
            siblings[path] = None
            path = folder

    def remove(self, path: str, *, itself: bool) -> None:
        """Remove the paths below a path, and the path itself if ``itself``."""
        if itself:
            self.nodes.pop(path, None)
            if path != "/":
                self._below.get(posixpath.dirname(path), {}).pop(path, None)
        waiting = [path]
        while waiting:
            for each in self._below.pop(waiting.pop(), ()):
                self.nodes.pop(each, None)
                waiting.append(each)

    def followed(self, path: str) -> str:
        """A path without links in its folder."""
        folder, name = posixpath.split(path)
        if folder == "/" or folder in self._below:
            return path
        return posixpath.join("/", *self._folders(folder), name)

    def _folders(self, folder: str) -> list[str]:
        done: list[str] = []
        waiting = folder.strip("/").split("/")[::-1]
        links = 0
        while waiting:
            part = waiting.pop()
            self._steps += 1
            if links > MOST_LINKS or self._steps > MOST_STEPS:
                raise DamagedImageError(f"{folder} has too many links")
            if part in ("", "."):
                continue
            if part == "..":
                del done[-1:]
                continue
            here = self.nodes.get("/" + "/".join([*done, part]))
            if here is None or here.node.kind == "directory":
                done.append(part)
                continue
            if here.node.kind != "link":
                raise DamagedImageError(f"{folder} is not a directory")
            links += 1
            target = here.node.target
            waiting += target.split("/")[::-1]
            done = [] if target.startswith("/") else done
        return done
