"""Kernels of a real tree of ggml, run by the interpreter, against gguf-py and numpy.

Opt-in: needs a tree, an nvcc for CUDA 13 and some minutes.

    python simulator/ptx/real/ggml.py --tree llama.cpp/ggml --nvcc /usr/local/cuda/bin/nvcc --work /tmp/ptx
    python simulator/ptx/real/ggml.py ... --only vec_dot
    python simulator/ptx/real/ggml.py --ptx DIRECTORY    # that `farm ptx` wrote: no tree, no nvcc

What is compiled is kept in ``--work`` under the compiler's version.  Trees: llama.cpp from before
v0.5.0 (whisper.cpp 1.8.5) to three days after it; what an older tree lacks is left out by name.
"""

from __future__ import annotations

import argparse
import re
import struct
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import dequantize

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
from ptxlab import references
from ptxlab.interpreter import Library, Module, PtxError, PtxFaultError, Run

HERE = Path(__file__).parent
Array = np.ndarray[Any, Any]
# Where blocks have scales in half precision; random bits would be infinities and NaNs.
HALVES = {
    "q4_0": [0], "q4_1": [0, 2], "q5_0": [0], "q5_1": [0, 2], "q8_0": [0], "q2_K": [80, 82], "q3_K": [108],
    "q4_K": [0, 2], "q5_K": [0, 2], "q6_K": [208], "iq1_s": [0], "iq2_xxs": [0], "iq2_xs": [0], "iq2_s": [0],
    "iq3_xxs": [0], "iq3_s": [0], "iq4_nl": [0], "iq4_xs": [0],
}  # fmt: skip
LIMIT = 5e-4  # ggml's own for products of matrices (tests/test-backend-ops.cpp)
FP4_LIMIT = 2e-2  # of columns that are rounded to FP4


class Tree:
    """A tree's CUDA sources, compiled to PTX on demand."""

    def __init__(self, tree: Path, nvcc: str, work: Path, include: list[str]) -> None:
        self.tree, self.nvcc = tree, nvcc
        shown = subprocess.run(
            [nvcc, "--version"], capture_output=True, text=True, check=True
        ).stdout
        version = re.search(r"V(\d+\.\d+\.\d+)", shown)
        self.version = version[1] if version else "unknown"
        self.work = work / self.version
        self.work.mkdir(parents=True, exist_ok=True)
        self.include = include

    def ptx(self, source: Path) -> str:
        out = self.work / (source.stem + ".ptx")
        if not out.exists():
            cuda = self.tree / "src/ggml-cuda"
            flags = [
                f"-I{p}" for p in (self.tree / "include", self.tree / "src", cuda, *self.include)
            ]
            part = out.with_suffix(".part")
            command = [self.nvcc, "-std=c++17", "-ptx", "-arch=compute_120a", "-O3", "-use_fast_math",
                       "-extended-lambda", *flags, str(source), "-o", str(part)]  # fmt: skip
            subprocess.run(command, check=True)
            part.rename(out)
        return out.read_text()

    def module(self, library: Library, name: str, kernel: str) -> tuple[Module, str]:
        """A source file of the tree as a module, and its PTX; it has a kernel named so."""
        text = self.ptx(self.tree / "src/ggml-cuda" / name)
        module = library.load(text)
        named(module, kernel)
        return module, text


class Kept(Tree):
    """The PTX of an image: files ``DIGEST.ptx``."""

    def __init__(self, folder: Path) -> None:
        self.texts = [file.read_text() for file in sorted(folder.glob("*.ptx"))]
        self.version = folder.name

    def module(self, library: Library, name: str, kernel: str) -> tuple[Module, str]:
        entry = re.compile(rf"\.entry \w*{kernel}")
        text = next((each for each in self.texts if entry.search(each)), None)
        if text is None:
            raise PtxError(f"no file has a kernel {kernel}, which {name} should have")
        return library.load(text), text


def named(module: Module, *parts: str) -> str:
    """The first kernel whose name has all of these parts."""
    found = (kernel for kernel in module.kernels() if all(part in kernel for part in parts))
    kernel = next(found, None)
    if kernel is None:
        raise PtxError(f"the tree has no kernel {' '.join(parts)}")
    return kernel


