"""The header of a file of safetensors: the places of its tensors.

The format (huggingface/safetensors, README, "Format"): eight bytes with the length of the header, a
little-endian number; the header, JSON by the name of a tensor; then the tensors.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from simulator.gguf import Readable

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
class Header:
    """The header of a file; sizes are bytes."""

    size: int
    """With the eight bytes before it."""
    weights: int
    """All tensors."""

    @property
    def end(self) -> int:
        """The size of the whole file."""
        return self.size + self.weights


def read(stream: Readable) -> Header:
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
    return Header(
        LENGTH.size + length, max((each.data_offsets[1] for each in tensors.values()), default=0)
    )
