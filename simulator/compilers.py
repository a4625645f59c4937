"""One nvcc on the kernels of one tree: compiled to PTX, computed on the CPU, compared."""

from __future__ import annotations

import re
import struct
import subprocess
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from simulator import SimulatorError

if TYPE_CHECKING:
    from gguf import GGMLQuantizationType


# The quantization kernels of a tree of ggml, and a program of our own around them.
#
# ``vecdotq.cuh`` has a function ``vec_dot_TYPE_q8_1`` for each quantization: the product of a few
# values of a block with values of the other operand, in blocks of 8 bits.  ggml's kernels for one
# column add them up, and so does the program.

HEADER = "ggml-cuda/vecdotq.cuh"
FUNCTION = re.compile(r"\bfloat\s+vec_dot_(\w+)_q8_1\s*\(\s*const\s+void\s*\*")
PREFIX = "dot_"

TREE_PROGRAM = """\
// Products of rows of blocks with one column: each thread has a row.
#include "common.cuh"
#include "vecdotq.cuh"

typedef float (*dot_t)(const void *, const block_q8_1 *, const int &, const int &);

template <ggml_type type, int vdr, dot_t dot>
static __device__ void product(
        const void * rows, const block_q8_1 * column, float * out, int blocks) {
    typedef ggml_cuda_type_traits<type> traits;
    const int row = blockIdx.x * blockDim.x + threadIdx.x;
    float sum = 0.0f;
    for (int block = 0; block < blocks; ++block) {
        const block_q8_1 * other = column + block * (traits::qk / QK8_1);
        for (int part = 0; part < traits::qi; part += vdr) {
            sum += dot(rows, other, row * blocks + block, part);
        }
    }
    out[row] = sum;
}
"""
TREE_KERNEL = """
extern "C" __global__ void {kernel}(
        const void * rows, const block_q8_1 * column, float * out, int blocks) {{
    product<GGML_TYPE_{upper}, VDR_{upper}_Q8_1_MMVQ, vec_dot_{name}_q8_1>(
        rows, column, out, blocks);
}}
"""


@dataclass(frozen=True, slots=True)
class Tree:
    """A tree of ggml; ``cuda`` is the directory of its CUDA sources."""

    cuda: Path

    def text(self, name: str) -> str:
        """The text of a CUDA source; empty where the tree has none of that name."""
        file = self.cuda / name
        return file.read_text("utf-8", errors="replace") if file.is_file() else ""


def find_kernels(folder: Path) -> Tree:
    """The tree of ggml at or below ``folder``.

    Raises ``SimulatorError`` where there is none.
    """
    found = sorted(folder.rglob(HEADER), key=lambda file: (len(file.parts), file))
    if not found:
        raise SimulatorError(
            "the source has no quantization kernels of ggml",
            f"no file of it ends in {HEADER}",
            "name a recipe of llama.cpp or of one of its forks",
        )
    return Tree(found[0].parent)


def types(tree: Tree) -> tuple[dict[str, str], dict[str, str]]:
    """The quantizations that the tree computes, by kernel, and why others cannot be tried.

    Both by the name that the tree gives them (``q4_K``).
    """
    source, common = tree.text("vecdotq.cuh"), tree.text("common.cuh")
    kernels: dict[str, str] = {}
    lacking: dict[str, str] = {}
    for name in dict.fromkeys(FUNCTION.findall(source)):
        upper = name.upper()
        needed = {
            f"VDR_{upper}_Q8_1_MMVQ": source,
            f"ggml_cuda_type_traits<GGML_TYPE_{upper}>": common,
        }
        missing = [word for word, text in needed.items() if word not in text]
        if missing:
            lacking[name] = f"the tree has no {' and no '.join(missing)}"
        else:
            kernels[name] = f"{PREFIX}{name}"
    return kernels, lacking


def kernel_program(names: Iterable[str]) -> str:
    """The CUDA source with a kernel for each of these quantizations."""
    return TREE_PROGRAM + "".join(
        TREE_KERNEL.format(kernel=f"{PREFIX}{name}", name=name, upper=name.upper())
        for name in names
    )


# Random blocks of a quantization, and the values that gguf-py reads from them.

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
    """The bytes of rows of blocks and of a column of q8_1, and the product of each row."""

    rows: Array
    column: Array
    blocks: int  # in a row
    exact: Array


