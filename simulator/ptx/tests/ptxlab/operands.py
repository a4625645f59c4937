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


def near_smallest(op: str, name: str, rng: random.Random) -> tuple[int, ...]:
    """Operands of ``op`` whose result is about the smallest normal number of the format ``name``: how it
    is rounded decides whether ``.ftz`` makes it zero."""
    exponent, mantissa = MANTISSA[name]
    top, one, bias = exponent + mantissa, 1 << mantissa, (1 << exponent - 1) - 1
    least = 1 - bias

    def code(e: int, significand: int) -> int:
        return rng.getrandbits(1) << top | ((e + bias) << mantissa) + significand - one

    if op == "cvt":  # to f32
        return (code(-126, one) - rng.getrandbits(mantissa - 22),)
    if op == "rcp":
        return (code(-least, one + rng.choice([0, 1, 2, rng.randrange(one)])),)
    if op == "div":
        significand, e = one + rng.choice([0, rng.randrange(one)]), rng.randint(1, bias)
        return code(e + least, significand) - rng.randint(0, 2), code(e, significand)
    if op == "fma" and rng.getrandbits(1):
        # c is the smallest normal number, and a * b takes four units of it off, or less.
        total = least - mantissa - rng.randint(0, 4)
        e = rng.randint(least, total - least)
        a, b = (code(e, rng.randrange(one, 2 * one)) for e in (e, total - e))
        return a, b, (~(a ^ b) >> top & 1) << top | one
    first = rng.randrange(one, 2 * one)
    second = min(2 * one * one // first + rng.randint(0, 1), 2 * one - 1)
    e = rng.randint(least, -1)
    product = code(e, first), code(least - 1 - e, second)
    return (*product, rng.getrandbits(1) << top) if op == "fma" else product


def inputs(case: Case) -> list[list[int]]:
    rng = random.Random(zlib.crc32(case.instruction.encode()))
    lists = [operands(kind, rng) for kind in case.kinds]
    lists = kernels.mixed(lists, rng, 2 * COUNT) if len(lists) > 1 else lists
    op, *modifiers = case.instruction.split()[0].split(".")
    name = case.kinds[0]
    if "ftz" in modifiers and op in ("mul", "fma", "div", "rcp", "cvt") and name in MANTISSA:
        rows = [near_smallest(op, name, rng) for _ in range(COUNT // 4)]
        lists = [[*old, *new] for old, new in zip(lists, zip(*rows, strict=True), strict=True)]
    return lists
