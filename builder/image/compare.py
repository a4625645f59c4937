"""Two images compared: their files, their configurations and their layers.

In every difference, ``before`` is the first thing compared and ``after`` the second one.
"""

from __future__ import annotations

import hashlib
import os
import posixpath
import stat
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from difflib import SequenceMatcher
from functools import partial
from itertools import zip_longest
from pathlib import Path
from threading import Event
from typing import Any, BinaryIO, Generic, Literal, NamedTuple, TypeVar

from builder.core import sizes
from builder.core.errors import WorldError
from builder.core.files import require_space
from builder.docker.containers import Blobs
from builder.image import layers as images
from builder.image.code_paths import CodePaths
from builder.image.device_code import (
    CodeDifference,
    DifferenceState,
    compare_code,
    may_have_code,
    on_card,
    state_of,
)
from builder.image.layers import (
    Content,
    DamagedImageError,
    LayerEntry,
    Node,
    Placed,
    damage_reported,
    final,
    first_names,
    layer_entries,
    manifest_of,
)
from simulator import MalformedElf
from simulator.elf import Elf, Section, is_elf, linking, versioned_symbols
from simulator.ledger import library_name

# The result: values that `compare --json` prints as they are.

Aspect = Literal[
    "name", "kind", "content", "target", "mode", "owner", "attributes", "hard link", "time"
]
LayerState = Literal["equal", "compression", "times", "order", "tar", "files", "added", "removed"]
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Difference(Generic[T]):
    """A named value, or a list of values; empty or None where a side has none."""

    name: str
    before: T
    after: T


Values = tuple[Difference[tuple[str, ...]], ...]


@dataclass(frozen=True, slots=True)
class ElfDifference:
    """How two ELF files differ: in ``values`` of ``machine``, ``type``, ``interpreter``,
    ``soname``, ``needed``, ``runpath``, ``rpath`` and ``build id``; in dynamic symbols
    (``cudaFree@libcudart.so.13``, ``U`` before an undefined one); in the bytes of sections, in the
    order of the files."""

    values: Values
    symbols_added: tuple[str, ...]
    symbols_removed: tuple[str, ...]
    sections: tuple[Difference[int | None], ...]


@dataclass(frozen=True, slots=True)
class FileDifference:
    """A path that differs; ``time`` is among the aspects where only that differs, too."""

    path: str
    before: Node | None
    after: Node | None
    former: str = ""  # the path of the first one, where a library has another version in its name
    aspects: tuple[Aspect, ...] = ()  # the differences of a path that both have
    lines: tuple[str, str] | None = None  # the first line that differs in two texts
    elf: ElfDifference | None = None
    code: CodeDifference | None = None  # set where one of the files has device code
    on_card: tuple[CodePaths, CodePaths] | None = None  # with ``code``: of both
    unread: str = ""  # why ELF sections or device code could not be compared

    @property
    def state(self) -> DifferenceState:
        """Which of both sides has it, or whether it differs."""
        return state_of(self.before, self.after)

    @property
    def only_time(self) -> bool:
        """Whether nothing but the modification time differs."""
        return self.aspects == ("time",)


@dataclass(frozen=True, slots=True)
class LayerSide:
    """A layer of an image: its number from 1, the lowest; its bytes; the instruction for it."""

    number: int
    digest: str
    size: int
    created_by: str


