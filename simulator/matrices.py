"""ggml's products of MXFP4 matrices by tensor cores (``mul_mat_q`` in mmq.cuh), on exact operands.

On compute capability 12.0 the columns are rounded to FP4 with block scales, too.  Here they are
made of such values, so that the exact product is known.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from simulator.blocks import known, random_blocks
from simulator.interpreter import Argument
from simulator.tree import Tree

Array = np.ndarray[Any, Any]

TYPE = "mxfp4"
KERNEL, FIXUP = "mul_mat_q", "mul_mat_q_stream_k_fixup"
ROWS, DEPTH = 128, 1024
SHARED = 99 << 10  # bytes: what a block may have on compute capability 12.0
FP4 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])
SCALES = (124, 130)  # exponents with the bias 127 (e8m0)
GROUP = 32  # values of a scale
BLOCK_VALUES, BLOCK_BYTES, BLOCK_SCALES = 256, 144, 16  # block_fp4_mmq
PADDING = 128  # blocks after the columns: tiles are read whole (mmq.cu, "nbytes_src1_q8_1")
SIGNATURE = (
    r"template\s*<(?P<template>[^<>]+)>[^;{{}}]*?__global__\s+void\s+{}\s*\((?P<parameters>[^)]*)\)"
)
NAME = re.compile(r"(\w+)\s*$")
RESULT = "dst"
PARTS, PARTS_READ = "tmp_fixup", "tmp_last_tile"
"""The sums of tiles that blocks share, as the two kernels name them."""
NATIVE = "BLACKWELL_MMA_AVAILABLE"
TEMPLATE = {"type", "mmq_x", "J", "need_check", "fallback"}
"""Names of parameters in trees of 2026: a tile's columns, and whether rows are at the edge."""

PROGRAM = """\
#include "mmq.cuh"

const void * instances[] = {{ {instances} }};
"""


@dataclass(frozen=True, slots=True)
class MatrixShape:
    """A product: its columns, the columns of a tile, and the blocks of the grid.

    Where the blocks do not divide the tiles, two of them share the sums of a tile ("stream-k"), and
    a second kernel adds these.
    """

    columns: int
    tile: int
    blocks: int = 1

    @property
    def label(self) -> str:
        """How tables name it."""
        return f"mmq {TYPE} x{self.columns}"

    @property
    def kernels(self) -> tuple[str, ...]:
        """The kernels that compute it, in order."""
        return (KERNEL,) if self.columns // self.tile % self.blocks == 0 else (KERNEL, FIXUP)


SHAPES = (MatrixShape(8, 8), MatrixShape(128, 128), MatrixShape(16384, 128, 48))
"""The narrowest tile; the widest, which large prompts take; and the prompt of
ggml-org/llama.cpp#19168, ``-ub 16384``, on 48 multiprocessors."""


@dataclass(frozen=True, slots=True)
class Product:
    """Arguments by the names of the kernels' parameters."""

    arguments: Mapping[str, Argument]
    exact: Array


def parameters(tree: Tree) -> tuple[dict[str, list[str]], dict[str, str]]:
    """The names of each kernel's parameters, in order; and why a product is not tried, by label."""
    source = tree.text("mmq.cuh")
    names: dict[str, list[str]] = {}
    whys: dict[str, str] = {}
    for kernel in (KERNEL, FIXUP):
        found = re.search(SIGNATURE.format(kernel), source)
        if found is None or NATIVE not in source:
            whys[kernel] = f"the tree has no {kernel} with {NATIVE}"
            continue
        names[kernel] = [_name(part) for part in found["parameters"].split(",")]
        unknown = sorted({*names[kernel]} - {*product(SHAPES[0]).arguments})
        unknown += sorted({_name(part) for part in found["template"].split(",")} - TEMPLATE)
        if unknown:
            whys[kernel] = f"{kernel} has parameters that are not known: {', '.join(unknown)}"
    lacking = {
        shape.label: whys[kernel] for shape in SHAPES for kernel in shape.kernels if kernel in whys
    }
    return names, lacking


def _name(declaration: str) -> str:
    found = NAME.search(declaration)
    return found[1] if found else declaration.strip()