def known_blocks() -> dict[str, GGMLQuantizationType]:
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
    from gguf import GGML_QUANT_SIZES

    kind = known_blocks()[name]
    rng = np.random.default_rng(1)
    blocks = DEPTH // int(GGML_QUANT_SIZES[kind][0])
    rows, values = random_blocks(kind, ROWS * blocks, rng)
    column, means = q8_1(rng.standard_normal(DEPTH).astype(np.float32))
    return BlockCase(rows, column, blocks, values.reshape(ROWS, DEPTH) @ means)


def nmse(got: Array, exact: Array) -> float:
    """The normalized mean square error, as ggml's tests/test-backend-ops.cpp computes it."""
    wide = got.astype(np.float64)
    return float(((wide - exact) ** 2).sum() / (exact**2).sum())


# Kernels run by the program ``ptx`` (simulator/ptx), in a process of its own.

Argument = Array | bytes | int | None
"""Memory, a structure, an integer of 32 bits, or a null pointer."""
MOST_SECONDS = 50_000_000  # instructions of a warp: a kernel without an end is a fault
PLACE = re.compile(r"PTX line \d+: .+")


class KernelError(Exception):
    """The kernel ended early, or could not be run; the text has no addresses."""


@dataclass(frozen=True, slots=True)
class KernelLaunch:
    """A kernel of a module, with its grid, its block, and its dynamic shared memory in bytes."""

    ptx: Path
    kernel: str
    grid: tuple[int, int]
    block: tuple[int, int]
    shared: int = 0


def interpret(
    program: Path, launch: KernelLaunch, arguments: Sequence[Argument], outs: Sequence[int]
) -> list[Array]:
    """The bytes of the arguments ``outs`` after the launch.  Raises ``KernelError``."""
    with tempfile.TemporaryDirectory() as folder:
        files = Path(folder)
        command = [str(program), "run", str(launch.ptx), "--kernel", launch.kernel]
        command += ["--grid", ",".join(map(str, launch.grid))]
        command += ["--block", ",".join(map(str, launch.block))]
        command += ["--shared", str(launch.shared), "--most", str(MOST_SECONDS)]
        for out in outs:
            command += ["--save", f"{out}:{files}/out-{out}"]
        for index, argument in enumerate(arguments):
            command += ["--arg", _given(argument, files / f"{index}")]
        done = subprocess.run(
            command, capture_output=True, text=True, errors="replace", check=False
        )
        if done.returncode:
            raise KernelError(_reason(done.stderr))
        return [np.fromfile(files / f"out-{out}", np.uint8) for out in outs]


def _given(argument: Argument, file: Path) -> str:
    if argument is None:
        return "u64:0"
    if isinstance(argument, int):
        return f"s32:{argument}"
    if isinstance(argument, bytes):
        return f"hex:{argument.hex()}"
    argument.tofile(file)
    return f"file:{file}"


def _reason(output: str) -> str:
    """The kind of a fault and its instruction: addresses differ from run to run."""
    lines = output.splitlines()
    for before, line in pairwise(["", *lines]):
        if place := PLACE.search(line):
            return f"{before.partition(':')[0]}, {' '.join(place[0].split())}"
    # The program's own words.
    words = [line.removeprefix("ptx: ") for line in lines if not line.startswith("ptx: see ")]
    return f"not run: {words[0] if words else 'the interpreter ended without a message'}"


# ggml's products of MXFP4 matrices by tensor cores (``mul_mat_q`` in mmq.cuh), on exact operands.
#
# On compute capability 12.0 the columns are rounded to FP4 with block scales, too.  Here they are
# made of such values, so that the exact product is known.

TYPE = "mxfp4"
KERNEL, FIXUP = "mul_mat_q", "mul_mat_q_stream_k_fixup"
MATRIX_ROWS, MATRIX_DEPTH = 128, 1024
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


def matrix_parameters(tree: Tree) -> tuple[dict[str, list[str]], dict[str, str]]:
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
        unknown = sorted({*names[kernel]} - product(SHAPES[0])[0].keys())
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


def matrix_program(shapes: Iterable[MatrixShape]) -> str:
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