@dataclass(frozen=True, slots=True)
class LayerDifference:
    """Two layers, or one layer without a counterpart.

    ``state`` names the difference: none; the compression of the same tar; the modification times,
    the order of the entries, or other bytes of the tar, of the same files; or the files.  With
    ``times`` and ``files``, ``paths`` are the paths that differ.
    """

    before: LayerSide | None
    after: LayerSide | None
    state: LayerState
    paths: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two trees, or two images, compared."""

    before: str  # name
    after: str
    digests: tuple[str, str] | None  # the manifests' of two images
    equal: int  # paths that are equal, apart from times
    files: tuple[FileDifference, ...]  # by path; also where only the time differs
    config: Values = ()  # ``config.Env`` ...; values with times are in ``times``
    times: Values = ()  # times in two images' configurations: ``created``, ``history``
    layers: tuple[LayerDifference, ...] = ()  # all layers of two images, also equal ones

    def differing(self, *, times: bool = False) -> list[FileDifference]:
        """The files that differ; with ``times`` also files that differ in their time only."""
        return [each for each in self.files if times or not each.only_time]

    def same(self, *, times: bool = False) -> bool:
        """Whether files and configuration are equal, with ``times`` also all times."""
        return not self.differing(times=times) and not self.config and not (times and self.times)

    @property
    def codes(self) -> Iterator[tuple[FileDifference, CodeDifference]]:
        """The files whose device code was compared."""
        return ((each, each.code) for each in self.files if each.code is not None)

    @property
    def unread(self) -> list[FileDifference]:
        """The files whose sections or device code could not be compared."""
        return [each for each in self.files if each.unread]

    @property
    def same_code(self) -> bool:
        """Whether the device code is the same, byte for byte; False where some is unread."""
        return all(code.same for _, code in self.codes) and not self.unread


# The files of a directory, or one file, with their properties.

FILE = "/"  # the path of a single file, which may have another name in the other tree
HEAD = 64  # bytes of a file that tell its format


class FilesTree(NamedTuple):
    """A directory, or one file, on this machine."""

    name: str
    root: Path
    nodes: Mapping[str, Node]

    def extract(self, paths: Collection[str], folder: Path) -> Mapping[str, Path]:  # noqa: ARG002
        """The files themselves; an image's tree gives copies in ``folder``."""
        single = self.root.is_file()
        return {path: self.root if single else self.root / path[1:] for path in paths}


def read_files(root: Path) -> FilesTree:
    """A directory, or one file; the path of a single file is ``FILE``.  A link is followed."""

    def fail(error: OSError) -> None:
        raise error

    name, nodes, places = str(root), {}, {}
    try:
        root = root.resolve(strict=True)
        if not root.is_dir():
            nodes[FILE] = _node(root)
        for folder, folders, files in os.walk(root, onerror=fail) if root.is_dir() else ():
            for each in sorted([*folders, *files]):
                file = Path(folder, each)
                path = f"/{file.relative_to(root)}"
                nodes[path], status = _node(file), file.lstat()
                if nodes[path].kind == "file" and status.st_nlink > 1:
                    places[path] = (status.st_dev, status.st_ino)
        return FilesTree(name, root, _with_first_names(nodes, places))
    except OSError as error:
        what = error.filename or root
        raise WorldError(f"cannot read {what}", error.strerror or str(error)) from error


def _with_first_names(nodes: dict[str, Node], places: Mapping[str, object]) -> dict[str, Node]:
    """The nodes with ``same_file`` set; ``places``: as ``first_names``."""
    named = first_names(places).items()
    return {**nodes, **{path: replace(nodes[path], same_file=first) for path, first in named}}


def _node(path: Path) -> Node:
    status = path.lstat()
    mode = stat.S_IMODE(status.st_mode)
    common = (mode, status.st_uid, status.st_gid, status.st_mtime)
    if stat.S_ISLNK(status.st_mode):
        return Node("link", *common, target=str(path.readlink()))
    attributes = tuple(
        (name, os.getxattr(path, name, follow_symlinks=False).hex())
        for name in sorted(os.listxattr(path, follow_symlinks=False))
    )
    if stat.S_ISDIR(status.st_mode):
        return Node("directory", *common, attributes=attributes)
    if stat.S_ISREG(status.st_mode):
        with path.open("rb") as file:
            head = file.read(HEAD)
            file.seek(0)
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        return Node("file", *common, status.st_size, digest, attributes=attributes, head=head)
    if stat.S_ISFIFO(status.st_mode):
        return Node("fifo", *common)
    kind = stat.filemode(status.st_mode)[0]
    place = f"{kind} {os.major(status.st_rdev)}:{os.minor(status.st_rdev)}"
    return Node("device", *common, target=place)


# The files of an image, read from its blobs: the final file system, and the files of each layer.


class LayerFiles(NamedTuple):
    """A layer of an image, and its files; ``diff_id`` is the digest of its unpacked tar."""

    side: LayerSide
    diff_id: str
    entries: tuple[LayerEntry[Node], ...]


