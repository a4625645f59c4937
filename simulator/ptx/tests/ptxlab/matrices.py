"""Products of small matrices by ``mma.sync``: kernels, random operands, exact results."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ptxlab import references

Array = np.ndarray[Any, Any]


def small_table(kind: str) -> Array:
    """The value of each code of 8 bits (or 4)."""
    sign = 1 << sum(references.SMALL[kind])
    return np.array(
        [
            (-1 if c & sign else 1) * float(references.small_value(kind, c & (sign - 1)))
            for c in range(2 * sign)
        ]
    )


class Elements:
    """Random elements of a type: codes as they are packed, and values."""

    def __init__(self, kind: str, shape: tuple[int, int], rng: np.random.Generator) -> None:
        self.kind = kind
        if kind in ("f16", "bf16", "tf32"):
            value = rng.standard_normal(shape).astype(np.float32)
            if kind == "f16":
                self.codes = value.astype(np.float16).view(np.uint16).astype(np.uint64)
                value = value.astype(np.float16).astype(np.float32)
            else:
                keep = 16 if kind == "bf16" else 13
                code = value.view(np.uint32) >> keep << keep
                self.codes = (code >> (16 if kind == "bf16" else 0)).astype(np.uint64)
                value = code.view(np.float32)
            self.values = value.astype(np.float64)
        elif kind in ("s8", "u8"):
            self.codes = rng.integers(0, 256, shape).astype(np.uint64)
            self.values = (self.codes.astype(np.int8) if kind == "s8" else self.codes).astype(
                np.float64
            )
        else:
            table = small_table(kind)
            codes = rng.integers(0, len(table), shape)
            if kind == "e4m3":
                codes = np.where(codes & 0x7F == 0x7F, 0, codes)
            if kind == "e5m2":
                codes = np.where(codes & 0x7F >= 0x7C, 0, codes)
            self.values = table[codes]
            self.codes = codes.astype(np.uint64)


BITS = {"f16": 16, "bf16": 16, "tf32": 32, "s8": 8, "u8": 8, "e4m3": 8, "e5m2": 8, "e2m1": 4}


def pack(codes: Array, rows: int, depth: int, bits: int) -> Array:
    """Words [register][lane] of a matrix [row][k]: rows g and g + 8, k by (lane mod 4) and register."""
    per = 32 // bits
    registers = rows * depth // 32 // per
    halves = max(registers * 8 // rows, 1)
    words = np.zeros((registers, 32), np.uint64)
    for register in range(registers):
        row_half = register % (rows // 8)
        k_half = register // (rows // 8)
        for lane in range(32):
            row = lane // 4 + 8 * row_half
            for e in range(per):
                k = (lane % 4) * per + e + k_half * (depth // halves)
                words[register, lane] |= codes[row, k] << np.uint64(e * bits)
    return words.astype(np.uint32)


SHAPES = [
    ("m16n8k16", "f16", "f16", "f32", ""), ("m16n8k8", "f16", "f16", "f32", ""), ("m16n8k16", "f16", "f16", "f16", ""),
    ("m16n8k8", "f16", "f16", "f16", ""), ("m16n8k16", "bf16", "bf16", "f32", ""), ("m16n8k8", "bf16", "bf16", "f32", ""),
    ("m16n8k8", "tf32", "tf32", "f32", ""), ("m16n8k4", "tf32", "tf32", "f32", ""), ("m16n8k32", "s8", "s8", "s32", ""),
    ("m16n8k16", "s8", "s8", "s32", ""), ("m16n8k32", "u8", "s8", "s32", ""), ("m8n8k16", "s8", "s8", "s32", ""),
    ("m16n8k32", "s8", "s8", "s32", ".satfinite"), ("m16n8k32", "e4m3", "e5m2", "f32", ".kind::f8f6f4"),
    ("m16n8k32", "e4m3", "e4m3", "f32", ""), ("m16n8k64", "e2m1", "e2m1", "f32", "mxf4"), ("m16n8k64", "e2m1", "e2m1", "f32", "nvf4"),
    ("m16n8k64", "e2m1", "e2m1", "f32", "nvf4-2X"), ("m16n8k32", "e4m3", "e5m2", "f32", "mxf8"),
]  # fmt: skip


@dataclass(frozen=True)
class Product:
    """A kernel ``k`` of one warp (its PTX without a header), and what it must give."""

    opcode: str
    text: str
    start: Array
    """Words of C [register][lane]; D has as many."""
    sources: tuple[Array | None, ...]
    """The kernel's arguments are D, C, and these."""
    exact: Array
    bound: Array
    """How far D may be off: README, K + 1 roundings of single precision, then one to the result's
    format; 0 for integers."""
    rows: int
    kind: str

    def read(self, words: Array) -> Array:
        """The matrix D from its words."""
        return unpack_c(words, self.rows, self.kind)