def product(shape: MatrixShape) -> tuple[dict[str, Argument], Array]:
    """Random operands, by the names of the kernels' parameters, and the exact product.

    A single block takes the tiles one after the other.
    """
    width = shape.columns
    rng = np.random.default_rng(2)
    kind = known_blocks()[TYPE]
    blocks, values = random_blocks(kind, MATRIX_ROWS * MATRIX_DEPTH // GROUP, rng)
    weights = values.reshape(MATRIX_ROWS, MATRIX_DEPTH)
    columns, packed = _columns(width, rng)
    stride, words = MATRIX_DEPTH // GROUP, width * MATRIX_DEPTH // BLOCK_VALUES * BLOCK_BYTES // 4
    one = _divisor(1)
    arguments: dict[str, Argument] = {
        "x": blocks,
        "y": packed,
        "ids_dst": None,
        "expert_bounds": None,
        RESULT: np.zeros(width * MATRIX_ROWS, np.float32),
        PARTS: None,
        PARTS_READ: None,
        "blocks_per_ne00": _divisor(stride),
        "nrows_x": MATRIX_ROWS,
        "ncols_dst": width,
        "stride_row_x": stride,
        "ncols_y": width,
        "stride_col_dst": MATRIX_ROWS,
        "channel_ratio": one,
        "nchannels_y": one,
        "stride_channel_x": MATRIX_ROWS * stride,
        "stride_channel_y": words,
        "stride_channel_dst": MATRIX_ROWS * width,
        "sample_ratio": one,
        "nsamples_y": one,
        "stride_sample_x": MATRIX_ROWS * stride,
        "stride_sample_y": words,
        "stride_sample_dst": MATRIX_ROWS * width,
        "ntx": _divisor(width // shape.tile),
    }
    if FIXUP in shape.kernels:
        arguments[PARTS] = np.zeros(shape.blocks * shape.tile * MATRIX_ROWS, np.float32)
    return arguments, columns @ weights.T


def _columns(width: int, rng: np.random.Generator) -> tuple[Array, Array]:
    """Random columns (width x DEPTH), and the same as blocks of ``block_fp4_mmq``.

    A block has 256 values of a column: the scales of 8 groups, two to a word of 4 bytes, then 16
    bytes for each group.  A byte has the values i and i + 16.  The first blocks of all columns
    come first.
    """
    codes = rng.integers(0, 16, (width, MATRIX_DEPTH // GROUP, GROUP), dtype=np.uint8)
    scales = rng.integers(*SCALES, (width, MATRIX_DEPTH // GROUP), dtype=np.uint8)
    values = FP4[codes] * 2.0 ** (scales[..., None].astype(np.float64) - 127)
    many = MATRIX_DEPTH // BLOCK_VALUES
    blocks = np.zeros((many, width, BLOCK_BYTES), np.uint8)
    words = np.zeros((width, many, 4, 4), np.uint8)
    words[..., :2] = scales.reshape(width, many, 4, 2)
    blocks[:, :, :BLOCK_SCALES] = words.reshape(width, many, BLOCK_SCALES).transpose(1, 0, 2)
    half = GROUP // 2
    nibbles = codes[..., :half] | codes[..., half:] << 4
    blocks[:, :, BLOCK_SCALES:] = nibbles.reshape(width, many, -1).transpose(1, 0, 2)
    padding = np.zeros(PADDING * BLOCK_BYTES, np.uint8)
    return values.reshape(width, MATRIX_DEPTH), np.concatenate([blocks.reshape(-1), padding])


def _divisor(number: int) -> bytes:
    """``uint3`` of ``init_fastdiv_values`` (common.cuh): multiplier, shift, and the number."""
    shift = (number - 1).bit_length()
    multiplier = ((1 << 32) * ((1 << shift) - number)) // number + 1
    return struct.pack("<3I", multiplier & 0xFFFFFFFF, shift, number)


# The trial of one nvcc.

ARCHITECTURE = "compute_120a"
Result = float | str
"""The normalized mean square error, or how the kernel ended: "not …" where it was not run."""
FLAGS = ("-std=c++17", "-O3", "-use_fast_math", "-extended-lambda", "-allow-unsupported-compiler")
"""As ggml's cmake has them; the host's code is not compiled, so its compiler does not matter."""
WARP = 32
LINES = 5  # of nvcc's output
DIGITS = "{:.1e}"


@dataclass(frozen=True, slots=True)
class Kernels:
    """The parts of a tree that are tried: kernels and cases of ``vec_dot`` by type, the parameters
    of the kernels of matrices with their products, and why other types are not compared."""

    tree: Tree
    names: Mapping[str, str]
    cases: Mapping[str, BlockCase]
    parameters: Mapping[str, Sequence[str]]
    shapes: tuple[MatrixShape, ...]
    not_compared: Mapping[str, str]


def kernels_of(found: Tree) -> Kernels:
    """The kernels of a tree that can be compared with gguf-py.

    Raises ``SimulatorError`` where there are none.
    """
    names, lacking = types(found)
    known = known_blocks()
    cases: dict[str, BlockCase] = {}
    for name in names:
        if name not in known:
            lacking[name] = "gguf-py does not know it"
            continue
        try:
            cases[name] = case_of(name)
        except NotImplementedError:
            lacking[name] = "gguf-py does not read it"
    for name in known:
        if name not in {*names, *lacking}:
            lacking[name] = f"the tree has no vec_dot_{name}_q8_1"
    if not cases:
        raise SimulatorError(
            f"{HEADER} has no kernel that can be compared",
            "\n".join(f"{name}: {why}" for name, why in lacking.items()),
        )
    parameters, whys = matrix_parameters(found)
    lacking |= whys
    compared = {name: kernel for name, kernel in names.items() if name in cases}
    shapes = tuple(shape for shape in SHAPES if shape.label not in whys)
    return Kernels(found, compared, cases, parameters, shapes, lacking)


def results(kernels: Kernels, nvcc: Path, program: Path, work: Path) -> dict[str, Result]:
    """The results of an nvcc, by type; ``work`` is an empty directory.

    ``program`` is the interpreter.
    """
    found: dict[str, Result] = {}
    ptx, why = _compiled(kernels.tree, nvcc, work / "dot.cu", kernel_program(kernels.names))
    for name, kernel in kernels.names.items():
        found[name] = why or _result(_dot_error, program, ptx, kernel, kernels.cases[name])
    if kernels.shapes:
        source = matrix_program(kernels.shapes)
        ptx, why = _compiled(kernels.tree, nvcc, work / "mmq.cu", source)
        for shape in kernels.shapes:
            made = (program, ptx, kernels.parameters, shape)
            found[shape.label] = why or _result(_product_error, *made)
    return found


def _result(error: Callable[..., float], *arguments: object) -> Result:
    try:
        return float(DIGITS.format(error(*arguments)))
    except KernelError as fault:
        return str(fault)


def _dot_error(program: Path, ptx: Path, kernel: str, case: BlockCase) -> float:
    launch = KernelLaunch(ptx, kernel, (1, 1), (ROWS, 1))
    out = np.zeros(ROWS, np.float32)
    [got] = interpret(program, launch, [case.rows, case.column, out, case.blocks], [2])
    return nmse(got.view(np.float32), case.exact)


def _product_error(
    program: Path, ptx: Path, parameters: Mapping[str, Sequence[str]], shape: MatrixShape
) -> float:
    """The error of a product; the second kernel reads the values that the first one wrote."""
    text, (values, exact) = ptx.read_text(), product(shape)
    for kernel in shape.kernels:
        name = mangled(text, kernel, shape.tile)
        if not name:
            raise KernelError(f"not compiled: the PTX has no {kernel} x{shape.tile}")
        grid = (shape.blocks, 1 if kernel == KERNEL else MATRIX_ROWS // WARP)
        block = (WARP, threads(text, name) // WARP)
        names = parameters[kernel]
        outs = [RESULT, PARTS] if PARTS in names and len(shape.kernels) > 1 else [RESULT]
        given, places = [values[each] for each in names], [*map(names.index, outs)]
        got = interpret(program, KernelLaunch(ptx, name, grid, block, SHARED), given, places)
        values |= dict(zip(outs, got, strict=True))
        values[PARTS_READ] = values[PARTS]
    return nmse(got[0].view(np.float32).reshape(exact.shape), exact)


def _compiled(found: Tree, nvcc: Path, source: Path, text: str) -> tuple[Path, str]:
    """The PTX of a CUDA source, and why nvcc refused it, if so."""
    source.write_text(text)
    ptx = source.with_suffix(".ptx")
    headers = [f"-I{found.cuda}", f"-I{found.cuda.parent}", f"-I{found.cuda.parents[1]}/include"]
    command = [str(nvcc), "-ptx", f"-arch={ARCHITECTURE}", *FLAGS, *headers, str(source)]
    done = subprocess.run(
        [*command, "-o", str(ptx)], capture_output=True, text=True, errors="replace", check=False
    )
    if done.returncode == 0:
        return ptx, ""
    lines = done.stderr.splitlines()
    errors = [line for line in lines if "error" in line] or lines
    words = " ".join(errors[:LINES])
    for folder in (found.cuda, source.parent, nvcc.parent):
        words = words.replace(f"{folder}/", "")
    return ptx, f"not compiled: {words or f'nvcc ended with {done.returncode}'}"