class ImageTree(NamedTuple):
    """The files of an image as a container sees them."""

    name: str
    manifest: Mapping[str, Any]
    config: Mapping[str, Any]  # OCI image configuration (image-spec: config.md)
    layers: tuple[LayerFiles, ...]
    nodes: Mapping[str, Node]
    placed: Mapping[str, Placed[Node]]
    blobs: Blobs

    def extract(self, paths: Collection[str], folder: Path) -> Mapping[str, Path]:
        """Copies of these files; each layer that has one of them is read once more."""
        folder.mkdir(parents=True)
        size = sum({self.nodes[path].digest: self.nodes[path].size for path in paths}.values())
        require_space(folder, size / 2**30, f"the comparison of {len(paths):,} files")
        wanted: dict[int, dict[str, Path]] = defaultdict(dict)
        for path in paths:
            place = self.placed[path]
            wanted[place.layer][place.path] = folder / self.nodes[path].digest
        with images.damage_reported():
            for number, copies in wanted.items():
                _copy(self.blobs.file(self.layers[number].side.digest), copies)
        return {path: folder / self.nodes[path].digest for path in paths}

    def described(self) -> dict[str, tuple[str, ...]]:
        """The values of its configuration and its manifest, by flat names."""
        config = {name: value for name, value in self.config.items() if name != "rootfs"}
        parts = ("config", "layers")
        manifest = {name: value for name, value in self.manifest.items() if name not in parts}
        return dict(_flat({**config, "manifest": manifest}))


def read_image(
    name: str, blobs: Blobs, known: dict[str, tuple[LayerEntry[Node], ...]] | None = None
) -> ImageTree:
    """Read an image from its blobs; from an index, as ``manifest_of``.

    ``known``: the entries of layers by digest, so that no layer is read twice; it is extended.
    Raises ``UntriedError`` where a blob is missing or damaged.
    """
    known = {} if known is None else known
    with images.damage_reported():
        _, manifest = images.manifest_of(blobs)
        config = images.image_document(blobs.file(manifest["config"]["digest"]))
        parts = manifest["layers"]
        missing = [each for each in {part["digest"]: 0 for part in parts} if each not in known]
        with images.two_at_a_time() as (pool, stop):
            read = pool.map(partial(_entries, stop=stop), map(blobs.file, missing))
            known.update(zip(missing, read, strict=True))
        made_by = images.created_by(config, len(parts))
        rows = zip(parts, config["rootfs"]["diff_ids"], made_by, strict=True)
        found = tuple(
            LayerFiles(
                LayerSide(number, part["digest"], part["size"], by), diff_id, known[part["digest"]]
            )
            for number, (part, diff_id, by) in enumerate(rows, 1)
        )
        placed = final([layer.entries for layer in found])
    files = ((path, each) for path, each in placed.items() if each.node.kind == "file")
    places = {path: (each.layer, each.path) for path, each in files}
    nodes = _with_first_names({path: each.node for path, each in placed.items()}, places)
    return ImageTree(name, manifest, config, found, nodes, placed, blobs)


def _entries(blob: Path, stop: Event) -> tuple[LayerEntry[Node], ...]:
    def hashed(_: str, node: Node, content: Content | None) -> Node:
        if content is None:
            return node
        head = content.read(HEAD)
        return replace(node, digest=content.digest(), head=head)

    return tuple(layer_entries(blob, hashed, stop))


def _copy(blob: Path, copies: Mapping[str, Path]) -> None:
    waiting = dict(copies)

    def look(path: str, node: Node, content: Content | None) -> Node:
        # A layer may have a path twice; the last one counts.
        if content is not None and path in waiting:
            with waiting[path].open("wb") as copy:
                copy.writelines(content.blocks())
            if content.digest() == waiting[path].name:
                del waiting[path]
        return node

    for _ in layer_entries(blob, look):
        if not waiting:
            return
    raise DamagedImageError(f"{blob.name} has no {', '.join(waiting)}")


def _flat(value: Any, name: str = "") -> Iterator[tuple[str, tuple[str, ...]]]:
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _flat(inner, f"{name}.{key}" if name else key)
    elif isinstance(value, list) and any(isinstance(each, Mapping) for each in value):
        for number, inner in enumerate(value, 1):
            yield from _flat(inner, f"{name}.{number}")
    elif value is not None:
        yield name, tuple(map(str, value)) if isinstance(value, list) else (str(value),)


# Two files with different content: where they differ, and how ELF files and device code do.

LARGEST_TEXT = 1 << 20  # bytes of a file whose lines are compared
LONGEST_LINE = 200  # characters that are kept of one


