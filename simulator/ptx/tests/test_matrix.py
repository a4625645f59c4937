"""mma.sync, ldmatrix, stmatrix, movmatrix, a product of quantized rows; approximate functions
within the document's bounds."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ptxlab import dots
from ptxlab.approximate import BOUNDS
from ptxlab.interpreter import Library
from ptxlab.kernels import HEADER
from ptxlab.matrices import SHAPES, product

Array = np.ndarray[Any, Any]


@pytest.mark.parametrize(("shape", "a", "b", "c", "special"), SHAPES)
@pytest.mark.parametrize("seed", range(3))
def test_mma(library: Library, shape: str, a: str, b: str, c: str, special: str, seed: int) -> None:
    case = product(shape, a, b, c, special, seed)
    made = library.load(HEADER + case.text)
    assert made.lacks("k") == []
    out = np.zeros_like(case.start)
    made.run("k", [out, case.start, *case.sources])
    assert (np.abs(case.read(out) - case.exact) <= case.bound).all()


@pytest.mark.parametrize("seed", range(3))
def test_a_product_of_quantized_rows(library: Library, seed: int) -> None:
    case = dots.case(seed)
    out = np.zeros(dots.ROWS, np.float32)
    library.load(HEADER + dots.TEXT).run("k", [out, dots.ROWS, *case.sources], block=dots.ROWS)
    assert (np.abs(out - case.exact) <= case.bound).all()


@pytest.mark.parametrize("trans", [False, True])
@pytest.mark.parametrize("count", [1, 2, 4])
def test_matrices_in_shared_memory(library: Library, count: int, trans: bool) -> None:
    t = ".trans" if trans else ""
    names = "{" + ", ".join(f"%r{10 + i}" for i in range(count)) + "}"
    text = (
        HEADER
        + f""".visible .entry k(.param .u64 p0, .param .u64 p1) {{
      .reg .b32 %r<32>; .reg .b64 %d<8>; .shared .align 16 .b8 s[1024];
      mov.u32 %r0, %laneid; mul.wide.u32 %d1, %r0, 16; ld.param.u64 %d0, [p1]; add.u64 %d0, %d0, %d1; mov.u32 %r1, s; mad.lo.u32 %r1, %r0, 16, %r1;
      ld.global.v4.u32 {{%r2, %r3, %r4, %r5}}, [%d0]; st.shared.v4.u32 [%r1], {{%r2, %r3, %r4, %r5}};
      ldmatrix.sync.aligned.m8n8.x{count}{t}.shared.b16 {names}, [%r1];
      add.u32 %r6, %r1, 512; stmatrix.sync.aligned.m8n8.x{count}.shared.b16 [%r6], {names}; mov.u32 %r20, %r10; movmatrix.sync.aligned.m8n8.trans.b16 %r21, %r20;
      ld.param.u64 %d0, [p0]; add.u64 %d0, %d0, %d1; ld.shared.v4.u32 {{%r2, %r3, %r4, %r5}}, [%r1+512]; st.global.v4.u32 [%d0], {{%r2, %r3, %r4, %r5}};
      ld.param.u64 %d0, [p0]; mul.wide.u32 %d1, %r0, 4; add.u64 %d0, %d0, %d1; st.global.u32 [%d0+512], %r21; ret; }}"""
    )
    data = np.arange(256, dtype=np.uint16).reshape(4, 8, 8)
    out = np.zeros(320, np.uint16)
    library.load(text).run("k", [out, data])
    expected = data.transpose(0, 2, 1) if trans else data
    assert (out[: count * 64].reshape(count, 8, 8) == expected[:count]).all()
    # movmatrix transposes the first one.
    assert (out[256:].reshape(8, 8) == expected[0].T).all()


@pytest.mark.parametrize("layouts", ["row.col", "col.row"])
@pytest.mark.parametrize("shape", ["m16n16k16", "m8n32k16", "m32n8k16"])
@pytest.mark.parametrize("total", ["f32", "f16"])
def test_wmma(library: Library, shape: str, layouts: str, total: str) -> None:
    m, n, depth = (
        int(v) for v in shape.replace("m", "").replace("n", " ").replace("k", " ").split()
    )
    left, right = layouts.split(".")
    rng = np.random.default_rng(9)
    a = rng.integers(-4, 5, (m, depth)).astype(np.float16)
    b = rng.integers(-4, 5, (depth, n)).astype(np.float16)
    kind = np.float32 if total == "f32" else np.float16
    c = rng.integers(-4, 5, (m, n)).astype(kind)
    words = 8 if total == "f32" else 4
    names = [
        "{" + ", ".join(f"%r{first + i}" for i in range(count)) + "}"
        for first, count in ((1, 8), (9, 8), (17, words))
    ]
    text = (
        HEADER
        + f""".visible .entry k(.param .u64 p0, .param .u64 p1, .param .u64 p2, .param .u64 p3) {{
      .reg .b32 %r<32>; .reg .b64 %d<8>; ld.param.u64 %d0, [p0]; ld.param.u64 %d1, [p1]; ld.param.u64 %d2, [p2]; ld.param.u64 %d3, [p3];
      wmma.load.a.sync.aligned.{left}.{shape}.global.f16 {names[0]}, [%d1], {depth if left == "row" else m};
      wmma.load.b.sync.aligned.{right}.{shape}.f16 {names[1]}, [%d2], {n if right == "row" else depth};
      wmma.load.c.sync.aligned.row.{shape}.global.{total} {names[2]}, [%d3];
      wmma.mma.sync.aligned.{layouts}.{shape}.{total}.{total} {names[2]}, {names[0]}, {names[1]}, {names[2]};
      wmma.store.d.sync.aligned.col.{shape}.global.{total} [%d0], {names[2]}, {m}; ret; }}"""
    )
    made = library.load(text)
    assert made.lacks("k") == []
    out = np.zeros((n, m), kind)
    stored = [
        np.ascontiguousarray(x if layout == "row" else x.T) for x, layout in ((a, left), (b, right))
    ]
    made.run("k", [out, *stored, c])
    assert (a.astype(np.float64) @ b.astype(np.float64) + c.astype(np.float64) == out.T).all()


@pytest.mark.parametrize("ftz", ["", ".ftz"])
@pytest.mark.parametrize("name", list(BOUNDS))
def test_approximate_functions_are_within_the_documents_bounds(
    library: Library, name: str, ftz: str
) -> None:
    function, (low, high), kind, bound = BOUNDS[name]
    ftz = "" if name == "tanh.approx" else ftz
    text = (
        HEADER
        + f""".visible .entry k(.param .u64 p0, .param .u64 p1) {{ .reg .b32 %r<4>; .reg .b64 %d<8>; .reg .f32 %f<4>;
      mov.u32 %r0, %ctaid.x; mov.u32 %r1, %tid.x; mad.lo.u32 %r0, %r0, 128, %r1; mul.wide.u32 %d1, %r0, 4; ld.param.u64 %d2, [p0]; ld.param.u64 %d3, [p1];
      add.u64 %d2, %d2, %d1; add.u64 %d3, %d3, %d1; ld.global.f32 %f1, [%d3]; {name}{ftz}.f32 %f2, %f1; st.global.f32 [%d2], %f2; ret; }}"""
    )
    x = np.random.default_rng(3).uniform(low, high, 8192).astype(np.float32)
    x[:8] = [0, -0.0, np.inf, -np.inf, np.nan, 1, 1e-40, 0.03]
    out = np.zeros_like(x)
    library.load(text).run("k", [out, x], grid=64, block=128)
    with np.errstate(all="ignore"):
        source = (
            np.where(np.abs(x) < np.finfo(np.float32).tiny, np.copysign(np.float32(0), x), x)
            if ftz
            else x
        )
        exact = function(source.astype(np.float64))
    special = ~np.isfinite(exact) | (exact == 0) | (np.abs(exact) > 3e38)
    usual = ~special & (np.abs(exact) > 1e-37)
    error = np.abs(out[usual] - exact[usual])
    if kind == "relative":
        error = error / np.abs(exact[usual])
    if kind == "absolute-or-relative":
        error = np.minimum(error, error / np.abs(exact[usual]))
    assert error.max() <= bound
    if name not in ("sin.approx", "cos.approx"):
        with np.errstate(all="ignore"):
            narrow = exact.astype(np.float32)
        assert ((out[special] == narrow[special]) | np.isnan(narrow[special])).all()
    assert np.isnan(out[4])
