"""The header of a GGUF file: values, tensors, and where the weights begin.

Format: ``docs/gguf.md`` in ggml's repository, versions 2 and 3.  Names of types and sizes of blocks
follow llama.cpp's ``gguf`` package.  Its reader is not used: it maps a complete file, makes
objects of each of 300,000 tokens and merges, and knows no tensor types of forks; here a stream is
read once, forwards, as it comes from a server.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import pairwise
from typing import Annotated, Any, Protocol

from pydantic import BaseModel, ConfigDict, Field, ValidationError

MAGIC = b"GGUF"
VERSIONS = (2, 3)
ALIGNMENT = 32  # bytes, unless general.alignment says otherwise
KEPT = 4096  # elements of an array that are kept
LONGEST_TEXT = 64 << 20  # bytes: a chat template has some thousand
MOST_VALUES = 1 << 16
MOST_TENSORS = 1 << 20
MOST_DIMENSIONS = 4  # GGML_MAX_DIMS
MOST_ELEMENTS = 1 << 28
STRING, ARRAY = 8, 9
SCALARS = dict(zip((0, 1, 2, 3, 4, 5, 6, 7, 10, 11, 12), "BbHhIif?Qqd", strict=True))
"""The ``struct`` format of each scalar value type, by its number."""


class Readable(Protocol):
    """A stream whose ``read`` returns fewer bytes at the end of the file alone."""

    def read(self, count: int, /) -> bytes:
        """The next bytes."""


class NotGgufError(Exception):
    """A file is no GGUF that llama.cpp loads; the text says why."""


class CutError(NotGgufError):
    """A file ends within its header."""


@dataclass(frozen=True, slots=True)
class Array:
    """An array: its length, and its first elements, ``KEPT`` at most."""

    count: int
    first: tuple[object, ...]


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor; ``kind`` is ggml's number of its type, ``offset`` bytes after the header."""

    name: str
    shape: tuple[int, ...]
    kind: int
    offset: int

    @property
    def size(self) -> int | None:
        """Its bytes; None where only a fork knows the type."""
        block = _blocks().get(self.kind)
        return math.prod(self.shape) // block[0] * block[1] if block else None


@cache
def _blocks() -> dict[int, tuple[int, int]]:
    """The elements and the bytes of a block, by the number of the tensor's type."""
    from gguf.constants import GGML_QUANT_SIZES

    return {int(kind): sizes for kind, sizes in GGML_QUANT_SIZES.items()}