def compare_contents(of: FileDifference, before: Path | None, after: Path | None) -> FileDifference:
    """The difference of a path, with the differences of its content; an absent file is None."""
    with ExitStack() as stack:
        old = stack.enter_context(before.open("rb")) if before else None
        new = stack.enter_context(after.open("rb")) if after else None
        elves = [is_elf(each.read(4)) for each in (old, new) if each]
        try:
            if old and new and all(elves):
                of = replace(of, elf=compare_elf(old, new))
            of = replace(of, code=compare_code(old, new))
            if of.code:
                of = replace(of, on_card=(on_card(of.path, old), on_card(of.path, new)))
        except MalformedElf as error:
            return replace(of, unread=str(error))
    if any(elves):
        return of
    if before and after and max(each.stat().st_size for each in (before, after)) <= LARGEST_TEXT:
        return replace(of, lines=_lines(before.read_bytes(), after.read_bytes()))
    return of


def _lines(before: bytes, after: bytes) -> tuple[str, str] | None:
    try:
        old, new = ([*text.decode().splitlines(), ""] for text in (before, after))
    except UnicodeDecodeError:
        return None
    if b"\0" in before + after:
        return None
    one, other = next(((a, b) for a, b in zip(old, new, strict=False) if a != b), ("", ""))
    return one[:LONGEST_LINE], other[:LONGEST_LINE]


def compare_elf(before: BinaryIO, after: BinaryIO) -> ElfDifference:
    """The difference of two ELF files."""
    old, new = Elf(before), Elf(after)
    was, now = versioned_symbols(old), versioned_symbols(new)
    values = zip(_linking(old).items(), _linking(new).values(), strict=True)
    by_name: dict[str, tuple[list[Section], list[Section]]] = defaultdict(lambda: ([], []))
    for side, elf in enumerate((old, new)):
        for section in elf.sections[1:]:
            by_name[section.name][side].append(section)
    return ElfDifference(
        tuple(Difference(name, value, other) for (name, value), other in values if value != other),
        tuple(sorted(now - was)),
        tuple(sorted(was - now)),
        # The first of several with one name is compared with the first.
        tuple(
            Difference(name, one and one.size, other and other.size)
            for name, sides in by_name.items()
            for one, other in zip_longest(*sides)
            if one is None or other is None or not _equal(old, one, new, other)
        ),
    )


def _linking(elf: Elf) -> dict[str, tuple[str, ...]]:
    found = linking(elf)
    names = ("machine", "type", "interpreter", "soname")
    single = {name: getattr(found, name) for name in names} | {"build id": elf.build_id()}
    lists = {name: getattr(found, name) for name in ("needed", "runpath", "rpath")}
    return {name: (value,) if value else () for name, value in single.items()} | lists


def _equal(before: Elf, one: Section, after: Elf, other: Section) -> bool:
    if (one.size, one.type) != (other.size, other.type):
        return False
    return all(a == b for a, b in zip(before.blocks(one), after.blocks(other), strict=True))


FileTree = FilesTree | ImageTree
LARGEST = 64 << 20  # bytes; of larger files without device code, only digests are compared


def compare_trees(before: FileTree, after: FileTree, work: Path) -> Comparison:
    """Every path that differs, with its content; ``work`` takes copies of the images' files."""
    found = []
    for path in sorted(before.nodes.keys() | after.nodes.keys()):
        one, other = before.nodes.get(path), after.nodes.get(path)
        differ = _aspects(one, other) if one and other else ()
        if differ or one is None or other is None:
            found.append(FileDifference(path, one, other, aspects=differ))
    found = _renamed(found)
    read = [each for each in found if _is_read(each)]
    old = {each.former or each.path for each in read if each.before}
    new = {each.path for each in read if each.after}
    copies = before.extract(old, work / "before"), after.extract(new, work / "after")
    contents = {
        each.path: compare_contents(
            each, copies[0].get(each.former or each.path), copies[1].get(each.path)
        )
        for each in read
    }
    files = tuple(contents.get(each.path, each) for each in found)
    both = before.nodes.keys() & after.nodes.keys()
    equal = len(both) - sum(not each.only_time for each in files if each.path in both)
    return Comparison(before.name, after.name, None, equal, files)


