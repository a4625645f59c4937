"""Operands for each case: corner cases and random ones, the same at every run."""

from __future__ import annotations

import random
import zlib

import numpy as np

from ptxlab import kernels, soft
from ptxlab.references import Case

COUNT = 512
TYPES = {16: np.uint16, 32: np.uint32, 64: np.uint64, 8: np.uint8}
MANTISSA = {"f16": (5, 10), "bf16": (8, 7), "f32": (8, 23), "f64": (11, 52)}


def operands(kind: str, rng: random.Random) -> list[int]:
    """COUNT operands of a kind: i32, f32, small (shifts), near32 (often equal), wide-f32, ..."""
    if kind == "small":
        return kernels.integers(32, COUNT, rng, small=True)
    if kind == "bit":
        return [rng.getrandbits(1) for _ in range(COUNT)]
    if kind.startswith("near"):
        bits = int(kind[4:])
        return [
            (rng.choice([0, 1 << (bits - 1)]) + rng.randint(-3, 3)) & (1 << bits) - 1
            for _ in range(COUNT)
        ]
    if kind.startswith("code-"):
        return [rng.getrandbits(16) for _ in range(COUNT)]
    if kind[0] == "i":
        return kernels.integers(int(kind[1:]), COUNT, rng)
    purpose, _, name = kind.rpartition("-")
    exponent, mantissa = MANTISSA[name]
    around = {
        "": 12,
        "wide": 70 if exponent > 5 else 14,
        "small": 12,
        "number": 20,
        "positive": 100,
    }[purpose]
    made = kernels.floats(exponent, mantissa, COUNT, rng, around)
    if purpose in ("number", "positive"):
        made = [v for v in made if soft.F32.decode(v).kind != soft.NAN]
        made += made[: COUNT - len(made)]
    if purpose == "positive":
        made = [v & 0x7FFFFFFF for v in made]
    return made[:COUNT]


def inputs(case: Case) -> list[list[int]]:
    rng = random.Random(zlib.crc32(case.instruction.encode()))
    lists = [operands(kind, rng) for kind in case.kinds]
    return kernels.mixed(lists, rng, 2 * COUNT) if len(lists) > 1 else lists
