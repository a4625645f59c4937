"""Models by their shape: GGUF files with the tensors of real models, and holes for the weights.

An engine that loads one allocates what it allocates for the model itself.  Figures come from the
models' config.json; each module names its sources.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from builder.models.shapes import dflash, gemma4, projector, qwen, sizes, tokens
from builder.models.shapes.shape import Shape

if TYPE_CHECKING:
    import gguf

SHAPES: Mapping[str, Callable[[], Shape]] = {
    "qwen3-0.6b": lambda: qwen.shape(qwen.QWEN3_06B),
    "qwen3.5-0.8b": lambda: qwen.shape(qwen.QWEN35_08B),
    "qwen3.6-27b": lambda: qwen.shape(qwen.QWEN36_27B),
    "qwen3.6-27b-mtp": lambda: qwen.shape(qwen.with_mtp(qwen.QWEN36_27B)),
    "qwen3.6-27b-dflash": lambda: dflash.shape(dflash.QWEN36_27B),
    "qwen3.6-27b-dflash-draft": lambda: dflash.forks_shape(dflash.QWEN36_27B),
    "qwen3.6-27b-mmproj": lambda: projector.shape(projector.QWEN36_27B),
    "qwen3.6-35b-a3b": lambda: qwen.shape(qwen.QWEN36_35B_A3B),
    "qwen3.6-35b-a3b-mtp": lambda: qwen.shape(qwen.with_mtp(qwen.QWEN36_35B_A3B)),
    "qwen3.6-35b-a3b-dflash": lambda: dflash.shape(dflash.QWEN36_35B_A3B),
    "qwen3.6-35b-a3b-mmproj": lambda: projector.shape(projector.QWEN36_35B_A3B),
    "gemma-4-e2b": lambda: gemma4.shape(gemma4.E2B),
    "gemma-4-e2b-assistant": lambda: gemma4.assistant(gemma4.E2B_ASSISTANT, gemma4.E2B),
    "gemma-4-e2b-atomic": lambda: gemma4.atomic_assistant(gemma4.E2B_ASSISTANT, gemma4.E2B),
    "gemma-4-e4b": lambda: gemma4.shape(gemma4.E4B),
    "gemma-4-e4b-assistant": lambda: gemma4.assistant(gemma4.E4B_ASSISTANT, gemma4.E4B),
    "gemma-4-26b-a4b": lambda: gemma4.shape(gemma4.A4B),
    "gemma-4-26b-a4b-assistant": lambda: gemma4.assistant(gemma4.A4B_ASSISTANT, gemma4.A4B),
    "gemma-4-26b-a4b-atomic": lambda: gemma4.atomic_assistant(gemma4.A4B_ASSISTANT, gemma4.A4B),
}
"""Every shape by its name.  A *-dflash-draft* and an *-atomic* are what forks of llama.cpp read."""

PUBLISHED: Mapping[str, str] = {
    "unsloth/Qwen3.5-0.8B-GGUF": "qwen3.5-0.8b",
    "unsloth/Qwen3.6-27B-GGUF": "qwen3.6-27b",
    "unsloth/Qwen3.6-27B-MTP-GGUF": "qwen3.6-27b-mtp",
    "havenoammo/Qwen3.6-27B-MTP-UD-GGUF": "qwen3.6-27b-mtp",
    "spiritbuun/Qwen3.6-27B-DFlash-GGUF": "qwen3.6-27b-dflash-draft",
    "unsloth/Qwen3.6-35B-A3B-GGUF": "qwen3.6-35b-a3b",
    "unsloth/Qwen3.6-35B-A3B-MTP-GGUF": "qwen3.6-35b-a3b-mtp",
    "fraQtl/Qwen3.6-35B-A3B-Hi-Fi-MTP-runtime": "qwen3.6-35b-a3b-mtp",
    "z-lab/Qwen3.6-35B-A3B-DFlash": "qwen3.6-35b-a3b-dflash",
    "unsloth/gemma-4-E2B-it-GGUF": "gemma-4-e2b",
    "AtomicChat/gemma-4-E2B-it-assistant-GGUF": "gemma-4-e2b-atomic",
    "unsloth/gemma-4-26B-A4B-it-GGUF": "gemma-4-26b-a4b",
    "AtomicChat/gemma-4-26B-A4B-it-assistant-GGUF": "gemma-4-26b-a4b-atomic",
}
"""The shape of the models of a repository of the Hugging Face Hub."""


class NoShapeError(ValueError):
    """There is no shape of a name; the text names the nearest one."""


def of(name: str) -> Shape:
    """The shape of this name; raises ``NoShapeError``."""
    if (made := SHAPES.get(name)) is not None:
        return made()
    near = difflib.get_close_matches(name, SHAPES, 1)
    raise NoShapeError(f"no shape is named {name}{f'; did you mean {near[0]}?' if near else ''}")


def write(name: str, file: Path, size: int | None = None) -> Path:
    """Write the model: its header, and a hole for its weights.

    A file of ``size`` bytes is smaller by some kB, a small one by up to 2 %, and never larger;
    without a size, most tensors have four bits a weight, and those of a projector sixteen.

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
    _describe(writer, shape)
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


def _describe(writer: gguf.GGUFWriter, shape: Shape) -> None:
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
                writer.add_array(full, list(value))
    if shape.tokenizer is not None:
        tokens.write(writer, shape.tokenizer)