@dataclass(frozen=True)
class Header:
    """The part of a GGUF file before its weights; ``size`` is its length in bytes."""

    version: int
    values: Mapping[str, object]
    tensors: tuple[Tensor, ...]
    size: int
    alignment: int = ALIGNMENT

    @property
    def architecture(self) -> str:
        """``llama``, ``qwen3``, ``clip``; empty where the file has none."""
        return self.text("general.architecture")

    @property
    def end(self) -> int:
        """The least size in bytes of the file."""
        ends = (self.size + tensor.offset + self.bytes_of(tensor) for tensor in self.tensors)
        return max(ends, default=self.size)

    @property
    def weights(self) -> int:
        """The bytes of all tensors."""
        return sum(map(self.bytes_of, self.tensors))

    def bytes_of(self, tensor: Tensor) -> int:
        """The bytes of one of its tensors.

        Forks have types of their own, and give ggml's numbers another meaning.  Such a tensor
        reaches to the next one, padding included.  The last one has at least the bytes for each
        element that another one of its type has, else one bit.
        """
        if tensor.kind not in self._of_forks and tensor.size is not None:
            return tensor.size
        size, elements = self._of_forks.get(tensor.kind, (1, 8))
        least = max(math.prod(tensor.shape) * size // elements, 1)
        return self._rooms.get(tensor.offset, least)

    @cached_property
    def _rooms(self) -> dict[int, int]:
        """By offset the bytes up to the next tensor; none for the last one."""
        offsets = sorted({tensor.offset for tensor in self.tensors})
        return {here: after - here for here, after in pairwise(offsets)}

    @cached_property
    def _of_forks(self) -> dict[int, tuple[int, int]]:
        """By type the bytes without padding, and the elements, of a tensor that another one
        follows, where they are not ggml's."""
        found = {}
        for tensor in self.tensors:
            room, known = self._rooms.get(tensor.offset, 0), tensor.size
            fits = known is not None and 0 <= room - known < self.alignment
            if room and 0 not in tensor.shape and not fits:
                found[tensor.kind] = max(room - self.alignment + 1, 1), math.prod(tensor.shape)
        return found

    @property
    def parts(self) -> int:
        """The number of files that the model was split into; 1 where it was not."""
        return self.number("split.count") or 1

    @property
    def vocabulary(self) -> int:
        """The number of tokens; 0 where the file has no tokenizer."""
        tokens = self.array("tokenizer.ggml.tokens")
        return tokens.count if tokens else self.of_architecture("vocab_size") or 0

    def text(self, key: str) -> str:
        """A text; empty where there is none."""
        value = self.values.get(key)
        return value if isinstance(value, str) else ""

    def number(self, key: str) -> int | None:
        """A whole number; None where there is none."""
        value = self.values.get(key)
        return value if isinstance(value, int) and not isinstance(value, bool) else None

    def of_architecture(self, name: str) -> int | None:
        """A whole number of the architecture: ``context_length`` of ``qwen3.context_length``."""
        return self.number(f"{self.architecture}.{name}")

    def array(self, key: str) -> Array | None:
        """An array; None where there is none."""
        value = self.values.get(key)
        return value if isinstance(value, Array) else None


def read(stream: Readable) -> Header:
    """Read the header from the beginning of a file.

    Raises ``NotGgufError`` where it is none, is cut, or is of another byte order or version.
    """
    reader = _Reader(stream)
    magic = reader.take(4)
    if magic != MAGIC:
        shown = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in magic)
        raise NotGgufError(f"it begins with {shown!r}, not with 'GGUF'")
    version = reader.scalar("I")
    if version & 0xFFFF == 0 and version:  # as llama.cpp detects it: gguf_init_from_file
        raise NotGgufError("it is big-endian: this machine needs a little-endian file")
    if version not in VERSIONS:
        raise NotGgufError(f"it has version {version} of the format; llama.cpp reads 2 and 3")
    tensors, values = reader.scalar("Q"), reader.scalar("Q")
    if tensors > MOST_TENSORS or values > MOST_VALUES:
        raise NotGgufError(f"it announces {tensors} tensors and {values} values: it is damaged")
    found: dict[str, object] = {}
    for _ in range(values):
        key = reader.text()
        found[key] = reader.value(reader.scalar("I"))
    listed = tuple(reader.tensor() for _ in range(tensors))
    alignment = found.get("general.alignment", ALIGNMENT)
    if not isinstance(alignment, int) or alignment < 1 or alignment & (alignment - 1):
        raise NotGgufError(f"its alignment is {alignment}, which is no power of two")
    return Header(version, found, listed, -(-reader.at // alignment) * alignment, alignment)


class _Reader:
    """Reads a stream forwards and counts its bytes."""

    def __init__(self, stream: Readable) -> None:
        self._stream = stream
        self.at = 0

    def take(self, count: int) -> bytes:
        found = self._stream.read(count)
        if len(found) != count:
            raise CutError(f"it ends after {self.at + len(found)} bytes, within its header")
        self.at += count
        return found

    def scalars(self, form: str, count: int = 1) -> tuple[Any, ...]:
        layout = struct.Struct(f"<{count}{form}")
        return layout.unpack(self.take(layout.size))

    def scalar(self, form: str) -> int:
        return int(self.scalars(form)[0])

    def text(self) -> str:
        length = self.scalar("Q")
        if length > LONGEST_TEXT:
            raise NotGgufError(f"it has a text of {length} bytes: it is damaged")
        return self.take(length).decode("utf-8", "replace")

    def value(self, kind: int) -> object:
        if kind == STRING:
            return self.text()
        if kind == ARRAY:
            return self._array()
        if kind not in SCALARS:
            raise NotGgufError(f"it has a value of the unknown type {kind}: it is damaged")
        return self.scalars(SCALARS[kind])[0]

    def _array(self) -> Array:
        kind, count = self.scalar("I"), self.scalar("Q")
        kept = min(count, KEPT)
        if count > MOST_ELEMENTS:
            raise NotGgufError(f"it has an array of {count} elements: it is damaged")
        if kind == STRING:
            texts = tuple(self.text() for _ in range(kept))
            for _ in range(count - kept):
                self.text()
            return Array(count, texts)
        if kind not in SCALARS:
            raise NotGgufError(f"it has an array of the unknown type {kind}: it is damaged")
        first = self.scalars(SCALARS[kind], kept)
        left = (count - kept) * struct.calcsize(f"<{SCALARS[kind]}")
        while left:
            left -= len(self.take(min(left, 1 << 20)))
        return Array(count, first)

    def tensor(self) -> Tensor:
        name, dimensions = self.text(), self.scalar("I")
        if dimensions > MOST_DIMENSIONS:
            raise NotGgufError(f"its tensor {name[:64]} has {dimensions} dimensions: it is damaged")
        return Tensor(name, self.scalars("Q", dimensions), self.scalar("I"), self.scalar("Q"))


# The header of a file of safetensors: the places of its tensors.
#
# The format (huggingface/safetensors, README, "Format"): eight bytes with the length of the
# header, a little-endian number; the header, JSON by the name of a tensor; then the tensors.

LENGTH = struct.Struct("<Q")
LONGEST = 100_000_000
"""Bytes of the longest header that the library reads (safetensors/src/tensor.rs)."""
_Offset = Annotated[int, Field(ge=0, lt=1 << 63)]


class NotSafetensorsError(Exception):
    """A file is no file of safetensors, or ends within its header; the text says why."""


class _Tensor(BaseModel):
    data_offsets: tuple[_Offset, _Offset]
    """First byte and end, counted from the first tensor."""


class _Tensors(BaseModel):
    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, _Tensor]
    metadata: dict[str, str] = Field({}, alias="__metadata__")


@dataclass(frozen=True, slots=True)
class SafetensorsHeader:
    """The header of a file; sizes are bytes."""

    size: int
    """With the eight bytes before it."""
    weights: int
    """All tensors."""

    @property
    def end(self) -> int:
        """The size of the whole file."""
        return self.size + self.weights


def read_safetensors(stream: Readable) -> SafetensorsHeader:
    """Read the header at the beginning of a stream, and no tensor.

    Raises ``NotSafetensorsError``.
    """
    first = stream.read(LENGTH.size)
    if len(first) < LENGTH.size:
        raise NotSafetensorsError(f"it has {len(first)} bytes")
    (length,) = LENGTH.unpack(first)
    if length > LONGEST:
        raise NotSafetensorsError(f"its header would have {length} bytes")
    text = stream.read(length)
    if len(text) < length:
        raise NotSafetensorsError(f"it ends within its header of {length} bytes")
    try:
        tensors = _Tensors.model_validate_json(text).__pydantic_extra__
    except ValidationError as error:
        raise NotSafetensorsError("its header does not describe tensors") from error
    ends = (each.data_offsets[1] for each in tensors.values())
    return SafetensorsHeader(LENGTH.size + length, max(ends, default=0))
