"""Models without their weights: the real headers, then holes of the right length.

An engine that loads one allocates and computes as with the real model.  A hole takes no space on
the disk, and no download; it reads as zeros.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, TypeVar

from builder.core.errors import FetchError, WorldError
from builder.core.log import Log
from builder.presets.models import Location, locate
from simulator import gguf
from simulator.gguf import CutError, Header, NotGgufError, Readable
from simulator.split_models import PART

HOLE = 64 << 20  # bytes of the hole by which a file system is tried
MOST_PARTS = 999
H = TypeVar("H")


@dataclass(frozen=True, slots=True)
class HollowModel:
    """A model whose files have holes for weights; ``file`` is the first, the others are beside."""

    file: Path
    header: Header
    """The first file's; only this header describes the model."""
    size: int
    """Bytes of all its real files."""
    weights: int
    """Bytes of all tensors."""
    tensors: int
    read: int
    """Bytes that were read of the real files."""

    @property
    def name(self) -> str:
        """The name of the first file."""
        return self.file.name

    @property
    def architecture(self) -> str:
        """The engine's name of its kind: "qwen35"."""
        return self.header.architecture

    @property
    def context(self) -> int | None:
        """The context that it was trained for, in tokens."""
        return self.header.of_architecture("context_length")


def write(text: str, folder: Path, log: Log) -> HollowModel:
    """Write the hollow files of the model that ``text`` names into ``folder``.

    The headers of all parts of a split model are read.  Raises ``FetchError`` where the model
    cannot be read, is cut or is no GGUF; ``WorldError`` where the file system keeps no holes.
    """
    location = locate(text)
    require_holes(folder)
    if location.remote:
        log(f"reading the header of {location.shown}")
    found = PART.search(location.name)
    if found and int(found[1]) != 1:
        raise FetchError(
            f"{location.shown} is part {int(found[1])} of a split model",
            "engines load the first part, and find the others beside it",
            f"name {location.part(1, int(found[2])).shown}",
        )
    first, size = _write(location, folder, log)
    sizes, headers = [size], [first]
    count = _parts(location, first, int(found[2]) if found else 1)
    for number in range(2, count + 1):
        header, size = _write(location.part(number, count), folder, log)
        sizes.append(size)
        headers.append(header)
    return _model(folder / location.name, headers, sizes)


def _model(file: Path, headers: Sequence[Header], sizes: Sequence[int]) -> HollowModel:
    tensors = [tensor for header in headers for tensor in header.tensors]
    weights = sum(header.weights for header in headers)
    read = sum(header.size for header in headers)
    return HollowModel(file, headers[0], sum(sizes), weights, len(tensors), read)


def _parts(location: Location, header: Header, named: int) -> int:
    """The number of a model's files; raises ``FetchError`` where its name and it differ."""
    if header.parts == named and named <= MOST_PARTS:
        return named
    raise FetchError(
        f"{location.shown} has the wrong name for a part of a split model",
        f"its header says {header.parts} parts, its name {named}",
        "give it the name that llama-gguf-split gave it: NAME-00001-of-00003.gguf",
    )


def _write(location: Location, folder: Path, log: Log) -> tuple[Header, int]:
    """Write one hollow file; its header, and the size of the real file."""

    def read(stream: Readable) -> Header:
        try:
            return gguf.read(stream)
        except CutError as error:
            raise FetchError(f"{location.shown} is cut", str(error), "download it again") from error
        except NotGgufError as error:
            raise FetchError(
                f"{location.shown} is not a GGUF file for llama.cpp",
                str(error),
                "name a complete .gguf file: models in other formats must be converted first",
            ) from error

    header, size = write_file(location, folder / location.name, read, log)
    if header.end > size:
        raise cut(location, size, header.end)
    return header, size


def write_file(
    location: Location, target: Path, read: Callable[[Readable], H], log: Log
) -> tuple[H, int]:
    """Copy the bytes that ``read`` takes of a file, with a hole behind them.

    What it returns, and the size of the real file.  Raises like ``read`` and ``Location.opened``.
    """
    with location.opened(log) as real, target.open("wb") as sink:
        header = read(_Copying(real.stream, sink))
        sink.truncate(real.size)
    target.chmod(0o644)  # the image's own user reads it
    return header, real.size


def cut(location: Location, size: int, whole: int) -> FetchError:
    """The error of a file whose header describes another size."""
    return FetchError(
        f"{location.shown} is cut",
        f"it has {size} bytes; with its weights it would have {whole}",
        "download it again",
    )


class _Copying:
    """A stream that also writes each byte elsewhere when it is read."""

    def __init__(self, stream: BinaryIO, sink: BinaryIO) -> None:
        self._stream = stream
        self._sink = sink

    def read(self, count: int) -> bytes:
        """The next bytes; fewer at the end of the file alone."""
        found = self._stream.read(count)
        self._sink.write(found)
        return found


def require_holes(folder: Path) -> None:
    """Raise ``WorldError`` where a hole takes space in ``folder``."""
    trial = folder / ".hole"
    try:
        with trial.open("wb") as stream:
            stream.truncate(HOLE)
        kept = is_hole(trial)
    finally:
        trial.unlink(missing_ok=True)
    if not kept:
        raise WorldError(
            f"the file system of {folder} keeps no holes in files",
            "a model of 17 GB would take 17 GB there",
            "set BUILDER_CACHE_DIR to a directory on ext4, XFS, Btrfs or ZFS",
        )


def is_hole(file: Path) -> bool:
    """Whether most of a file takes no space (stat(2): st_blocks counts 512 bytes)."""
    found = file.stat()
    return found.st_blocks * 512 < found.st_size / 2
