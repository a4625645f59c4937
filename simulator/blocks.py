"""Random blocks of a quantization, and the values that gguf-py reads from them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from gguf import GGMLQuantizationType

Array = np.ndarray[Any, Any]

ROWS = 32  # one warp
DEPTH = 4096  # values of a row
LEAST, MOST = 0.1, 10.0
"""The largest value of each block: random bytes make scales of all sizes, also infinite ones."""
AT_ONCE = 4096  # blocks
INTERMEDIATE = {"Q8_1", "Q8_K"}
"""Formats of the other operand: no model has them."""
Q8_1_VALUES, Q8_1_BYTES = 32, 36


@dataclass(frozen=True, slots=True)
class BlockCase:
    """Rows of blocks, a column in blocks of q8_1, and their products."""

    rows: Array
    """Bytes."""
    column: Array
    """Bytes."""
    blocks: int
    """Number of blocks in a row."""
    exact: Array
    """One number for each row, computed in double precision."""


def known() -> dict[str, GGMLQuantizationType]:
    """gguf-py's quantizations in blocks, by the names that ggml's sources give them (``q4_K``)."""
    from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

    found = {each for each, (values, _) in GGML_QUANT_SIZES.items() if values > 1}
    return {
        re.sub(r"_k$", "_K", each.name.lower()): each
        for each in GGMLQuantizationType
        if each in found and each.name not in INTERMEDIATE
    }


def random_blocks(
    kind: GGMLQuantizationType, count: int, rng: np.random.Generator
) -> tuple[Array, Array]:
    """Random blocks (count x bytes), and their values (count x values, in double precision).

    Raises ``NotImplementedError`` where gguf-py cannot read them.
    """
    from gguf import GGML_QUANT_SIZES
    from gguf.quants import dequantize

    _, size = GGML_QUANT_SIZES[kind]
    kept: list[Array] = []
    values: list[Array] = []
    while sum(map(len, kept)) < count:
        blocks = rng.integers(0, 256, (AT_ONCE, size), dtype=np.uint8)
        if kind.name == "NVFP4":  # four scales without a sign (ue4m3)
            blocks[:, :4] &= 0x7F
        with np.errstate(all="ignore"):
            found = dequantize(blocks, kind)
            largest = np.abs(found).max(axis=1)
            good = (largest > LEAST) & (largest < MOST)
        kept.append(blocks[good])
        values.append(found[good])
    return np.concatenate(kept)[:count], np.concatenate(values)[:count].astype(np.float64)


def q8_1(column: Array) -> tuple[Array, Array]:
    """A column as blocks of q8_1 (bytes), and the values that they mean.

    A block has a scale and the scaled sum in half precision, then 32 bytes (ggml-common.h).
    """
    groups = column.reshape(-1, Q8_1_VALUES)
    scale = np.abs(groups).max(axis=1) / 127
    quants = np.rint(groups / scale[:, None]).astype(np.int8)
    half = scale.astype(np.float16)
    sums = (half.astype(np.float32) * quants.sum(axis=1)).astype(np.float16)
    blocks = np.empty((len(groups), Q8_1_BYTES), np.uint8)
    blocks[:, 0:2] = half.view(np.uint8).reshape(-1, 2)
    blocks[:, 2:4] = sums.view(np.uint8).reshape(-1, 2)
    blocks[:, 4:] = quants.view(np.uint8)
    return blocks, (quants * half.astype(np.float64)[:, None]).reshape(-1)


def case_of(name: str) -> BlockCase:
    """The case of a quantization, the same in every run; raises like ``random_blocks``."""
    kind = known()[name]
    rng = np.random.default_rng(1)
    per_block = _values(kind)
    blocks = DEPTH // per_block
    rows, values = random_blocks(kind, ROWS * blocks, rng)
    column, means = q8_1(rng.standard_normal(DEPTH).astype(np.float32))
    return BlockCase(rows, column, blocks, values.reshape(ROWS, DEPTH) @ means)


def _values(kind: GGMLQuantizationType) -> int:
    from gguf import GGML_QUANT_SIZES

    return int(GGML_QUANT_SIZES[kind][0])


def nmse(got: Array, exact: Array) -> float:
    """The normalized mean square error, as ggml's tests/test-backend-ops.cpp computes it."""
    wide = got.astype(np.float64)
    return float(((wide - exact) ** 2).sum() / (exact**2).sum())