def _aspects(before: Node, after: Node) -> tuple[Aspect, ...]:
    """The differences of two nodes; the mode and the size of a link do not count."""
    same: dict[Aspect, bool] = {
        "kind": before.kind == after.kind,
        "content": before.digest == after.digest,
        "target": before.target == after.target,
        "mode": before.mode == after.mode or before.kind == "link",
        "owner": (before.user, before.group) == (after.user, after.group),
        "attributes": before.attributes == after.attributes,
        "hard link": before.same_file == after.same_file,
        "time": before.time == after.time,
    }
    return tuple(aspect for aspect, equal in same.items() if not equal)


def _renamed(found: list[FileDifference]) -> list[FileDifference]:
    """The same differences; a library whose name has another version counts as changed."""
    named: dict[tuple[str, str], list[FileDifference]] = defaultdict(list)
    for each in found:
        node = each.before or each.after
        if each.state != "changed" and node and is_elf(node.head):
            named[posixpath.dirname(each.path), library_name(each.path)].append(each)
    by_path = {each.path: each for each in found}
    for pair in named.values():
        if sorted(each.state for each in pair) != ["added", "removed"]:
            continue
        gone, come = sorted(pair, key=lambda each: each.before is None)
        if gone.before and come.after:
            changed = _aspects(gone.before, come.after)
            del by_path[gone.path]
            by_path[come.path] = replace(
                come, before=gone.before, former=gone.path, aspects=("name", *changed)
            )
    return list(by_path.values())


def _is_read(each: FileDifference) -> bool:
    """Whether the content of a path is looked at: it differs, or it may be device code."""
    nodes = [node for node in (each.before, each.after) if node]
    if any(node.kind != "file" for node in nodes):
        return False
    code = any(may_have_code(each.path, node.head) for node in nodes)
    if len(nodes) == 1:
        return code
    return "content" in each.aspects and (code or max(node.size for node in nodes) <= LARGEST)


TIME = "created"  # the last part of the names of times, as in org.opencontainers.image.created


def compare_images(before: tuple[str, Blobs], after: tuple[str, Blobs], work: Path) -> Comparison:
    """Two images by names and blobs; of images with one digest nothing else is read."""
    with damage_reported():
        digests = manifest_of(before[1])[0], manifest_of(after[1])[0]
    if digests[0] == digests[1]:
        return Comparison(before[0], after[0], digests, 0, ())
    known: dict[str, tuple[LayerEntry[Node], ...]] = {}
    old, new = read_image(*before, known), read_image(*after, known)
    was, now = old.described(), new.described()
    values = [
        Difference(name, was.get(name, ()), now.get(name, ()))
        for name in sorted(was.keys() | now.keys())
        if was.get(name) != now.get(name)
    ]
    return replace(
        compare_trees(old, new, work),
        digests=digests,
        config=tuple(each for each in values if not each.name.endswith(TIME)),
        times=tuple(each for each in values if each.name.endswith(TIME)),
        layers=tuple(_layer_differences(old.layers, new.layers)),
    )


def _layer_differences(
    before: Sequence[LayerFiles], after: Sequence[LayerFiles]
) -> Iterator[LayerDifference]:
    """The layers in pairs: layers with the same tar first, the others between them in order."""
    ids = [each.diff_id for each in before], [each.diff_id for each in after]
    for _, a, b, c, d in SequenceMatcher(None, *ids, autojunk=False).get_opcodes():
        for old, new in zip_longest(before[a:b], after[c:d]):
            yield _layer(old, new)


def _layer(before: LayerFiles | None, after: LayerFiles | None) -> LayerDifference:
    old, new = before and before.side, after and after.side
    if before is None or after is None:
        return LayerDifference(old, new, "added" if before is None else "removed")
    if before.diff_id != after.diff_id:
        return LayerDifference(old, new, *_entry_difference(before.entries, after.entries))
    same = before.side.digest == after.side.digest
    return LayerDifference(old, new, "equal" if same else "compression")