def fitting(module: Module, kernel: str, arguments: list[Any], *newer: int) -> list[Any]:
    """The arguments, without the newer ones (by index) that the tree's kernel does not have yet."""
    lacking = 0
    while len(arguments) - lacking > 0:
        try:
            module.parameter(kernel, len(arguments) - lacking - 1)
        except PtxError:
            lacking += 1
        else:
            break
    return [each for i, each in enumerate(arguments) if i not in newer[:lacking]]


def type_of(name: str) -> GGMLQuantizationType:
    return GGMLQuantizationType[name.upper()]


def random_blocks(
    name: str, rows: int, depth: int, rng: np.random.Generator
) -> tuple[Array, Array]:
    """Random blocks of a quantization, and the values that gguf-py reads from them."""
    quantization = type_of(name)
    values, size = GGML_QUANT_SIZES[quantization]
    blocks = rng.integers(0, 256, (rows, depth // values, size), dtype=np.uint8)
    scales = (rng.random((rows, depth // values)) * 0.02 + 0.001).astype(np.float16)
    for offset in HALVES.get(name, []):
        blocks[:, :, offset : offset + 2] = scales.view(np.uint8).reshape(rows, -1, 2)
    if name == "iq1_m":  # the scale's nibbles are on top of four words
        words = blocks[:, :, 48:56].copy().view(np.uint16)
        bits = scales.view(np.uint16)
        for i in range(4):
            words[:, :, i] = (words[:, :, i] & 0xFFF) | ((bits >> 4 * i & 15) << 12)
        blocks[:, :, 48:56] = words.view(np.uint8)
    if name == "mxfp4":
        blocks[:, :, 0] = rng.integers(110, 125, blocks.shape[:2])
    if name == "nvfp4":
        blocks[:, :, 0:4] = rng.integers(20, 70, (*blocks.shape[:2], 4))
    return blocks, dequantize(blocks.reshape(rows, -1), quantization).reshape(rows, depth).astype(
        np.float64
    )


def nmse(got: Array, exact: Array) -> float:
    return float(((got - exact) ** 2).sum() / (exact**2).sum())


def q8_1(y: Array) -> tuple[Array, Array]:
    """Blocks of 32 values: scale, scaled sum, bytes; and the values that they mean."""
    groups = y.reshape(-1, 32)
    scale = np.abs(groups).max(1) / 127
    quants = np.rint(groups / scale[:, None]).astype(np.int8)
    half = scale.astype(np.float16)
    blocks = np.zeros((len(groups), 36), np.uint8)
    blocks[:, 0:2] = half.view(np.uint8).reshape(-1, 2)
    blocks[:, 2:4] = (
        (half.astype(np.float32) * quants.sum(1)).astype(np.float16).view(np.uint8).reshape(-1, 2)
    )
    blocks[:, 4:] = quants.view(np.uint8)
    return blocks, (quants * half.astype(np.float64)[:, None]).reshape(-1)


Report = Callable[[str, float], None]


def vec_dot(library: Library, tree: Tree, report: Report) -> None:
    """Each quantization's product with one column."""
    module = library.load(tree.ptx(HERE / "vec_dot.cu"))
    rows, depth = 64, 4096
    for name in module.kernels():
        rng = np.random.default_rng(1)
        blocks, values = random_blocks(name, rows, depth, rng)
        y, means = q8_1(rng.standard_normal(depth).astype(np.float32))
        out = np.zeros(rows, np.float32)
        try:
            module.run(name, [blocks, y, out, blocks.shape[1]], block=rows)
        except PtxFaultError as fault:
            report(f"{name}: {fault}", float("nan"))
        else:
            report(name, nmse(out, values @ means))


def fastdiv(d: int) -> bytes:
    bits = (d - 1).bit_length()
    return struct.pack("<3I", (((1 << 32) * ((1 << bits) - d)) // d + 1) & 0xFFFFFFFF, bits, d)


@dataclass
class Launch:
    """A product of matrices, ready to run; ``exact`` is what numpy computes."""

    module: Module
    kernel: str
    arguments: list[Any]
    grid: int
    warps: int
    out: Array
    exact: Array

    def run(self) -> Run:
        return self.module.run(
            self.kernel, self.arguments, grid=self.grid, block=(32, self.warps), shared=99 << 10
        )


def mmq_launch(
    module: Module,
    text: str,
    quantize: Module,
    name: str,
    precision: str,
    rows: int,
    depth: int,
    columns: int,
) -> Launch:
    """The launch of ``mul_mat_q`` as mmq.cuh makes it, one block for each tile of 128 rows."""
    # Until v0.5.0 a kernel has no precision of the columns: FP4 with FP4, else int8.
    last = f"EL9ggml_{precision}" if "EL9ggml_prec" in text else "EE"
    kernel = named(module, f"9mul_mat_qIL9ggml_type{int(type_of(name))}ELi{columns}ELb0{last}")
    threads = int(text[text.index(kernel) :].split(".maxntid", 1)[1].split()[0])
    rng = np.random.default_rng(2)
    blocks, values = random_blocks(name, rows, depth, rng)
    y = rng.standard_normal((columns, depth)).astype(np.float32)
    packed, scale = quantized(quantize, name, y, precision == "prec40")
    out = np.zeros((columns, rows), np.float32)
    stride, one, words = blocks.shape[1], fastdiv(1), packed.nbytes // 4
    plane = [rows * stride, words, rows * columns]
    arguments = [blocks, packed, None, None, out, None, scale, fastdiv(stride), rows, columns, stride, columns, rows,
                 one, one, *plane, one, one, *plane, one]  # fmt: skip
    arguments = fitting(module, kernel, arguments, 6)
    # With columns in FP4, the products of what was quantized are exact, and so is the reference.
    meant = (
        fp4_columns(name, packed, scale, columns, depth)
        if precision == "prec40"
        else y.astype(np.float64)
    )
    if nmse(meant, y.astype(np.float64)) > FP4_LIMIT:
        raise PtxError(f"the columns of {name} are quantized wrong: {nmse(meant, y):.1e}")
    exact = meant @ values.T
    return Launch(module, kernel, arguments, rows // 128, threads // 32, out, exact)


def fp4_columns(name: str, packed: Array, scale: Array | None, columns: int, depth: int) -> Array:
    """What ``block_fp4_mmq`` means (mmq.cuh): for 256 values of a column, 16 bytes of scales, 128 of codes."""
    codes = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])
    blocks = packed[: depth // 256 * columns * 144].reshape(depth // 256, columns, 144)
    nibbles = blocks[:, :, 16:]
    if name == "mxfp4":  # 32 values to a scale, of which 2 stand in each word
        scales = 2.0 ** (
            blocks[:, :, :16].reshape(-1, columns, 4, 4)[..., :2].astype(np.float64) - 127
        )
        group = 16
    else:  # 16 values to a scale, in e4m3
        small = np.array([soft_e4m3(c) for c in range(128)])
        scales = small[blocks[:, :, :16].reshape(-1, columns, 4, 4) & 127]
        group = 8
    nibbles = nibbles.reshape(-1, columns, 128 // group, group)
    values = np.concatenate([codes[nibbles & 15], codes[nibbles >> 4]], axis=-1)
    values = values * scales.reshape(-1, columns, 128 // group, 1)
    y = values.reshape(depth // 256, columns, 256).transpose(1, 0, 2).reshape(columns, depth)
    return y if scale is None else y * scale[:, None].astype(np.float64)


def soft_e4m3(code: int) -> float:
    return float(references.small_value("e4m3", code))


def mmq(library: Library, tree: Tree, report: Report) -> None:
    """Products of matrices by tensor cores: int8, and FP4 with block scales."""
    quantize, _ = tree.module(library, "quantize.cu", "quantize_mmq_q8_1")
    names = ("q4_0", "q8_0", "q6_K", "iq2_s", "iq1_s", "mxfp4", "nvfp4")
    for name, precision in [(n, "prec30") for n in names] + [
        ("mxfp4", "prec40"),
        ("nvfp4", "prec40"),
    ]:
        module, text = tree.module(
            library,
            f"template-instances/mmq-instance-{name.lower()}.cu",
            f"9mul_mat_qIL9ggml_type{int(type_of(name))}E",
        )
        native = precision == "prec40"
        if name.endswith("fp4") and not native and "EL9ggml_prec" not in text:
            print(f"{tree.version} mmq       {name} with int8 columns: the tree has no such kernel")
            continue
        if name == "nvfp4" and not any("mmq_nvfp4ILb0" in k for k in quantize.kernels()):
            print(
                f"{tree.version} mmq       {name}: its columns are quantized otherwise, not tried"
            )
            continue
        for columns in (8, 16):
            launch = mmq_launch(module, text, quantize, name, precision, 128, 512, columns)
            launch.run()
            report(f"{name} x{columns}{' fp4' if native else ''}", nmse(launch.out, launch.exact))


def quantized(module: Module, name: str, y: Array, native: bool) -> tuple[Array, Array | None]:
    """The columns as ``quantize.cu`` writes them."""
    columns, depth = y.shape
    packed = np.zeros(columns * depth * 144 // 128 + 64 * 144, np.uint8)
    common: list[Any] = [depth, depth, depth * columns, depth * columns, depth, columns, 1, 0]
    scatters = any("quantize_mmq_mxfp4ILb0" in kernel for kernel in module.kernels())
    if native and name == "nvfp4":
        scale = np.zeros(columns, np.float32)
        kernel = named(module, "quantize_mmq_nvfp4ILb0ELb0")
        module.run(kernel, [y, None, packed, scale, *common], grid=(columns, 1), block=128)
        return packed, scale
    if native:
        kernel = named(module, "quantize_mmq_mxfp4ILb0" if scatters else "quantize_mmq_mxfp4P")
        arguments = fitting(module, kernel, [y, None, packed, *common], 10)
        module.run(kernel, arguments, grid=(columns, depth // 512), block=(32, 8))
        return packed, None
    layout = {"q4_0": 1, "iq1_s": 1, "q8_0": 0, "q6_K": 0, "iq2_s": 0, "mxfp4": 0, "nvfp4": 0}[name]
    last = "ELb0" if scatters else "EE"
    kernel = named(module, f"quantize_mmq_q8_1IL18mmq_q8_1_ds_layout{layout}{last}")
    arguments = fitting(module, kernel, [y, None, packed, *common], 10)
    module.run(kernel, arguments, grid=(columns, (depth + 511) // 512), block=128)
    return packed, None


def attention(library: Library, tree: Tree, report: Report) -> None:
    """Flash attention for one query (fattn-vec): cache in f16, q8_0 and q4_0; GQA; mask."""
    for cache in ("f16", "q8_0", "q4_0"):
        kind = f"ILi64ELi1EL9ggml_type{int(type_of(cache))}ELS0_{int(type_of(cache))}E"
        module, _ = tree.module(
            library,
            f"template-instances/fattn-vec-instance-{cache}-{cache}.cu",
            f"flash_attn_ext_vec{kind}",
        )
        for size in (64, 128, 256):
            kernel = named(module, f"flash_attn_ext_vecILi{size}ELi1E", "Lb0EEv")
            rng = np.random.default_rng(5)
            heads, shared_by, length = 4, 2, 256
            q = rng.standard_normal((heads, size)).astype(np.float32)
            cached: list[Array] = []
            values: list[Array] = []
            for _ in range(2):
                if cache == "f16":
                    x = rng.standard_normal((heads // shared_by, length, size)).astype(np.float16)
                    cached.append(x)
                    values.append(x.astype(np.float64))
                else:
                    blocks, x = random_blocks(cache, heads // shared_by * length, size, rng)
                    cached.append(blocks)
                    values.append(x.reshape(heads // shared_by, length, size))
            mask = np.where(rng.random((1, length)) < 0.2, -np.inf, 0).astype(np.float16)
            out = np.zeros((heads, size), np.float32)
            row = cached[0].nbytes // (heads // shared_by) // length
            scale = 1 / np.sqrt(size)
            arguments = [q, cached[0], cached[1], mask, None, None, out, None, float(scale), 0.0, 1.0, 1.0, 4, 0.0,
                         size, fastdiv(1), heads, 1, 4 * size * heads, 4 * size, 4 * size * heads,
                         size, length, heads // shared_by, 1, row, row * length, row * length * heads,
                         row, row * length, row * length * heads, 1, 1, 1, mask.nbytes, mask.nbytes, mask.nbytes]  # fmt: skip
            module.run(kernel, arguments, grid=(1, 1, heads), block=(32, 4))
            exact = np.zeros((heads, size))
            for head in range(heads):
                k, v = values[0][head // shared_by], values[1][head // shared_by]
                weights = np.exp(
                    k @ q[head].astype(np.float64) * scale + mask[0].astype(np.float64)
                )
                exact[head] = weights @ v / weights.sum()
            report(f"{cache} {size}", nmse(out, exact))


def attention_by_tiles(library: Library, tree: Tree, report: Report) -> None:
    """Flash attention for many queries (fattn-mma-f16): tensor cores, ldmatrix, cp.async, online softmax."""
    module, text = tree.module(
        library,
        "template-instances/fattn-mma-f16-instance-ncols1_8-ncols2_4.cu",
        "18flash_attn_ext_f16ILi64ELi64ELi8ELi4E",
    )
    for size in (64, 128, 256):
        kernel = named(module, f"18flash_attn_ext_f16ILi{size}ELi{size}ELi8ELi4ELb0")
        threads = int(text[text.index(kernel) :].split(".maxntid", 1)[1].split()[0])
        rng = np.random.default_rng(6)
        queries, heads, length = 8, 4, 512
        q = rng.standard_normal((heads, queries, size)).astype(np.float32)
        k, v = (rng.standard_normal((length, size)).astype(np.float16) for _ in range(2))
        mask = np.where(rng.random((queries, length)) < 0.2, -np.inf, 0).astype(np.float16)
        out = np.zeros((queries, heads, size), np.float32)
        scale = 1 / np.sqrt(size)
        row = 2 * size
        arguments = [q, k, v, mask, None, None, out, None, float(scale), 0.0, 1.0, 1.0, 4, 0.0,
                     size, fastdiv(queries), heads, 1, 4 * size, 4 * size * queries, 4 * size * queries * heads,
                     size, length, 1, 1, row, row * length, row * length, row, row * length, row * length,
                     queries, 1, 1, 2 * length, mask.nbytes, mask.nbytes]  # fmt: skip
        module.run(kernel, arguments, grid=1, block=(32, threads // 32), shared=99 << 10)
        exact = np.zeros(out.shape)
        for head in range(heads):
            weights = np.exp(q[head].astype(np.float64) @ k.T * scale + mask)
            exact[:, head] = weights @ v.astype(np.float64) / weights.sum(1, keepdims=True)
        report(f"mma {size}", nmse(out, exact))


def rows(library: Library, tree: Tree, report: Report) -> None:
    """What works on rows: norms, softmax (also by a whole grid that waits for itself), rope, argsort."""
    rng = np.random.default_rng(7)
    module, _ = tree.module(library, "norm.cu", "12rms_norm_f32")
    x = rng.standard_normal((8, 4096)).astype(np.float32)
    out = np.zeros_like(x)
    kernel = named(module, "12rms_norm_f32ILi1024ELb0ELb0E")
    none = [None, 0, 0, 0, *[fastdiv(1)] * 4]
    arguments: list[Any] = [x, out, 4096, 4096, 0, 0, 1e-6, *none, *none, 1.0]
    arguments = fitting(module, kernel, arguments, len(arguments) - 1)
    module.run(kernel, arguments, grid=8, block=1024, shared=128)
    wide = x.astype(np.float64)
    report("rms_norm", nmse(out, wide / np.sqrt((wide**2).mean(1, keepdims=True) + 1e-6)))

    module, _ = tree.module(library, "softmax.cu", "12soft_max_f32")
    exact = np.exp(0.5 * wide) / np.exp(0.5 * wide).sum(1, keepdims=True)
    shape = struct.pack(
        "<qI4x12q4f", 1, 1, 4096, 8, 8, 4096, 8, 1, 1, 0, 0, 0, 1, 1, 0.5, 0.0, 1.0, 1.0
    )
    for prefix, block in (
        ("12soft_max_f32ILb1ELi4096ELi1024Ef", 1024),
        ("12soft_max_f32ILb0ELi0ELi0Ef", 1024),
    ):
        kernel = named(module, prefix)
        size = module.parameter(kernel, 4)[1]
        out = np.zeros_like(x)
        module.run(
            kernel,
            [x, None, None, out, shape.ljust(size, b"\0")[:size]],
            grid=8,
            block=block,
            shared=(4096 + 32) * 4,
        )
        report("soft_max " + ("shared" if "Lb1" in prefix else "global"), nmse(out, exact))
    kernel = named(module, "parallelize_cols")
    out, tmp = np.zeros_like(x), np.zeros((2, 64), np.float32)
    size = module.parameter(kernel, 4)[1]
    try:
        module.run(
            kernel,
            [x, out, tmp[0], tmp[1], shape.ljust(size, b"\0")[:size]],
            grid=16,
            block=256,
            cooperative=1,
        )
        # It takes no scale.
        exact = np.exp(wide) / np.exp(wide).sum(1, keepdims=True)
        report("soft_max grid", nmse(out, exact))
    except PtxFaultError as fault:
        print(f"soft_max grid: {fault}")

    module, _ = tree.module(library, "argsort.cu", "17k_argsort_f32_i32")
    kernel = named(module, "k_argsort_f32_i32IL15ggml_sort_order0")
    order = np.zeros((8, 512), np.int32)
    keys = rng.permutation(8 * 512).reshape(8, 512).astype(np.float32)
    module.run(kernel, [keys, order, 512, 512], grid=8, block=512, shared=2048)
    report("argsort", nmse(order.astype(float), np.argsort(keys, axis=1).astype(float)))

    module, _ = tree.module(library, "rope.cu", "9rope_norm")
    kernel = named(module, "9rope_normILb1ELb0Eff")
    size, heads, tokens = 128, 4, 3
    x = rng.standard_normal((tokens, heads, size)).astype(np.float32)
    out, positions = np.zeros_like(x), np.array([0, 17, 4000], np.int32)
    theta = 10000.0 ** (-2 / size)
    arguments = [x, out, size, heads, tokens, size, size * heads, size * heads * tokens, size, size * heads, size * heads * tokens,
                 size, 0, positions, 1.0, 0.0, 1.0, struct.pack("<2f", 0, 0), float(theta), None, None, 0, 0]  # fmt: skip
    arguments = fitting(module, kernel, arguments, 12, len(arguments) - 1)
    module.run(kernel, arguments, grid=(heads * tokens, 1), block=(1, 256))
    angle = positions[:, None, None] * np.float64(theta) ** np.arange(size // 2)
    pairs = x.astype(np.float64).reshape(tokens, heads, size // 2, 2)
    first, second = pairs[..., 0], pairs[..., 1]
    turned = np.stack(
        [
            first * np.cos(angle) - second * np.sin(angle),
            first * np.sin(angle) + second * np.cos(angle),
        ],
        -1,
    )
    report("rope", nmse(out, turned.reshape(x.shape)))


def rows_of_blocks(library: Library, tree: Tree, report: Report) -> None:
    """What reads rows of quantized matrices (get_rows), and the convolution of state space models."""
    rng = np.random.default_rng(8)
    module, _ = tree.module(library, "getrows.cu", "10k_get_rows")
    depth = 512
    for name in ("q4_0", "q4_1", "q5_0", "q5_1", "q8_0"):
        kernel = named(module, f"dequantize_{name}E", "EEfEv")
        blocks, values = random_blocks(name, 16, depth, rng)
        chosen = rng.integers(0, 16, 5).astype(np.int32)
        out = np.zeros((5, depth), np.float32)
        row = blocks.nbytes // 16
        arguments = [blocks, chosen, out, depth, 1, fastdiv(1), depth, 5 * depth, 5 * depth, row, blocks.nbytes,
                     blocks.nbytes, 1, 5, 5]  # fmt: skip
        module.run(kernel, arguments, grid=(5, 1, 1), block=256)
        report(f"get_rows {name}", nmse(out, values[chosen]))
    module, _ = tree.module(library, "ssm-conv.cu", "12ssm_conv_f32")
    kernel = named(module, "12ssm_conv_f32ILb1ELm128ELm4EE")
    channels, tokens, width = 256, 7, 4
    x = rng.standard_normal((channels, width - 1 + tokens)).astype(np.float32)
    w = rng.standard_normal((channels, width)).astype(np.float32)
    out = np.zeros((tokens, channels), np.float32)
    arguments = [
        x,
        w,
        None,
        4,
        x.strides[0],
        x.nbytes,
        w.strides[0],
        out,
        4,
        out.strides[0],
        out.nbytes,
        tokens,
    ]
    module.run(kernel, arguments, grid=(1, channels // 128), block=128)
    wide = x.astype(np.float64)
    sums = np.array([(wide[:, t : t + width] * w).sum(1) for t in range(tokens)])
    report("ssm_conv", nmse(out, sums / (1 + np.exp(-sums))))


def scan(library: Library, tree: Tree, report: Report) -> None:
    """The scan of Mamba's states: CUB's block loads, and shared memory that each step uses again."""
    module, _ = tree.module(library, "ssm-scan.cu", "12ssm_scan_f32ILm128ELm16E")
    rng = np.random.default_rng(9)
    channels, states, tokens = 256, 16, 5
    state, x, dt, a, b, c = (
        rng.standard_normal(shape).astype(np.float32)
        for shape in ((1, channels, states), (tokens, channels), (tokens, channels),
                      (channels, states), (tokens, states), (tokens, states))
    )  # fmt: skip
    out = np.zeros(tokens * channels + channels * states, np.float32)
    arguments: list[Any] = [state, x, dt, -np.abs(a), b, c, np.zeros(1, np.int32), out, state.strides[1], state.nbytes,
                 x.strides[0], x.nbytes, dt.strides[0], dt.nbytes, 4 * states, b.strides[0], b.nbytes,
                 c.strides[0], c.nbytes, 4 * tokens * channels, channels, tokens]  # fmt: skip
    wide, rows = state[0].astype(np.float64), []
    for token in range(tokens):
        step = np.log1p(np.exp(dt[token].astype(np.float64)))[:, None]
        wide = wide * np.exp(step * -np.abs(a)) + b[token] * x[token][:, None] * step
        rows.append(wide @ c[token])
    exact = np.concatenate([*rows, wide.ravel()])
    for known in (0, tokens):  # the number of tokens as an argument, and as one of the template
        kernel = named(module, f"12ssm_scan_f32ILm128ELm16ELm{known}E")
        out[:] = 0
        module.run(kernel, arguments, grid=(1, channels // 128), block=128, shared=128 * 17 * 8)
        report(f"ssm_scan {known or 'any'}", nmse(out, exact))


CHECKS = {
    "vec_dot": vec_dot,
    "mmq": mmq,
    "attention": attention,
    "tiles": attention_by_tiles,
    "rows": rows,
    "blocks": rows_of_blocks,
    "scan": scan,
}


def arguments(purpose: str | None) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=purpose, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tree", type=Path, help="the directory ggml/ of a tree")
    parser.add_argument("--nvcc", default="nvcc")
    parser.add_argument("--include", action="append", default=[], help="more headers, cuBLAS's say")
    parser.add_argument("--work", type=Path, help="keeps the PTX")
    parser.add_argument("--library", type=Path, default=HERE.parent / "out/libptx.so")
    return parser


def tree_of(parser: argparse.ArgumentParser, given: argparse.Namespace) -> Tree:
    if given.tree is None or given.work is None:
        parser.error("--tree and --work are needed")
    return Tree(given.tree, given.nvcc, given.work, given.include)


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--only", choices=sorted(CHECKS))
    parser.add_argument("--ptx", type=Path, help="kept PTX, without a tree: all but vec_dot")
    given = parser.parse_args()
    library = Library(given.library)
    tree = Kept(given.ptx) if given.ptx else tree_of(parser, given)
    failed = 0
    for title, check in CHECKS.items():
        if given.only not in (None, title) or (given.ptx and title == "vec_dot"):
            continue

        def report(name: str, error: float, title: str = title) -> None:
            nonlocal failed
            failed += not error <= LIMIT
            verdict = "ok" if error <= LIMIT else "WRONG"
            print(f"{tree.version} {title:9} {name:12} nmse {error:8.1e} {verdict}")

        try:
            check(library, tree, report)
        except (PtxError, PtxFaultError, subprocess.CalledProcessError) as error:
            failed += 1
            print(f"{tree.version} {title}: {error}")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