def product(shape: str, a: str, b: str, c: str, special: str, seed: int) -> Product:
    """A row of ``SHAPES`` with random operands."""
    rng = np.random.default_rng(seed)
    m, depth = int(shape[1:].split("n")[0]), int(shape.split("k")[1])
    left, right = Elements(a, (m, depth), rng), Elements(b, (8, depth), rng)
    words = [pack(left.codes, m, depth, BITS[a]), pack(right.codes, 8, depth, BITS[b])]
    start = (
        rng.integers(-(2**31), 2**31, (m, 8))
        if c == "s32"
        else rng.standard_normal((m, 8)).astype(c.replace("f", "float"))
    )
    av, bv = left.values, right.values
    scale_text, moves, scales = "", "", []
    opcode = f"mma.sync.aligned.{shape}.row.col{special if special == '.satfinite' else ''}.{c}.{a}.{b}.{c}"
    if special == ".kind::f8f6f4":
        opcode = f"mma.sync.aligned.kind::f8f6f4.{shape}.row.col.{c}.{a}.{b}.{c}"
    if special and special[0] != ".":
        av, bv, scale_text, moves, scales, opcode = scaled(special, seed, av, bv, rng, shape, a, b)
    c_words = pack_c(start, c)
    sources = (*words, np.stack(scales) if scales else None)
    text = _text(
        opcode, scale_text, moves, [c_words, *(each for each in sources if each is not None)]
    )
    exact = av @ bv.T + start.astype(np.float64)
    magnitude = np.abs(av) @ np.abs(bv).T + np.abs(start.astype(np.float64))
    bound = magnitude * (depth + 1) * 2.0**-24 + (
        np.abs(exact) * 2.0**-11 + 2.0**-25 if c == "f16" else 0
    )
    if c == "s32":
        whole = av.astype(np.int64) @ bv.astype(np.int64).T + start
        exact = np.clip(whole, -(2**31), 2**31 - 1) if special else whole.astype(np.int32)
        bound = np.zeros_like(exact)
    return Product(opcode, text, c_words, sources, exact, bound, m, c)


def _text(opcode: str, scale_text: str, moves: str, blocks: list[Array]) -> str:
    text = ".visible .entry k(.param .u64 p0, .param .u64 p1, .param .u64 p2, .param .u64 p3, .param .u64 p4) {\n"
    text += ".reg .b16 %h<4>; .reg .b32 %r<64>; .reg .b64 %d<8>; mov.u32 %r0, %laneid; mul.wide.u32 %d1, %r0, 4;\n"
    groups, at = [], 1
    for index, block in enumerate(blocks):
        text += f"ld.param.u64 %d0, [p{index + 1}]; add.u64 %d0, %d0, %d1;"
        names = [f"%r{at + i}" for i in range(len(block))]
        at += len(block)
        groups.append(names)
        text += (
            "".join(f"ld.global.u32 {name}, [%d0+{128 * i}];" for i, name in enumerate(names))
            + "\n"
        )
    braces = ["{" + ",".join(names) + "}" for names in groups]
    if scale_text:
        scale_text = scale_text.format(*groups[3])
    text += f"{moves}{opcode} {braces[0]}, {braces[1]}, {braces[2]}, {braces[0]}{scale_text};\n"
    text += "ld.param.u64 %d0, [p0]; add.u64 %d0, %d0, %d1;"
    return (
        text
        + "".join(f"st.global.u32 [%d0+{128 * i}], {name};" for i, name in enumerate(groups[0]))
        + "ret; }"
    )


