"""A product of rows of numbers of four bits with a column of bytes, as quantized models have it.

A block has 32 numbers: a scale in half precision, and 16 bytes; byte i has the numbers i and i + 16,
each plus 8 (ggml's q4_0).  The column's blocks have a scale, two bytes of padding, and 32 bytes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]

ROWS, BLOCKS = 32, 24
# A thread has a row.  A block's sum is exact in 32 bits; it is scaled and added in single precision.
TEXT = """.visible .entry k(.param .u64 p0, .param .u64 p1, .param .u64 p2, .param .u64 p3) {
  .reg .pred %p<2>; .reg .b16 %h<4>; .reg .b32 %r<24>; .reg .f32 %f<8>; .reg .b64 %d<8>;
  ld.param.u64 %d0, [p0]; ld.param.u64 %d1, [p2]; ld.param.u64 %d2, [p3];
  mov.u32 %r0, %tid.x; mul.wide.u32 %d3, %r0, 4; add.u64 %d0, %d0, %d3;
  mul.wide.u32 %d3, %r0, @ROW@; add.u64 %d1, %d1, %d3;
  mov.f32 %f0, 0f00000000; mov.u32 %r1, 0;
$block:
  ld.global.u16 %h0, [%d1]; cvt.f32.f16 %f1, %h0; ld.global.u16 %h0, [%d2]; cvt.f32.f16 %f2, %h0;
  mov.u32 %r2, 0; mov.u32 %r3, 0;
@WORDS@
  mov.u32 %r5, 8; mul.lo.s32 %r3, %r3, %r5; sub.s32 %r2, %r2, %r3; cvt.rn.f32.s32 %f3, %r2;
  mul.rn.f32 %f1, %f1, %f2; fma.rn.f32 %f0, %f1, %f3, %f0;
  add.u64 %d1, %d1, 18; add.u64 %d2, %d2, 36; add.u32 %r1, %r1, 1;
  setp.lt.u32 %p0, %r1, @BLOCKS@; @%p0 bra $block;
  st.global.f32 [%d0], %f0; ret; }
"""
WORD = """\
  ld.global.u16 %h1, [%d1+{low}]; ld.global.u16 %h2, [%d1+{high}]; mov.b32 %r4, {{%h1, %h2}};
  and.b32 %r6, %r4, 0x0f0f0f0f; shr.u32 %r7, %r4, 4; and.b32 %r7, %r7, 0x0f0f0f0f;
  ld.global.u32 %r8, [%d2+{first}]; ld.global.u32 %r9, [%d2+{second}];
  dp4a.u32.s32 %r2, %r6, %r8, %r2; dp4a.u32.s32 %r2, %r7, %r9, %r2;
  dp4a.u32.s32 %r3, 0x01010101, %r8, %r3; dp4a.u32.s32 %r3, 0x01010101, %r9, %r3;"""
WORDS = "\n".join(
    WORD.format(low=2 + 4 * i, high=4 + 4 * i, first=4 + 4 * i, second=20 + 4 * i) for i in range(4)
)
TEXT = (
    TEXT.replace("@WORDS@", WORDS)
    .replace("@ROW@", str(18 * BLOCKS))
    .replace("@BLOCKS@", str(BLOCKS))
)


@dataclass(frozen=True)
class Dot:
    """Operands, and what the kernel ``k`` must give; its arguments are the result, a number of its
    elements that it does not read, and ``sources``."""

    sources: tuple[Array, Array]
    """Bytes of the rows, and of the column."""
    exact: Array
    bound: Array
    """How far each sum may be off: a rounding of each scale, and of each addition."""


def case(seed: int) -> Dot:
    """Random rows and a random column."""
    rng = np.random.default_rng(seed)
    scales = rng.uniform(0.01, 2, (ROWS, BLOCKS)).astype(np.float16)
    packed = rng.integers(0, 256, (ROWS, BLOCKS, 16), dtype=np.uint8)
    numbers = np.concatenate([packed & 15, packed >> 4], axis=2).astype(np.int64) - 8
    rows = np.concatenate([scales.view(np.uint8).reshape(ROWS, BLOCKS, 2), packed], axis=2)
    scale = rng.uniform(0.01, 2, BLOCKS).astype(np.float16)
    quants = rng.integers(-127, 128, (BLOCKS, 32)).astype(np.int8)
    column = np.zeros((BLOCKS, 36), np.uint8)
    column[:, :2] = scale.view(np.uint8).reshape(BLOCKS, 2)
    column[:, 4:] = quants.view(np.uint8)
    sums = (numbers * quants.astype(np.int64)).sum(axis=2)
    parts = sums * scales.astype(np.float64) * scale.astype(np.float64)
    bound = 2.0**-24 * (np.abs(parts) * (BLOCKS + 2)).sum(axis=1)
    return Dot((rows, column), parts.sum(axis=1), bound)
