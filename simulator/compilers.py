"""One nvcc on the kernels of one tree: compiled to PTX, computed on the CPU, compared."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from simulator import matrices, tree
from simulator.blocks import ROWS, BlockCase, case_of, known, nmse
from simulator.errors import SimulatorError
from simulator.interpreter import KernelError, KernelLaunch, run
from simulator.matrices import MatrixShape
from simulator.tree import Tree

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
    """The parts of a tree that are tried: kernels and cases of ``vec_dot`` by type, and of
    ``mul_mat_q``."""

    tree: Tree
    names: Mapping[str, str]
    cases: Mapping[str, BlockCase]
    parameters: Mapping[str, Sequence[str]]
    """The names of the parameters of ``mul_mat_q`` and its like."""
    shapes: tuple[MatrixShape, ...]
    """The products of matrices."""
    not_compared: Mapping[str, str]
    """Why, by type."""


def kernels_of(found: Tree) -> Kernels:
    """The kernels of a tree that can be compared with gguf-py.

    Raises ``SimulatorError`` where there are none.
    """
    names, lacking = tree.types(found)
    cases: dict[str, BlockCase] = {}
    for name in names:
        if name not in known():
            lacking[name] = "gguf-py does not know it"
            continue
        try:
            cases[name] = case_of(name)
        except NotImplementedError:
            lacking[name] = "gguf-py does not read it"
    for name in known():
        if name not in {*names, *lacking}:
            lacking[name] = f"the tree has no vec_dot_{name}_q8_1"
    if not cases:
        raise SimulatorError(
            f"{tree.HEADER} has no kernel that can be compared",
            "\n".join(f"{name}: {why}" for name, why in lacking.items()),
        )
    parameters, whys = matrices.parameters(found)
    lacking |= whys
    compared = {name: kernel for name, kernel in names.items() if name in cases}
    shapes = tuple(shape for shape in matrices.SHAPES if shape.label not in whys)
    return Kernels(found, compared, cases, parameters, shapes, lacking)


def results(kernels: Kernels, nvcc: Path, program: Path, work: Path) -> dict[str, Result]:
    """The results of an nvcc, by type; ``work`` is an empty directory.

    ``program`` is the interpreter.
    """
    found: dict[str, Result] = {}
    _try_dots(kernels, nvcc, program, work, found)
    if kernels.shapes:
        _try_matrices(kernels, nvcc, program, work, found)
    return found


def _try_dots(
    kernels: Kernels, nvcc: Path, program: Path, work: Path, found: dict[str, Result]
) -> None:
    ptx, why = _compiled(kernels.tree, nvcc, work / "dot.cu", tree.program(kernels.names))
    for name, kernel in kernels.names.items():
        case = kernels.cases[name]

        def error(kernel: str = kernel, case: BlockCase = case) -> float:
            launch = KernelLaunch(ptx, kernel, (1, 1), (ROWS, 1))
            out = np.zeros(ROWS, np.float32)
            [got] = run(program, launch, [case.rows, case.column, out, case.blocks], [2])
            return nmse(got.view(np.float32), case.exact)

        found[name] = why or _result(error)


def _try_matrices(
    kernels: Kernels, nvcc: Path, program: Path, work: Path, found: dict[str, Result]
) -> None:
    source = matrices.program(kernels.shapes)
    ptx, why = _compiled(kernels.tree, nvcc, work / "mmq.cu", source)
    for shape in kernels.shapes:

        def error(shape: MatrixShape = shape) -> float:
            return _product_error(kernels, shape, ptx, program)

        found[shape.label] = why or _result(error)


def _product_error(kernels: Kernels, shape: MatrixShape, ptx: Path, program: Path) -> float:
    """The error of a product; the second kernel reads the values that the first one wrote."""
    text, made = ptx.read_text(), matrices.product(shape)
    values = dict(made.arguments)
    for kernel in shape.kernels:
        name = matrices.mangled(text, kernel, shape.tile)
        if not name:
            raise KernelError(f"not compiled: the PTX has no {kernel} x{shape.tile}")
        warps = matrices.threads(text, name) // WARP
        grid = (shape.blocks, 1 if kernel == matrices.KERNEL else matrices.ROWS // WARP)
        names = kernels.parameters[kernel]
        outs = [matrices.RESULT]
        outs += [matrices.PARTS] if matrices.PARTS in names and len(shape.kernels) > 1 else []
        launch = KernelLaunch(ptx, name, grid, (WARP, warps), matrices.SHARED)
        got = run(program, launch, [values[each] for each in names], [*map(names.index, outs)])
        values |= dict(zip(outs, got, strict=True))
        values[matrices.PARTS_READ] = values[matrices.PARTS]
    return nmse(got[0].view(np.float32).reshape(made.exact.shape), made.exact)


def _compiled(found: Tree, nvcc: Path, source: Path, text: str) -> tuple[Path, str]:
    """The PTX of a CUDA source, and why nvcc refused it, if so."""
    source.write_text(text)
    ptx = source.with_suffix(".ptx")
    headers = [f"-I{folder}" for folder in found.include]
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


def _result(error: Callable[[], float]) -> Result:
    try:
        return float(DIGITS.format(error()))
    except KernelError as fault:
        return str(fault)