def program(shapes: Iterable[MatrixShape]) -> str:
    """The CUDA source with the kernels of products."""
    kernels = (
        f"(const void *) {kernel}<GGML_TYPE_{TYPE.upper()}, {shape.tile}, false>"
        for shape in shapes
        for kernel in shape.kernels
    )
    return PROGRAM.format(instances=", ".join(dict.fromkeys(kernels)))


def mangled(ptx: str, kernel: str, tile: int) -> str:
    """The mangled name of a kernel in the text of its module; empty where there is none."""
    pattern = rf"\.entry (\w*\d{kernel}IL9ggml_type\d+ELi{tile}ELb0E\w*)\("
    found = re.search(pattern, ptx)
    return found[1] if found else ""


def threads(ptx: str, name: str) -> int:
    """The threads of a block of a kernel, which ``__launch_bounds__`` says."""
    found = re.search(rf"\.entry {name}\(.*?\.maxntid (\d+)", ptx, re.DOTALL)
    return int(found[1]) if found else 0


def product(shape: MatrixShape) -> Product:
    """Random operands.  A single block takes the tiles one after the other."""
    width = shape.columns
    rng = np.random.default_rng(2)
    kind = known()[TYPE]
    blocks, values = random_blocks(kind, ROWS * DEPTH // GROUP, rng)
    weights = values.reshape(ROWS, DEPTH)
    columns, packed = _columns(width, rng)
    stride, words = DEPTH // GROUP, width * DEPTH // BLOCK_VALUES * BLOCK_BYTES // 4
    one = _divisor(1)
    arguments: dict[str, Argument] = {
        "x": blocks,
        "y": packed,
        "ids_dst": None,
        "expert_bounds": None,
        RESULT: np.zeros(width * ROWS, np.float32),
        PARTS: None,
        PARTS_READ: None,
        "blocks_per_ne00": _divisor(stride),
        "nrows_x": ROWS,
        "ncols_dst": width,
        "stride_row_x": stride,
        "ncols_y": width,
        "stride_col_dst": ROWS,
        "channel_ratio": one,
        "nchannels_y": one,
        "stride_channel_x": ROWS * stride,
        "stride_channel_y": words,
        "stride_channel_dst": ROWS * width,
        "sample_ratio": one,
        "nsamples_y": one,
        "stride_sample_x": ROWS * stride,
        "stride_sample_y": words,
        "stride_sample_dst": ROWS * width,
        "ntx": _divisor(width // shape.tile),
    }
    if FIXUP in shape.kernels:
        arguments[PARTS] = np.zeros(shape.blocks * shape.tile * ROWS, np.float32)
    return Product(arguments, columns @ weights.T)


def _columns(width: int, rng: np.random.Generator) -> tuple[Array, Array]:
    """Random columns (width x DEPTH), and the same as blocks of ``block_fp4_mmq``.

    A block has 256 values of a column: the scales of 8 groups, two to a word of 4 bytes, then 16
    bytes for each group.  A byte has the values i and i + 16.  The first blocks of all columns
    come first.
    """
    codes = rng.integers(0, 16, (width, DEPTH // GROUP, GROUP), dtype=np.uint8)
    scales = rng.integers(*SCALES, (width, DEPTH // GROUP), dtype=np.uint8)
    values = FP4[codes] * 2.0 ** (scales[..., None].astype(np.float64) - 127)
    many = DEPTH // BLOCK_VALUES
    blocks = np.zeros((many, width, BLOCK_BYTES), np.uint8)
    words = np.zeros((width, many, 4, 4), np.uint8)
    words[..., :2] = scales.reshape(width, many, 4, 2)
    blocks[:, :, :BLOCK_SCALES] = words.reshape(width, many, BLOCK_SCALES).transpose(1, 0, 2)
    half = GROUP // 2
    nibbles = codes[..., :half] | codes[..., half:] << 4
    blocks[:, :, BLOCK_SCALES:] = nibbles.reshape(width, many, -1).transpose(1, 0, 2)
    padding = np.zeros(PADDING * BLOCK_BYTES, np.uint8)
    return values.reshape(width, DEPTH), np.concatenate([blocks.reshape(-1), padding])


def _divisor(number: int) -> bytes:
    """``uint3`` of ``init_fastdiv_values`` (common.cuh): multiplier, shift, and the number."""
    shift = (number - 1).bit_length()
    multiplier = ((1 << 32) * ((1 << shift) - number)) // number + 1
    return struct.pack("<3I", multiplier & 0xFFFFFFFF, shift, number)
