"""Models by their shape: GGUF files with the tensors of real models, and holes for the weights.

An engine allocates the same memory for such a file as for the model itself.  The shapes are files
of ``shapes/``, which name their sources.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from builder.presets import sizes, tokens
from builder.presets.shape import (
    Dimensions,
    NoShapeError,
    Shape,
    names,
    of,
    published,
    tiny,
    tiny_names,
)

if TYPE_CHECKING:
    import gguf

__all__ = [
    "Dimensions",
    "NoShapeError",
    "Shape",
    "describe",
    "names",
    "of",
    "published",
    "tiny",
    "tiny_names",
    "write",
]


def write(name: str, file: Path, size: int | None = None) -> Path:
    """Write the model: its header, and a hole for its weights.

    A file of ``size`` bytes is smaller by some kB, a small one by up to 2 %, and never larger;
    without a size, most tensors have four bits a weight, and a projector's tensors sixteen.

    Raises ``NoShapeError``, and ``SizeError`` where no quantization of the model has this size.
    """
    shape = of(name)
    header = _write(name, shape, file, sizes.usual(shape))
    if size is not None:
        _write(name, shape, file, sizes.reaching(shape, size - header))
    return file


def _write(name: str, shape: Shape, file: Path, kinds: sizes.Kinds) -> int:
    """Write the file; the size of its header in bytes."""
    import gguf
    import numpy as np

    writer = gguf.GGUFWriter(file, shape.architecture)
    writer.add_type(shape.kind)
    writer.add_name(f"{name} without its weights")
    describe(writer, shape)
    for tensor, dimensions in shape.tensors.items():
        kind, numpys = kinds[tensor], tuple(reversed(dimensions))  # numpy's first is ggml's last
        count = sizes.nbytes(dimensions, kind)
        writer.add_tensor_info(tensor, numpys, np.dtype(np.float32), count, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    writer.close()
    with file.open("r+b") as stream:
        header = -(-stream.seek(0, 2) // sizes.ALIGNMENT) * sizes.ALIGNMENT
        stream.truncate(header + sizes.total(shape, kinds))
    return header


def describe(writer: gguf.GGUFWriter, shape: Shape) -> None:
    """Add the values of a model and its vocabulary to a file."""
    for key, value in shape.values.items():
        full = f"{shape.architecture}.{key}"
        match value:
            case str():
                writer.add_string(full, value)
            case bool():
                writer.add_bool(full, value)
            case int():
                writer.add_uint32(full, value)
            case float():
                writer.add_float32(full, value)
            case _:
                writer.add_array(full, value)
    if shape.tokenizer is not None:
        tokens.write(writer, shape.tokenizer)