def scaled(
    kind: str, seed: int, av: Array, bv: Array, rng: np.random.Generator, shape: str, a: str, b: str
) -> Any:
    """Values times their scales; the scales of each row in lanes that the selectors name."""
    count = {"mxf4": 2, "nvf4": 4, "nvf4-2X": 2, "mxf8": 1}[kind]
    e4m3 = kind == "nvf4"
    codes = [
        rng.integers(0x20, 0x50, (n, count)) if e4m3 else rng.integers(120, 134, (n, count))
        for n in (16, 8)
    ]
    values = [small_table("e4m3")[c] if e4m3 else 2.0 ** (c - 127) for c in codes]
    depth = av.shape[1]
    av = av * np.repeat(values[0], depth // count, axis=1)
    bv = bv * np.repeat(values[1], depth // count, axis=1)
    byte = {1: seed % 4, 2: 2 * (seed % 2), 4: 0}[count]
    thread_a, thread_b = seed % 2, (seed + 1) % 4
    scale_a, scale_b = (
        rng.integers(0, 2**32, 32, dtype=np.uint32),
        rng.integers(0, 2**32, 32, dtype=np.uint32),
    )
    for row in range(16):
        lane = 4 * (row % 8) + 2 * thread_a + row // 8
        scale_a[lane] = put(int(scale_a[lane]), codes[0][row], byte)
    for column in range(8):
        lane = 4 * column + thread_b
        scale_b[lane] = put(int(scale_b[lane]), codes[1][column], byte)
    names = {
        "mxf4": ("mxf4", "2X", "ue8m0"),
        "nvf4": ("mxf4nvf4", "4X", "ue4m3"),
        "nvf4-2X": ("mxf4nvf4", "2X", "ue8m0"),
        "mxf8": ("mxf8f6f4", "1X", "ue8m0"),
    }
    name, vector, scale = names[kind]
    opcode = f"mma.sync.aligned.kind::{name}.block_scale.scale_vec::{vector}.{shape}.row.col.f32.{a}.{b}.f32.{scale}"
    if seed % 2:
        # As CUTLASS: selectors in registers, braces around the scales.
        moves = f"mov.u16 %h1, {byte}; mov.u16 %h2, {thread_a}; mov.u16 %h3, {thread_b};"
        text = ", {{{}}}, {{%h1, %h2}}, {{{}}}, {{%h1, %h3}}"
    else:
        moves = ""
        text = f", {{}}, {{{{{byte}, {thread_a}}}}}, {{}}, {{{{{byte}, {thread_b}}}}}"
    return av, bv, text, moves, [scale_a, scale_b], opcode


def put(word: int, codes: Array, byte: int) -> int:
    for i, code in enumerate(codes):
        shift = 8 * (byte + i)
        word = word & ~(255 << shift) | int(code) << shift
    return word


def pack_c(values: Array, kind: str) -> Array:
    """Words [register][lane]: row lane / 4 (+ 8), columns 2 (lane mod 4) and the next."""
    rows = values.shape[0]
    flat = []
    for half in range(rows // 8):
        block = values[8 * half : 8 * half + 8].reshape(8, 4, 2)
        if kind == "f16":
            flat.append(np.ascontiguousarray(block).view(np.uint32).reshape(32))
        else:
            for i in range(2):
                column = np.ascontiguousarray(block[:, :, i]).reshape(32)
                flat.append(
                    column.astype(np.int32).view(np.uint32)
                    if kind == "s32"
                    else column.view(np.uint32)
                )
    return np.stack(flat)


def unpack_c(words: Array, rows: int, kind: str) -> Array:
    out = np.zeros((rows, 8))
    for half in range(rows // 8):
        if kind == "f16":
            out[8 * half : 8 * half + 8] = (
                words[half].view(np.float16).astype(np.float64).reshape(8, 8)
            )
        else:
            for i in range(2):
                column = words[2 * half + i].view(np.int32 if kind == "s32" else np.float32)
                out[8 * half : 8 * half + 8].reshape(8, 4, 2)[:, :, i] = column.reshape(8, 4)
    return out
