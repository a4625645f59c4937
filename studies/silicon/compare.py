"""The PTX interpreter against a real card: the same PTX, the same operands, the results compared.

    make -C simulator/ptx
    python studies/silicon/compare.py        # needs numpy and NVIDIA's driver, nothing else
    python studies/silicon/compare.py --only cvt --json results.json

Each instruction of the interpreter's unit vectors, and a product of quantized rows, runs on the
card and in the interpreter, and must give the same bits.  Approximate functions, and products of
matrices (``mma.sync``) with floating point, are compared with the exact value, and both errors are
reported; products of integers must be exact.  What the card's driver refuses, mostly because the
compute capability is too low, is counted apart.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import random
import sys
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "simulator/ptx/tests"))

from ptxlab import dots, kernels, soft  # noqa: E402
from ptxlab.approximate import BOUNDS  # noqa: E402
from ptxlab.interpreter import Library  # noqa: E402
from ptxlab.matrices import SHAPES, product  # noqa: E402
from ptxlab.operands import TYPES, inputs  # noqa: E402
from ptxlab.references import CASES, Case  # noqa: E402

Array = np.ndarray[Any, Any]
SEEDS = range(3)  # of random matrices


class Card:
    """The first card, through the driver API (cuda.h)."""

    def __init__(self) -> None:
        try:
            self.cuda = ctypes.CDLL("libcuda.so.1")
        except OSError:
            sys.exit("no libcuda.so.1: NVIDIA's driver is not installed here")
        self.check(self.cuda.cuInit(0), "cuInit")
        device, context = ctypes.c_int(), ctypes.c_void_p()
        self.check(self.cuda.cuDeviceGet(ctypes.byref(device), 0), "cuDeviceGet")
        name = ctypes.create_string_buffer(100)
        self.check(self.cuda.cuDeviceGetName(name, 100, device), "cuDeviceGetName")
        self.name = name.value.decode()
        numbers = []
        for attribute in (75, 76):  # CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, _MINOR
            value = ctypes.c_int()
            self.check(
                self.cuda.cuDeviceGetAttribute(ctypes.byref(value), attribute, device), "attribute"
            )
            numbers.append(value.value)
        self.capability = (numbers[0], numbers[1])
        self.check(self.cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device), "context")
        self.check(self.cuda.cuCtxSetCurrent(context), "cuCtxSetCurrent")

    def check(self, status: int, what: str) -> None:
        if status:
            raise OSError(f"{what}: error {status} of the driver")

    @property
    def target(self) -> str:
        major, minor = self.capability
        return f"sm_{major}{minor}" + ("a" if major >= 9 else "")

    @property
    def header(self) -> str:
        """The beginning of a module: PTX ISA 8.8 knows all cards of capability 10.0 and above."""
        version = "8.8" if self.capability[0] >= 10 else "8.6"
        return f".version {version}\n.target {self.target}\n.address_size 64\n"

    def run(
        self,
        body: str,
        out: Array,
        arguments: Sequence[Array | int | None],
        *,
        grid: int = 1,
        block: int = 128,
    ) -> None:
        """Run ``k(out, arguments...)``, fetch ``out``; an int has 64 bits, None is a null pointer.

        Raises OSError where the driver refuses.
        """
        text = self.header + body
        module, function = ctypes.c_void_p(), ctypes.c_void_p()
        self.check(
            self.cuda.cuModuleLoadData(ctypes.byref(module), text.encode() + b"\0"),
            "cuModuleLoadData",
        )
        self.check(
            self.cuda.cuModuleGetFunction(ctypes.byref(function), module, b"k"),
            "function",
        )
        held: list[ctypes.c_uint64] = []
        values: list[ctypes.c_uint64] = []
        try:
            for argument in (out, *arguments):
                value = ctypes.c_uint64(argument if isinstance(argument, int) else 0)
                values.append(value)
                if not isinstance(argument, np.ndarray):
                    continue
                size = ctypes.c_size_t(argument.nbytes)
                self.check(self.cuda.cuMemAlloc_v2(ctypes.byref(value), size), "cuMemAlloc")
                held.append(value)
                data = ctypes.c_void_p(argument.ctypes.data)
                self.check(self.cuda.cuMemcpyHtoD_v2(value, data, size), "copy")
            pointers = (ctypes.c_void_p * len(values))(*[ctypes.addressof(v) for v in values])
            self.check(
                self.cuda.cuLaunchKernel(
                    function, grid, 1, 1, block, 1, 1, 0, None, pointers, None
                ),
                "cuLaunchKernel",
            )
            self.check(self.cuda.cuCtxSynchronize(), "the kernel")
            self.check(
                self.cuda.cuMemcpyDtoH_v2(
                    ctypes.c_void_p(out.ctypes.data), held[0], ctypes.c_size_t(out.nbytes)
                ),
                "copy",
            )
        finally:
            for address in held:
                self.cuda.cuMemFree_v2(address)
            self.cuda.cuModuleUnload(module)


def same(case: Case, card: Array, ours: Array) -> Array:
    equal: Array = card == ours
    if case.nan is not None:
        nan = case.nan

        def is_nan(codes: Array) -> Array:
            return np.array([nan.decode(int(c)).kind == soft.NAN for c in codes], bool)

        differ = np.flatnonzero(~equal)
        equal[differ] = is_nan(card[differ]) & is_nan(ours[differ])
    return equal


def exact_instructions(card: Card, library: Library, only: str) -> list[dict[str, Any]]:
    rows = []
    for case in CASES:
        if only not in case.instruction:
            continue
        values = inputs(case)
        arrays = [np.array(v, TYPES[b]) for v, b in zip(values, case.shape.sources, strict=True)]
        body = kernels.kernel("k", case.instruction, case.shape)
        here, there = (np.zeros(len(values[0]), TYPES[case.shape.result]) for _ in range(2))
        row: dict[str, Any] = {"instruction": case.instruction, "operands": len(here)}
        try:
            card.run(body, there, [len(there), *arrays], grid=(len(there) + 127) // 128)
        except OSError as error:
            row["refused"] = str(error)
            rows.append(row)
            continue
        library.load(kernels.HEADER + body).run(
            "k", [here, len(here), *arrays], grid=(len(here) + 127) // 128, block=128
        )
        wrong = np.flatnonzero(~same(case, there, here))
        row["different"] = len(wrong)
        if len(wrong):
            n = int(wrong[0])
            row["first"] = {
                "operands": [hex(v[n]) for v in values],
                "card": hex(there[n]),
                "interpreter": hex(here[n]),
            }
        rows.append(row)
    return rows


def approximate_functions(card: Card, library: Library, only: str) -> list[dict[str, Any]]:
    rows = []
    for name, (function, (low, high), kind, bound) in BOUNDS.items():
        if only not in name:
            continue
        rng = np.random.default_rng(zlib.crc32(name.encode()))
        x = rng.uniform(low, high, 1 << 16).astype(np.float32)
        body = kernels.kernel("k", f"{name}.f32 {{d}}, {{a}};", kernels.Shape(32, (32,)))
        results = []
        for target in ("card", "interpreter"):
            out = np.zeros(len(x), np.uint32)
            codes = x.view(np.uint32)
            if target == "card":
                card.run(body, out, [len(out), codes], grid=len(out) // 128)
            else:
                library.load(kernels.HEADER + body).run(
                    "k", [out, len(out), codes], grid=len(out) // 128, block=128
                )
            exact = function(x.astype(np.float64))
            error = np.abs(out.view(np.float32) - exact)
            if "relative" in kind:
                error = (
                    np.minimum(error, error / np.abs(exact))
                    if "absolute" in kind
                    else error / np.abs(exact)
                )
            results.append(float(error.max()))
        rows.append(
            {"function": name, "bound": bound, "card": results[0], "interpreter": results[1]}
        )
    return rows


def matrix_products(card: Card, library: Library, only: str) -> list[dict[str, Any]]:
    """The largest error of each shape over the interpreter's bound; integers have no bound, and
    their error is counted in elements."""
    rows = []
    for shape in SHAPES:
        cases = [product(*shape, seed) for seed in SEEDS]
        if only not in cases[0].opcode:
            continue
        row: dict[str, Any] = {"instruction": cases[0].opcode, "exact": shape[3] == "s32"}
        rows.append(row)
        for case in cases:
            here, there = (np.zeros_like(case.start) for _ in range(2))
            arguments: list[Array | None] = [case.start, *case.sources]
            try:
                card.run(case.text, there, arguments, block=32)
            except OSError as error:
                row["refused"] = str(error)
                break
            library.load(kernels.HEADER + case.text).run("k", [here, *arguments])
            for name, out in (("card", there), ("interpreter", here)):
                off = np.abs(case.read(out) - case.exact)
                worst = (off > 0).sum() if row["exact"] else (off / case.bound).max()
                row[name] = max(row.get(name, 0.0), float(worst))
    return rows


def quantized_rows(card: Card, library: Library, only: str) -> list[dict[str, Any]]:
    rows = []
    for seed in SEEDS if only in "product of quantized rows" else ():
        case = dots.case(seed)
        here, there = (np.zeros(dots.ROWS, np.float32) for _ in range(2))
        arguments: list[Array | int | None] = [dots.ROWS, *case.sources]
        card.run(dots.TEXT, there, arguments, block=dots.ROWS)
        library.load(kernels.HEADER + dots.TEXT).run("k", [here, *arguments], block=dots.ROWS)
        different = int((here.view(np.uint32) != there.view(np.uint32)).sum())
        rows.append({"seed": seed, "rows": dots.ROWS, "different": different})
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--library", type=Path, default=ROOT / "simulator/ptx/out/libptx.so")
    parser.add_argument("--only", default="", help="instructions with this in their text")
    parser.add_argument("--json", type=Path, help="write all results there")
    given = parser.parse_args()
    random.seed(1)
    card, library = Card(), Library(given.library)
    print(
        f"{card.name}, compute capability {card.capability[0]}.{card.capability[1]};"
        f" interpreter: {library.machine}"
    )
    instructions = exact_instructions(card, library, given.only)
    functions = approximate_functions(card, library, given.only)
    products = matrix_products(card, library, given.only)
    quantized = quantized_rows(card, library, given.only)
    refused = [r for r in instructions if "refused" in r]
    different = [r for r in instructions if r.get("different")]
    for row in different:
        print(
            f"{row['instruction']}: {row['different']} of {row['operands']} differ,"
            f" first {row['first']}"
        )
    for row in functions:
        print(
            f"{row['function']}: bound {row['bound']:.2g}, card {row['card']:.2g},"
            f" interpreter {row['interpreter']:.2g}"
        )
    for row in products:
        unit = "elements wrong" if row["exact"] else "of the interpreter's bound"
        found = (
            row.get("refused") or f"card {row['card']:.2g}, interpreter {row['interpreter']:.2g}"
        )
        print(f"{row['instruction']}: {found} {'' if 'refused' in row else unit}".rstrip())
    wrong = [row for row in products if row["exact"] and row.get("card")]
    unequal = [row for row in quantized if row["different"]]
    print(f"products of quantized rows: {len(unequal)} of {len(quantized)} differ")
    print(
        f"{len(instructions)} instructions: {len(refused)} refused by this card,"
        f" {len(different)} differ"
    )
    if given.json:
        given.json.write_text(
            json.dumps(
                {
                    "card": card.name,
                    "instructions": instructions,
                    "functions": functions,
                    "products": products,
                    "quantized": quantized,
                },
                indent=1,
            )
        )
    sys.exit(1 if different or wrong or unequal else 0)


if __name__ == "__main__":
    main()