def _entry_difference(
    before: Sequence[LayerEntry[Node]], after: Sequence[LayerEntry[Node]]
) -> tuple[LayerState, tuple[str, ...]]:
    old = {(each.path, each.hides): each for each in before}
    new = {(each.path, each.hides): each for each in after}
    found = {
        key[0]: _differs(old[key], new[key]) if key in old and key in new else True
        for key in sorted(old.keys() | new.keys())
    }
    changed = tuple(path for path, differs in found.items() if differs)
    if changed:
        return "files", changed
    times = tuple(key[0] for key in old if old[key].node.time != new[key].node.time)
    if times:
        return "times", times
    return ("order" if list(old) != list(new) else "tar"), ()


def _differs(before: LayerEntry[Node], after: LayerEntry[Node]) -> bool:
    found = set(_aspects(before.node, after.node)) - {"time"}
    return bool(found) or before.shares != after.shares


# The verdict on a comparison in a few sentences.

STATES = ("added", "removed", "changed")


def summary(found: Comparison, *, times: bool = False) -> list[str]:
    """The verdict; with ``times``, modification times and dates of images count, too."""
    if found.digests and found.digests[0] == found.digests[1]:
        return [f"the same image: {found.digests[0]}"]
    lines = [_files(found, times=times)]
    if found.config or found.times:
        lines.append(_config(found))
    if found.layers:
        lines.append(_layer_summary(found))
    if found.unread:
        paths = ", ".join(each.path for each in found.unread)
        lines.append(f"damaged, so that their code could not be compared: {paths}")
    code = _device_code(found)
    return [*lines, *([code] if code else [])]


def _files(found: Comparison, *, times: bool) -> str:
    differing = found.differing(times=times)
    hidden = len(found.files) - len(differing)
    aside = f"; besides, the times of {hidden:,} differ" if hidden else ""
    if [each.path for each in found.files] == [FILE]:
        return "the files differ" if differing else "the files are equal, apart from their time"
    if not differing:
        paths = "path" if found.equal == 1 else "paths"
        return f"the same files: {found.equal:,} {paths}{aside}"
    counts = _counts((each.path, each.state) for each in differing)
    return f"the files differ: {counts}; {found.equal:,} are equal{aside}"


def _counts(states: Iterable[tuple[str, str]]) -> str:
    found = Counter(state for _, state in states)
    return ", ".join(f"{found[each]:,} {each}" for each in STATES if found[each])


def _config(found: Comparison) -> str:
    if not found.config:
        return "the same configuration, apart from times"
    # For lists and tables such as history.3.comment, the name is enough.
    names = (each.name.split(".") for each in found.config)
    groups = dict.fromkeys(".".join(parts[: 2 if parts[0] == "config" else 1]) for parts in names)
    return f"the configuration differs: {', '.join(groups)}"


def _layer_summary(found: Comparison) -> str:
    states = Counter(each.state for each in found.layers)
    equal = states.pop("equal", 0)
    if not states:
        return f"the same layers: {equal}"
    total = sum(each.after.size for each in found.layers if each.after)
    there = sum(each.after.size for each in found.layers if each.after and each.state == "equal")
    return (
        f"{equal} of {len(found.layers)} layers are equal; with the first image, "
        f"{sizes.shown(total - there)} of {sizes.shown(total)} of the second one are downloaded"
    )


def _device_code(found: Comparison) -> str:
    codes = [code for _, code in found.codes]
    if not codes:
        quiet = not found.digests or not found.differing() or found.unread
        return "" if quiet else "no file with device code differs"
    entries = sum(max(each.before, each.after) for code in codes for each in code.totals)
    files = f"{len(codes)} file{'s' if len(codes) > 1 else ''}"
    if all(code.same for code in codes):
        return f"the same device code, byte for byte: {entries:,} entries in {files} that differ"
    missing = [each for code in codes for each in code.totals if each.before != each.after]
    functions = [each for code in codes for each in code.functions]
    if not functions and not missing:
        return (
            f"the same kernels, byte for byte: the modules in {files} differ only in other "
            "sections and texts"
        )
    # A kernel counts once, whatever the number of architectures.
    counts = _counts(dict.fromkeys((each.name, each.state) for each in functions))
    equal = sum(each.equal for code in codes for each in code.totals)
    kernels = f"; kernels: {counts}" if counts else ""
    more = sum(each.more_spills > 0 for each in functions)
    fewer = sum(each.more_spills < 0 for each in functions)
    spills = f"; spills: up in {more:,}, down in {fewer:,}" if more or fewer else ""
    return f"the device code differs: {equal:,} of {entries:,} entries are equal{kernels}{spills}"
