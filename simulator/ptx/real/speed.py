"""How fast the interpreter is: lane instructions per second, and over a plain interpreter in Python.

    python simulator/ptx/real/speed.py --tree llama.cpp/ggml --nvcc nvcc --work /tmp/ptx

Seconds are the processor's, of all threads together, so that other programs on the machine
do not count.
"""

from __future__ import annotations

import sys
import time

import ggml
import numpy as np
import plain

from ptxlab.interpreter import Library


def product(library: Library, tree: ggml.Tree, name: str) -> float:
    """Lane instructions per second and core of a product with one column."""
    module = library.load(tree.ptx(ggml.HERE / "vec_dot.cu"))
    rng = np.random.default_rng(2)
    rows, depth = 4096, 2048
    blocks, _ = ggml.random_blocks(name, rows, depth, rng)
    y, _ = ggml.q8_1(rng.standard_normal(depth).astype(np.float32))
    out = np.zeros(rows, np.float32)
    best = 0.0
    for _ in range(5):
        run = module.run(name, [blocks, y, out, blocks.shape[1]], grid=32, block=128)
        best = max(best, run.lane_instructions / run.cpu_seconds)
    return best


def in_python(tree: ggml.Tree, name: str) -> float:
    """The seconds of the plain interpreter."""
    rng = np.random.default_rng(2)
    threads, depth = 4, 2048
    blocks, values = ggml.random_blocks(name, threads, depth, rng)
    y, means = ggml.q8_1(rng.standard_normal(depth).astype(np.float32))
    out = np.zeros(threads, np.float32)
    kernel = plain.Kernel(tree.ptx(ggml.HERE / "vec_dot.cu"), name)
    start = time.process_time()
    for thread in range(threads):
        kernel.run(thread, [blocks.ctypes.data, y.ctypes.data, out.ctypes.data, blocks.shape[1]])
    seconds = time.process_time() - start
    if ggml.nmse(out, values @ means) > ggml.LIMIT:
        sys.exit(f"the plain interpreter computes {name} wrong")
    return kernel.executed / seconds


def matrices(library: Library, tree: ggml.Tree, name: str, precision: str) -> tuple[float, float]:
    """Lane instructions, and multiplications and additions, per second and core of mmq."""
    quantize, _ = tree.module(library, "quantize.cu", "quantize_mmq_q8_1")
    module, text = tree.module(library, f"template-instances/mmq-instance-{name}.cu", "9mul_mat_q")
    rows, depth, columns = 1024, 1024, 64
    launch = ggml.mmq_launch(module, text, quantize, name, precision, rows, depth, columns)
    lanes = products = 0.0
    for _ in range(5):
        run = launch.run()
        lanes = max(lanes, run.lane_instructions / run.cpu_seconds)
        products = max(products, 2 * rows * depth * columns / run.cpu_seconds)
    return lanes, products


def main() -> None:
    parser = ggml.arguments(__doc__)
    given = parser.parse_args()
    library = Library(given.library)
    tree = ggml.tree_of(parser, given)
    print(f"{library.machine}, lane instructions per second of a core:")
    for name in ("q8_0", "q4_0", "q4_K", "q6_K", "iq3_s"):
        print(f"  {name:18} {product(library, tree, name) / 1e6:7.0f} M")
    for name in ("q8_0", "q4_0"):
        slow, fast = in_python(tree, name), product(library, tree, name)
        print(f"  {name} in Python    {slow / 1e6:7.2f} M, the ratio is {fast / slow:.0f}")
    for name, precision in (("q4_0", "prec30"), ("mxfp4", "prec40")):
        lanes, products = matrices(library, tree, name, precision)
        print(f"  mmq {name:14} {lanes / 1e6:7.0f} M, {products / 1e9:.1f} GFLOP/s")


if __name__ == "__main__":
    main()
