"""mbarrier, bulk copies, boxes of tensors, matrices of bytes in shared memory, cvt.pack."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ptxlab.interpreter import Library, Module, PtxFaultError
from ptxlab.kernels import HEADER
from ptxlab.matrices import pack

Array = np.ndarray[Any, Any]

START = """
.reg .pred %p<16>; .reg .b16 %h<32>; .reg .b32 %r<64>; .reg .b64 %d<32>; .reg .f32 %f<32>;
.shared .align 1024 .b8 tile[16384]; .shared .align 8 .b64 full; .shared .align 8 .b64 empty; .shared .align 128 .b8 map[128];
mov.u32 %r0, %tid.x; mov.u32 %r1, tile; mov.u32 %r2, full; mov.u32 %r3, empty; mov.u32 %r4, map; setp.eq.u32 %p0, %r0, 0;
ld.param.u64 %d0, [p0]; ld.param.u64 %d1, [p1]; mul.wide.u32 %d2, %r0, 4; add.u64 %d3, %d0, %d2; add.u64 %d4, %d1, %d2; shl.b32 %r5, %r0, 2; add.u32 %r6, %r1, %r5;
"""
WAIT = "{{ .reg .pred done; again: mbarrier.try_wait.parity.shared::cta.b64 done, [{0}], {1}; @!done bra.uni again; }}"


def module(library: Library, body: str) -> Module:
    """The kernel ``k``: %r0 thread, %r1 tile, %r2 and %r3 mbarriers, %d0 and %d1 parameters."""
    text = (
        HEADER + ".visible .entry k(.param .u64 p0, .param .u64 p1) {" + START + body + "\nret; }"
    )
    return library.load(text)


def run(library: Library, body: str, out: Array, source: Array, **options: Any) -> Array:
    made = module(library, body)
    assert made.lacks("k") == []
    made.run("k", [out, source], **options)
    return out


def fault(library: Library, body: str, **options: Any) -> PtxFaultError:
    out = np.zeros(1024, np.uint32)
    with pytest.raises(PtxFaultError) as caught:
        module(library, body).run("k", [out, np.arange(4096, dtype=np.uint32)], **options)
    return caught.value


# ---- mbarrier ----

ROUNDS = f"""
  @%p0 mbarrier.init.shared::cta.b64 [%r2], 96; @%p0 mbarrier.init.shared::cta.b64 [%r3], 1; bar.sync 0;
  setp.lt.u32 %p1, %r0, 32; mov.u32 %r10, 0; mov.u32 %r11, 0; @%p1 bra $reads;
  $writes: sub.u32 %r12, %r0, 32; mad.lo.u32 %r12, %r12, 3, %r10; st.shared.u32 [%r6], %r12; mbarrier.arrive.shared::cta.b64 %d10, [%r2];
  and.b32 %r13, %r10, 1; {WAIT.format("%r3", "%r13")} add.u32 %r10, %r10, 1; setp.lt.u32 %p2, %r10, 5; @%p2 bra $writes; bra $end;
  $reads: and.b32 %r13, %r10, 1; {WAIT.format("%r2", "%r13")}
  ld.shared.u32 %r14, [%r6+128]; ld.shared.u32 %r15, [%r6+256]; ld.shared.u32 %r16, [%r6+384]; add.u32 %r11, %r11, %r14; add.u32 %r11, %r11, %r15; add.u32 %r11, %r11, %r16;
  bar.warp.sync -1; @%p0 mbarrier.arrive.shared::cta.b64 _, [%r3]; add.u32 %r10, %r10, 1; setp.lt.u32 %p2, %r10, 5; @%p2 bra $reads; st.global.u32 [%d3], %r11;
  $end:
