"""Small kernels around one instruction, and the operands to try it on."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

HEADER = ".version 8.8\n.target sm_120a\n.address_size 64\n"
PREFIX = {"pred": "%p", 16: "%h", 32: "%r", 64: "%d", 128: "%q"}
LETTER = {8: "u8", 16: "b16", 32: "b32", 64: "b64"}


@dataclass(frozen=True)
class Shape:
    """Bits in memory and in the register of the result and of each source."""

    result: int
    sources: tuple[int, ...]


def register_bits(bits: int) -> int:
    return max(bits, 16)


def kernel(name: str, instruction: str, shape: Shape) -> str:
    """A kernel that runs ``instruction`` (with {d}, {a}, {b}, {c}) on element i of its arrays."""
    count = len(shape.sources)
    lines = [f".visible .entry {name}("]
    lines.append(", ".join(f".param .u64 p{i}" for i in range(count + 2)) + ")\n{")
    lines.append(".reg .pred %p<8>; .reg .b16 %h<16>; .reg .b32 %r<16>; .reg .b64 %d<24>;")
    lines.append("mov.u32 %r0, %ctaid.x; mov.u32 %r1, %ntid.x; mov.u32 %r2, %tid.x;")
    lines.append("mad.lo.u32 %r0, %r0, %r1, %r2; ld.param.u64 %d0, [p0];")
    lines.append(
        "cvt.u64.u32 %d1, %r0; ld.param.u64 %d2, [p1]; setp.ge.u64 %p0, %d1, %d2; @%p0 ret;"
    )
    names = {}
    for i, bits in enumerate(shape.sources):
        register = PREFIX[register_bits(bits)] + str(8 + i)
        lines.append(f"ld.param.u64 %d3, [p{i + 2}]; mad.lo.u64 %d3, %d1, {bits // 8}, %d3;")
        lines.append(f"ld.global.{LETTER[bits]} {register}, [%d3];")
        names["abcdef"[i]] = register
    result = PREFIX[register_bits(shape.result)] + "4"
    lines.append(instruction.format(d=result, p="%p4", q="%p5", **names))
    lines.append(f"mad.lo.u64 %d0, %d1, {shape.result // 8}, %d0;")
    lines.append(f"st.global.{LETTER[shape.result]} [%d0], {result};\nret;\n}}\n")
    return "\n".join(lines)


INTEGERS = [
    0,
    1,
    2,
    3,
    7,
    8,
    15,
    16,
    31,
    32,
    33,
    63,
    64,
    100,
    127,
    128,
    255,
    256,
    -1,
    -2,
    -127,
    -128,
]


def integers(bits: int, count: int, rng: random.Random, small: bool = False) -> list[int]:
    """Corner cases first, then random numbers of random widths."""
    mask = (1 << bits) - 1
    edges = [
        *INTEGERS,
        1 << (bits - 1),
        (1 << (bits - 1)) - 1,
        mask,
        0x5555555555555555,
        1 << bits // 2,
    ]
    out = [v & mask for v in edges]
    while len(out) < count:
        width = 8 if small else rng.randint(1, bits)
        out.append((rng.getrandbits(width) * (1 if small else rng.choice([1, 1, -1]))) & mask)
    return out


def floats(
    exponent: int, mantissa: int, count: int, rng: random.Random, around: int = 12
) -> list[int]:
    """Zeros, infinities, NaN, subnormal and other edges; then random ones, mostly of like size."""
    bits = 1 + exponent + mantissa
    sign, top = 1 << (bits - 1), (1 << exponent) - 1
    bias = (1 << (exponent - 1)) - 1
    one = bias << mantissa
    edges = [0, 1, 2, (1 << mantissa) - 1, 1 << mantissa, (1 << mantissa) + 1, one - 1, one, one + 1,
             one + (1 << mantissa), one - (1 << mantissa), one + (1 << (mantissa - 1)),
             (top << mantissa) - 1, top << mantissa, (top << mantissa) | 1 << (mantissa - 1),
             (bias + mantissa) << mantissa, (bias + mantissa + 1) << mantissa]  # fmt: skip
    out = [e | s for e in edges for s in (0, sign)]
    while len(out) < count:
        choice = rng.random()
        if choice < 0.2:
            out.append(rng.getrandbits(bits))
        else:
            e = min(max(bias + rng.randint(-around, around), 0), top - 1)
            m = rng.getrandbits(mantissa)
            if choice < 0.5:
                m &= rng.choice([0, -1 << (mantissa // 2), -1 << max(mantissa - 3, 0)])
            out.append(
                (rng.getrandbits(1) << (bits - 1)) | e << mantissa | (m & ((1 << mantissa) - 1))
            )
    return out


def mixed(lists: Sequence[list[int]], rng: random.Random, count: int) -> list[list[int]]:
    """Tuples of operands: edges against edges in part, all else shuffled."""
    out = [list(values) for values in lists]
    for values in out[1:]:
        rng.shuffle(values)
    while len(out[0]) < count:
        for values, source in zip(out, lists, strict=True):
            values.append(rng.choice(source[:34]))
    return [values[:count] for values in out]