"""


@pytest.mark.parametrize("races", [0, 1])
def test_warps_hand_over_by_mbarriers(library: Library, races: int) -> None:
    out = run(library, ROUNDS, np.zeros(32, np.uint32), np.zeros(1), block=128, races=races)
    lane = np.arange(32)
    wanted = sum(3 * (lane + 32 * w) + r for r in range(5) for w in range(3))
    assert (out == wanted).all()


def test_a_hand_over_without_a_wait_is_a_race(library: Library) -> None:
    wait = WAIT.format("%r2", "%r13")
    assert wait in ROUNDS
    body = ROUNDS.replace(wait, "").replace("%r10, 5;", "%r10, 1;")  # more rounds would never end
    assert fault(library, body, block=128, races=1).kind == "race"


def test_tokens_counts_and_drops(library: Library) -> None:
    out = run(library, """
      @!%p0 bra $end; mbarrier.init.shared.b64 [%r2], 5; mbarrier.arrive.shared.b64 %d10, [%r2], 2; mbarrier.pending_count.b64 %r10, %d10;
      mbarrier.arrive_drop.shared.b64 %d11, [%r2]; mbarrier.pending_count.b64 %r11, %d11; mbarrier.test_wait.shared.b64 %p1, [%r2], %d10;
      mbarrier.arrive.noComplete.shared.b64 %d12, [%r2], 1; mbarrier.arrive.shared.b64 %d12, [%r2]; mbarrier.test_wait.shared.b64 %p2, [%r2], %d10;
      mbarrier.arrive.shared.b64 %d13, [%r2]; mbarrier.pending_count.b64 %r12, %d13; mbarrier.test_wait.parity.shared.b64 %p3, [%r2], 1; mbarrier.test_wait.parity.shared.b64 %p4, [%r2], 0;
      selp.u32 %r13, 1, 0, %p1; @%p2 add.u32 %r13, %r13, 2; @%p3 add.u32 %r13, %r13, 4; @%p4 add.u32 %r13, %r13, 8; mbarrier.inval.shared.b64 [%r2];
      st.global.v4.u32 [%d0], {%r10, %r11, %r12, %r13}; $end:
    """, np.zeros(4, np.uint32), np.zeros(1))  # fmt: skip
    # Four are expected in the second phase, since one dropped out; its parity is 1.
    assert out.tolist() == [5, 3, 4, 2 + 8]


@pytest.mark.parametrize(
    ("body", "kind", "what"),
    [
        ("mbarrier.arrive.shared.b64 _, [%r2];", "invalid", "is no mbarrier"),
        ("@%p0 mbarrier.init.shared.b64 [%r2], 3; bar.warp.sync -1; mbarrier.arrive.shared.b64 _, [%r2], 4;", "invalid", "more arrivals"),
        ("@%p0 mbarrier.init.shared.b64 [%r2], 3; bar.sync 0; " + WAIT.format("%r2", "0"), "barrier", "never completed"),
        ("@%p0 mbarrier.init.shared.b64 [%r2], 3; bar.sync 0; mbarrier.test_wait.parity.shared.b64 %p1, [%r2], 2;", "invalid", "parity"),
        ("@%p0 mbarrier.init.shared.b64 [%d0], 3;", "invalid", "not in shared"),
        ("mov.u32 %r10, 24; @%p0 mbarrier.init.shared.b64 [%r2], 1; bar.sync 0; @%p0 cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes [%r1], [%d1], %r10, [%r2];", "invalid", "multiple of 16"),
        ("add.u32 %r9, %r1, 8; @%p0 mbarrier.init.shared.b64 [%r2], 1; bar.sync 0; @%p0 cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes [%r9], [%d1], 32, [%r2];", "misaligned", "multiple of 16"),
        ("@%p0 mbarrier.init.shared.b64 [%r2], 1; bar.sync 0; @%p0 cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes [%r1], [%d1+16368], 32, [%r2];", "out of bounds", "after the end"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("fill", [0, 255])
def test_wrong_mbarriers_and_copies(
    library: Library, body: str, kind: str, what: str, fill: int
) -> None:
    body = body.replace("shared.b64 [%d0]", "b64 [%d0]")
    found = fault(library, body, fill=fill)
    assert (found.kind, what in str(found)) == (kind, True), found


def test_cp_async_arrives_at_an_mbarrier(library: Library) -> None:
    data = np.arange(256, dtype=np.uint32) * 7
    for arrive in (".noinc", ""):
        body = f"""
          @%p0 mbarrier.init.shared::cta.b64 [%r2], 64; bar.sync 0; cp.async.ca.shared.global [%r6], [%d4], 4; cp.async.mbarrier.arrive{arrive}.shared::cta.b64 [%r2];
          {"mbarrier.arrive.shared.b64 _, [%r2];" if not arrive else ""} xor.b32 %r7, %r5, 252; add.u32 %r7, %r7, %r1; WAIT ld.shared.u32 %r8, [%r7]; st.global.u32 [%d3], %r8;
        """
        out = np.zeros(64, np.uint32)
        run(library, body.replace("WAIT", WAIT.format("%r2", "0")), out, data, block=64)
        assert (out == data[:64][::-1]).all()
        run(library, body.replace("WAIT", ""), out, data, block=64)
        assert (out == 0).all()  # nothing arrives before it is waited for


# ---- bulk copies ----


def test_bulk_copies_there_and_back(library: Library) -> None:
    body = """
      @%p0 mbarrier.init.shared::cta.b64 [%r2], 1; bar.sync 0; mov.u32 %r10, 512;
      @%p0 mbarrier.arrive.expect_tx.release.cta.shared::cta.b64 _, [%r2], %r10;
      @%p0 cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%r1], [%d1], %r10, [%r2], %d9; WAIT
      ld.shared.u32 %r11, [%r6]; add.u32 %r11, %r11, 1; st.shared.u32 [%r6+1024], %r11; fence.proxy.async.shared::cta; bar.sync 0; add.u32 %r12, %r1, 1024;
      @%p0 cp.async.bulk.global.shared::cta.bulk_group [%d0], [%r12], 512; @%p0 cp.async.bulk.commit_group; @%p0 cp.async.bulk.wait_group.read 0;
    """
    data = np.arange(128, dtype=np.uint32) * 5
    wait = WAIT.format("%r2", "0")
    out = run(
        library, body.replace("WAIT", wait), np.zeros(128, np.uint32), data, block=128, races=1
    )
    assert (out == data + 1).all()
    out = run(library, body.replace("WAIT", ""), np.zeros(128, np.uint32), data, block=128)
    assert (out == 1).all()


def test_a_bulk_group_is_performed_when_it_is_waited_for(library: Library) -> None:
    body = """
      st.shared.u32 [%r6], 1; bar.sync 0; @%p0 cp.async.bulk.global.shared::cta.bulk_group [%d0], [%r1], 128; @%p0 cp.async.bulk.commit_group;
      @%p0 cp.async.bulk.global.shared::cta.bulk_group [%d0+128], [%r1], 128; @%p0 cp.async.bulk.commit_group; @%p0 cp.async.bulk.wait_group.read 1; bar.warp.sync -1;
      st.shared.u32 [%r6], 2; bar.warp.sync -1;
    """.replace("st.shared.u32 [%r6], 1", "mov.u32 %r20, 1; st.shared.u32 [%r6], %r20").replace(
        "st.shared.u32 [%r6], 2", "mov.u32 %r20, 2; st.shared.u32 [%r6], %r20"
    )
    out = run(library, body, np.zeros(64, np.uint32), np.zeros(1))
    assert out.tolist() == [1] * 32 + [2] * 32


@pytest.mark.parametrize(
    ("op", "kind", "wanted"),
    [("add.f32", np.float32, np.add), ("add.noftz.f16", np.float16, np.add), ("min.s32", np.int32, np.minimum),
     ("max.u32", np.uint32, np.maximum), ("add.u64", np.uint64, np.add), ("and.b32", np.uint32, np.bitwise_and), ("add.f64", np.float64, np.add)],
)  # fmt: skip
def test_bulk_reductions(library: Library, op: str, kind: type, wanted: np.ufunc) -> None:
    rng = np.random.default_rng(3)
    count = 1024 // np.dtype(kind).itemsize
    one: Array = rng.integers(0, 100, count).astype(kind)
    two: Array = rng.integers(0, 100, count).astype(kind)
    body = f"""
      ld.global.u32 %r10, [%d4]; st.shared.u32 [%r6], %r10; fence.proxy.async; bar.sync 0;
      @%p0 cp.reduce.async.bulk.global.shared::cta.bulk_group.{op} [%d0], [%r1], 1024; @%p0 cp.async.bulk.commit_group; @%p0 cp.async.bulk.wait_group 0;
    """
    out = one.copy()
    run(library, body, out, two, block=256)
    assert (out == wanted(one, two)).all()


# ---- boxes of tensors ----


def encode(kind: int, sizes: list[int], strides: list[int], box: list[int], steps: list[int], swizzle: int, fill: int) -> str:  # fmt: skip
    """A map made as Triton makes it: zeros, and each field replaced."""

    def field(name: str, bits: int, *values: Any) -> str:
        listed = ", ".join(str(v) for v in values)
        return f"@%p0 tensormap.replace.tile.{name}.shared::cta.b1024.b{bits} [%r4], {listed};\n"

    def number(name: str, bits: int, ordinal: int, value: int) -> str:
        register = {32: "%r20", 64: "%d20"}[bits]
        return f"mov.b{bits} {register}, {value}; " + field(name, bits, ordinal, register)

    text = "setp.lt.u32 %p1, %r0, 32; mov.u32 %r20, 0; add.u32 %r21, %r4, %r5; @%p1 st.shared.u32 [%r21], %r20; bar.sync 0;\n"
    text += field("global_address", 64, "%d5") + field("rank", 32, len(sizes) - 1)
    for d, (size, edge, step) in enumerate(zip(sizes, box, steps, strict=True)):
        text += number("global_dim", 32, d, size) + number("box_dim", 32, d, edge)
        text += number("element_stride", 32, d, step)
    for d, stride in enumerate(strides):
        text += number("global_stride", 64, d, stride)
    text += field("elemtype", 32, kind) + field("interleave_layout", 32, 0)
    text += field("swizzle_mode", 32, swizzle) + field("fill_mode", 32, fill)
    return text + "bar.sync 0; cvt.u64.u32 %d6, %r4; cvta.shared.u64 %d6, %d6;\n"


def swizzled(tile: Array, mode: int) -> Array:
    """Bytes as they lie in memory that begins at a multiple of 1024."""
    flat = np.ascontiguousarray(tile).view(np.uint8).reshape(-1)
    out = np.zeros_like(flat)
    at = np.arange(flat.size)
    out[at ^ ((at >> 7 & ((1 << mode) - 1)) << 4)] = flat
    return out


def box_of(tensor: Array, first: list[int], box: list[int], steps: list[int], fill: Any) -> Array:
    """The box at these coordinates, dimension 0 last; what the tensor lacks is ``fill``."""
    rank = tensor.ndim
    edges = [-(-b // s) if d else b for d, (b, s) in enumerate(zip(box, steps, strict=True))]
    out = np.full(edges[::-1], fill, tensor.dtype)
    for place in np.ndindex(*out.shape):
        index = [first[d] + place[rank - 1 - d] * (steps[d] if d else 1) for d in range(rank)]
        if all(0 <= i < tensor.shape[rank - 1 - d] for d, i in enumerate(index)):
            out[place] = tensor[tuple(index[::-1])]
    return out


KINDS = {np.uint8: 0, np.uint16: 1, np.int32: 3, np.float16: 6, np.float32: 7, np.float64: 9}
BOXES = [
    (np.float16, [64, 32], [64, 8], [0, 8], [1, 1], 3), (np.float16, [100, 30], [64, 16], [64, 20], [1, 1], 3), (np.float16, [64, 32], [32, 16], [-8, -3], [1, 1], 2),
    (np.uint8, [64, 32], [32, 16], [16, 30], [1, 1], 1), (np.float32, [40, 9], [16, 4], [32, 7], [1, 1], 0), (np.uint8, [300, 5], [128, 4], [200, 2], [1, 1], 3),
    (np.float32, [64], [64], [16], [1], 0), (np.uint16, [24, 6, 5], [16, 4, 2], [8, -1, 4], [1, 1, 1], 0), (np.float64, [8, 3, 3, 2], [4, 2, 2, 2], [4, 2, 1, 1], [1] * 4, 0),
    (np.int32, [8, 3, 4, 2, 3], [4, 2, 3, 1, 2], [4, 1, 2, 1, 2], [1] * 5, 0), (np.float32, [16, 20], [16, 9], [0, 1], [1, 2], 2),
]  # fmt: skip


@pytest.mark.parametrize("case", range(len(BOXES)))
def test_boxes_of_tensors(library: Library, case: int) -> None:
    kind, sizes, box, first, steps, swizzle = BOXES[case]
    rng = np.random.default_rng(case)
    rank, width = len(sizes), np.dtype(kind).itemsize
    # Rows are longer than the tensor is wide.
    pitch = -(-sizes[0] * width // 16) * 16 // width + 16 // width
    store = rng.integers(1, 100, [*sizes[:0:-1], pitch]).astype(kind)
    tensor = store[..., : sizes[0]]
    strides = list(store.strides[-2::-1])
    wanted = box_of(tensor, first, box, steps, 0)
    coordinates = "{" + ", ".join(f"%r{30 + d}" for d in range(rank)) + "}"
    moves = " ".join(f"mov.b32 %r{30 + d}, {c};" for d, c in enumerate(first))
    body = "mov.u64 %d5, %d1;" + encode(KINDS[kind], sizes, strides, box, steps, swizzle, 0) + moves
    load = f"""
      @%p0 mbarrier.init.shared::cta.b64 [%r2], 1; bar.sync 0; @%p0 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r2], {wanted.nbytes};
      @%p0 cp.async.bulk.tensor.{rank}d.shared::cta.global.tile.mbarrier::complete_tx::bytes [%r1], [%d6, {coordinates}], [%r2]; {WAIT.format("%r2", "0")}
      mov.u32 %r40, %r5; $copy: add.u32 %r41, %r1, %r40; cvt.u64.u32 %d21, %r40; add.u64 %d21, %d21, %d0; ld.shared.u32 %r42, [%r41]; st.global.u32 [%d21], %r42;
      add.u32 %r40, %r40, 256; setp.lt.u32 %p2, %r40, {wanted.nbytes}; @%p2 bra $copy;
    """
    out = np.zeros(max(wanted.nbytes, 256) + 256, np.uint8)
    run(library, body + load, out, store, block=64, races=1)
    assert (out[: wanted.nbytes] == swizzled(wanted, swizzle)).all()

    # The same box, written: only what the tensor has.
    tile = rng.integers(1, 100, wanted.shape).astype(kind)
    bytes_in = np.zeros(-(-tile.nbytes // 256) * 256, np.uint8)
    bytes_in[: tile.nbytes] = swizzled(tile, swizzle)
    back = f"""
      mov.u32 %r40, %r5; $copy: add.u32 %r41, %r1, %r40; cvt.u64.u32 %d21, %r40; add.u64 %d21, %d21, %d1; ld.global.u32 %r42, [%d21]; st.shared.u32 [%r41], %r42;
      add.u32 %r40, %r40, 256; setp.lt.u32 %p2, %r40, {wanted.nbytes}; @%p2 bra $copy; fence.proxy.async.shared::cta; bar.sync 0;
      @%p0 cp.async.bulk.tensor.{rank}d.global.shared::cta.tile.bulk_group [%d6, {coordinates}], [%r1]; @%p0 cp.async.bulk.commit_group; @%p0 cp.async.bulk.wait_group 0;
    """
    again = store.copy()
    run(library, body.replace("%d5, %d1", "%d5, %d0") + back, again, bytes_in, block=64)
    expected = store.copy()
    inside = expected[..., : sizes[0]]
    for place in np.ndindex(*tile.shape):
        index = [first[d] + place[rank - 1 - d] * (steps[d] if d else 1) for d in range(rank)]
        if all(0 <= i < sizes[d] for d, i in enumerate(index)):
            inside[tuple(index[::-1])] = tile[place]
    assert (again == expected).all()


def test_a_box_added_to_a_tensor_and_a_map_in_global_memory(library: Library) -> None:
    tensor = np.arange(32 * 8, dtype=np.float32).reshape(8, 32)
    body = "mov.u64 %d5, %d0;" + encode(7, [32, 8], [128], [32, 4], [1, 1], 0, 0) + """
      setp.lt.u32 %p3, %r0, 32; add.u64 %d7, %d1, 512; @%p3 tensormap.cp_fenceproxy.global.shared::cta.tensormap::generic.release.gpu.sync.aligned [%d7], [%r4], 128;
      mov.f32 %f1, 0f3FC00000; st.shared.f32 [%r6], %f1; fence.proxy.async.shared::cta; bar.sync 0; fence.proxy.tensormap::generic.acquire.gpu [%d7], 128; mov.u32 %r30, 0; mov.u32 %r31, 6;
      @%p0 cp.reduce.async.bulk.tensor.2d.global.shared::cta.add.tile.bulk_group [%d7, {%r30, %r31}], [%r1]; @%p0 cp.async.bulk.commit_group; @%p0 cp.async.bulk.wait_group 0;
    """  # fmt: skip
    space = np.zeros(1024 + 128, np.uint8)
    aligned = space[-space.ctypes.data % 128 :][:1024]
    out = run(library, body, tensor.copy(), aligned, block=128)
    assert (out[:6] == tensor[:6]).all()
    assert (out[6:] == tensor[6:] + 1.5).all()


def test_a_map_that_nobody_made(library: Library) -> None:
    body = "mov.u32 %r30, 0; cvt.u64.u32 %d6, %r4; cvta.shared.u64 %d6, %d6; @%p0 cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%d6, {%r30, %r30}], [%r1];"
    for fill in (0, 255):
        assert "tensor map" in str(fault(library, body, fill=fill))


# ---- matrices of bytes ----


@pytest.mark.parametrize("bits", [8, 6, 4])
@pytest.mark.parametrize(("shape", "count"), [("m8n16", 1), ("m8n16", 2), ("m8n16", 4), ("m16n16", 1), ("m16n16", 2)])  # fmt: skip
def test_matrices_of_bytes(library: Library, shape: str, count: int, bits: int) -> None:
    if shape == "m8n16" and bits == 8:
        pytest.skip("no such form")
    codes = np.random.default_rng(bits).integers(0, 1 << bits, (32, 16)).astype(np.uint64)
    memory = np.full((32, 16), 0xEE, np.uint8)  # what pads a row is not read
    for row in range(32):
        packed = sum(int(c) << (bits * e) for e, c in enumerate(codes[row]))
        memory[row, : 2 * bits] = list(packed.to_bytes(2 * bits, "little"))
    form = {8: ".b8", 6: ".b8x16.b6x16_p32", 4: ".b8x16.b4x16_p64"}[bits]
    trans = ".trans" if shape == "m16n16" else ""
    registers = count * (2 if trans else 1)
    names = "{" + ", ".join(f"%r{10 + i}" for i in range(registers)) + "}"
    stores = " ".join(f"st.global.u32 [%d3+{128 * i}], %r{10 + i};" for i in range(registers))
    out = run(library, f"""
      mul.wide.u32 %d10, %r0, 16; add.u64 %d10, %d10, %d1; ld.global.v4.u32 {{%r20, %r21, %r22, %r23}}, [%d10]; mad.lo.u32 %r7, %r0, 16, %r1; st.shared.v4.u32 [%r7], {{%r20, %r21, %r22, %r23}};
      bar.warp.sync -1; ldmatrix.sync.aligned.{shape}.x{count}{trans}.shared{form} {names}, [%r7]; {stores}
    """, np.zeros((4, 32), np.uint32), memory)  # fmt: skip
    for i in range(registers):
        # The fragment of B in mma.m16n8k16 for bytes: rows are columns of B.
        rows = codes[16 * (i // 2) :][:16].T[8 * (i % 2) :][:8] if trans else codes[8 * i :][:8]
        assert (out[i] == pack(rows, 8, 16, 8)[0]).all(), i


@pytest.mark.parametrize("count", [1, 2, 4])
def test_products_are_stored_as_columns_of_bytes(library: Library, count: int) -> None:
    d = np.random.default_rng(count).integers(0, 256, (count, 16, 8)).astype(np.uint8)
    words = np.zeros((4, 32), np.uint32)
    for i in range(count):
        for lane in range(32):
            g, t = divmod(lane, 4)
            word = [d[i, g, 2 * t], d[i, g, 2 * t + 1], d[i, g + 8, 2 * t], d[i, g + 8, 2 * t + 1]]
            words[i, lane] = int.from_bytes(bytes(word), "little")
    loads = " ".join(f"ld.global.u32 %r{10 + i}, [%d4+{128 * i}];" for i in range(4))
    names = "{" + ", ".join(f"%r{10 + i}" for i in range(count)) + "}"
    out = run(library, f"""
      {loads} mad.lo.u32 %r7, %r0, 16, %r1; stmatrix.sync.aligned.m16n8.x{count}.trans.shared.b8 [%r7], {names}; bar.warp.sync -1;
      ld.shared.v4.u32 {{%r20, %r21, %r22, %r23}}, [%r7]; mul.wide.u32 %d10, %r0, 16; add.u64 %d10, %d10, %d0; st.global.v4.u32 [%d10], {{%r20, %r21, %r22, %r23}};
    """, np.zeros((4, 8, 16), np.uint8), words)  # fmt: skip
    assert (out[:count] == d.transpose(0, 2, 1)).all()


# ---- cvt.pack, braces, opcodes that nobody knows ----


@pytest.mark.parametrize("to", ["u16", "s16", "u8", "s8", "u4", "s4", "u2", "s2"])
def test_integers_are_packed(library: Library, to: str) -> None:
    bits, signed = int(to[1:]), to[0] == "s"
    rng = np.random.default_rng(bits)
    a, b = (
        (rng.integers(-(2**31), 2**31, 32) >> rng.integers(0, 31, 32)).astype(np.int32)
        for _ in "ab"
    )
    c = rng.integers(0, 2**32, 32).astype(np.uint32)
    third, last = ("", "") if bits == 16 else (".b32", ", %r12")
    out = run(library, f"""
      ld.global.u32 %r10, [%d4]; ld.global.u32 %r11, [%d4+128]; ld.global.u32 %r12, [%d4+256]; cvt.pack.sat.{to}.s32{third} %r13, %r10, %r11{last}; st.global.u32 [%d3], %r13;
    """, np.zeros(32, np.uint32), np.concatenate([a.view(np.uint32), b.view(np.uint32), c]))  # fmt: skip
    low, high = (-(1 << bits - 1), (1 << bits - 1) - 1) if signed else (0, (1 << bits) - 1)
    mask = (1 << bits) - 1
    wanted = (np.clip(a, low, high).astype(np.int64) & mask) << bits
    wanted |= np.clip(b, low, high).astype(np.int64) & mask
    if bits < 16:
        wanted |= c.astype(np.int64) << 2 * bits & 0xFFFFFFFF
    assert (out == wanted).all()


def test_labels_are_known_in_their_own_braces(library: Library) -> None:
    loop = "{{ .reg .pred more; again: add.u32 %r10, %r10, {0}; setp.lt.u32 more, %r10, {1}; @more bra.uni again; }}"
    body = "mov.u32 %r10, 0;" + loop.format(1, 10) + loop.format(100, 1000)
    out = run(library, body + "st.global.u32 [%d3], %r10;", np.zeros(32, np.uint32), np.zeros(1))
    assert (out == 1010).all()


@pytest.mark.parametrize(
    "unknown",
    ["fence.proxy.later;", "mma.sync.aligned.m16n8k32.row.col.f32.e4m3.e4m3.f32.ue8m0 {%f0,%f1,%f2,%f3}, {%r10,%r11,%r12,%r13}, {%r14,%r15}, {%f0,%f1,%f2,%f3}, {%r10, %r11}, {0, 0}, %r10, {0, 0};",
     "cp.async.bulk.tensor.3d.shared::cta.global.im2col.mbarrier::complete_tx::bytes [%r1], [%d6, {%r30, %r31, %r32}], [%r2], {%h1};",
     "mbarrier.arrive.later.shared.b64 _, [%r2];", "cvt.pack.sat.u8.s32 %r10, %r11, %r12;", "ldmatrix.sync.aligned.m16n16.x4.trans.shared.b8 {%r10, %r11, %r12, %r13}, [%r1];"],
)  # fmt: skip
def test_an_unknown_form_ends_the_kernel_only_where_it_is_reached(
    library: Library, unknown: str
) -> None:
    body = f"setp.gt.u32 %p9, %r0, 5000; @%p9 bra $there; st.global.u32 [%d3], %r0; bra $end; $there: {unknown} $end:"
    made = module(library, body)
    [opcode] = made.lacks("k")
    assert unknown.startswith(opcode)
    out = np.zeros(32, np.uint32)
    made.run("k", [out, np.zeros(1)])
    assert (out == np.arange(32)).all()
    with pytest.raises(PtxFaultError) as caught:
        module(library, body.replace("5000", "5")).run("k", [out, np.zeros(1)])
    assert caught.value.kind == "not computed"
