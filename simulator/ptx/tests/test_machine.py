"""Control flow, memory, what lanes and warps do together, and what is wrong with kernels."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from ptxlab.interpreter import Library, Module, PtxError, PtxFaultError
from ptxlab.kernels import HEADER

FULL = "0xffffffff"
START = """
.reg .pred %p<16>; .reg .b16 %h<32>; .reg .b32 %r<64>; .reg .b64 %d<32>; .reg .f32 %f<32>;
mov.u32 %r0, %tid.x; ld.param.u64 %d0, [p0]; mul.wide.u32 %d1, %r0, 4; add.u64 %d1, %d0, %d1;
"""


def module(library: Library, body: str, before: str = "", parameters: int = 1) -> Module:
    """A module with the kernel `k`: %r0 is the thread, %d0 its first parameter, %d1 = %d0 + 4 %r0."""
    listed = ", ".join(f".param .u64 p{i}" for i in range(parameters))
    return library.load(
        HEADER + before + f".visible .entry k({listed})\n{{{START}{body}\nret;\n}}\n"
    )


def run(
    library: Library, body: str, block: int = 32, before: str = "", grid: int = 1, **options: Any
) -> Any:
    """What the threads of `k` store at [%d1]."""
    out = np.zeros(block * grid, np.uint32)
    made = module(library, body, before)
    assert made.lacks("k") == []
    made.run("k", [out], block=block, grid=grid, **options)
    return out


def fault(
    library: Library, body: str, block: int = 32, before: str = "", grid: int = 1, **options: Any
) -> PtxFaultError:
    out = np.zeros(block * grid, np.uint32)
    with pytest.raises(PtxFaultError) as caught:
        module(library, body, before).run("k", [out], block=block, grid=grid, **options)
    return caught.value


LANE = np.arange(32, dtype=np.uint32)


# ---- control flow ----


def test_threads_that_part_meet_again(library: Library) -> None:
    out = run(library, """
      mov.u32 %r1, 100; and.b32 %r2, %r0, 1; setp.eq.u32 %p1, %r2, 0; @%p1 bra $even;
      add.u32 %r1, %r1, 1; bra $end;
      $even: add.u32 %r1, %r1, 2;
      $end: activemask.b32 %r3; setp.eq.u32 %p2, %r3, -1; @%p2 add.u32 %r1, %r1, 1000; st.global.u32 [%d1], %r1;
    """)  # fmt: skip
    assert (out == np.where(LANE % 2 == 0, 1102, 1101)).all()


def test_loops_of_different_lengths(library: Library) -> None:
    out = run(library, """
      mov.u32 %r1, 0; mov.u32 %r2, 0;
      $loop: add.u32 %r2, %r2, %r1; add.u32 %r1, %r1, 1; setp.le.u32 %p1, %r1, %r0; @%p1 bra $loop;
      activemask.b32 %r3; setp.ne.u32 %p2, %r3, -1; @%p2 mov.u32 %r2, 9999; st.global.u32 [%d1], %r2;
    """)  # fmt: skip
    assert (out == LANE * (LANE + 1) // 2).all()


def test_loops_in_loops_with_breaks(library: Library) -> None:
    out = run(library, """
      mov.u32 %r1, 0; mov.u32 %r4, 0;
      $outer: mov.u32 %r2, 0;
      $inner: add.u32 %r4, %r4, 1; xor.b32 %r3, %r2, %r0; and.b32 %r3, %r3, 7; setp.eq.u32 %p1, %r3, 5; @%p1 bra $out;
      add.u32 %r2, %r2, 1; setp.lt.u32 %p2, %r2, %r0; @%p2 bra $inner;
      $out: add.u32 %r1, %r1, 1; setp.lt.u32 %p3, %r1, 3; @%p3 bra $outer;
      st.global.u32 [%d1], %r4;
    """)  # fmt: skip
    expected = []
    for thread in range(32):
        count = 0
        for _ in range(3):
            i = 0
            while True:
                count += 1
                if (i ^ thread) & 7 == 5:
                    break
                i += 1
                if i >= thread:
                    break
        expected.append(count)
    assert out.tolist() == expected


def test_a_table_of_branches(library: Library) -> None:
    out = run(library, """
      and.b32 %r1, %r0, 3; $table: .branchtargets $a, $b, $c, $b; brx.idx %r1, $table;
      $a: mov.u32 %r2, 10; bra $end; $b: mov.u32 %r2, 20; bra $end; $c: mov.u32 %r2, 30;
      $end: activemask.b32 %r3; popc.b32 %r3, %r3; add.u32 %r2, %r2, %r3; st.global.u32 [%d1], %r2;
    """)  # fmt: skip
    assert (out == np.array([42, 52, 62, 52] * 8)).all()


FUNCTIONS = """
.func (.param .b32 r) twice(.param .b32 a) { .reg .b32 %x<4>; ld.param.u32 %x1, [a]; shl.b32 %x1, %x1, 1; st.param.b32 [r], %x1; ret; }
.func (.param .b32 r) thrice(.param .b32 a) { .reg .b32 %x<4>; .reg .pred %q; ld.param.u32 %x1, [a];
  setp.gt.u32 %q, %x1, 15; @%q bra $big; mul.lo.u32 %x1, %x1, 3; st.param.b32 [r], %x1; ret;
  $big: mov.u32 %x2, 7; st.param.b32 [r], %x2; ret; }
"""
CALL = """{{ .param .b32 q; st.param.b32 [q], {a}; .param .b32 s; call.uni (s), {f}, (q){p}; ld.param.b32 {d}, [s]; }}"""


def test_calls(library: Library) -> None:
    body = CALL.format(a="%r0", f="twice", p="", d="%r2") + CALL.format(
        a="%r0", f="thrice", p="", d="%r3"
    )
    out = run(
        library,
        body
        + "add.u32 %r2, %r2, %r3; activemask.b32 %r4; setp.ne.u32 %p1, %r4, -1; @%p1 mov.u32 %r2, 0; st.global.u32 [%d1], %r2;",
        before=FUNCTIONS,
    )
    assert (out == np.where(LANE > 15, 2 * LANE + 7, 5 * LANE)).all()


def test_calls_through_registers(library: Library) -> None:
    body = "mov.u64 %d2, twice; mov.u64 %d3, thrice; and.b32 %r1, %r0, 1; setp.eq.u32 %p1, %r1, 0; selp.b64 %d2, %d2, %d3, %p1;"
    body += " $proto: .callprototype (.param .b32 _) _ (.param .b32 _);" + CALL.format(
        a="%r0", f="%d2", p=", $proto", d="%r2"
    )
    out = run(library, body + "st.global.u32 [%d1], %r2;", before=FUNCTIONS)
    thrice = np.where(LANE > 15, 7, 3 * LANE)
    assert (out == np.where(LANE % 2 == 0, 2 * LANE, thrice)).all()


def test_recursion_is_not_computed(library: Library) -> None:
    functions = """.func (.param .b32 r) f(.param .b32 a) { .reg .b32 %x<4>; { .param .b32 q; st.param.b32 [q], %x1; .param .b32 s;
      call (s), f, (q); } ret; }"""
    made = module(library, CALL.format(a="%r0", f="f", p="", d="%r2"), functions)
    assert made.lacks("k") == ["call recursive"]


# ---- memory ----


def test_local_memory_is_each_threads_own(library: Library) -> None:
    out = run(library, """
      .local .align 16 .b8 depot[64]; mov.u64 %d2, depot; cvta.local.u64 %d3, %d2;
      st.local.u32 [depot+8], %r0; add.u64 %d4, %d3, 8; ld.u32 %r1, [%d4]; add.u32 %r1, %r1, 5; st.u32 [%d4], %r1;
      ld.local.u32 %r2, [%d2+8]; st.global.u32 [%d1], %r2;
    """)  # fmt: skip
    assert (out == LANE + 5).all()


def test_vectors_and_widths(library: Library) -> None:
    out = np.zeros(32, np.uint32)
    data = np.arange(512, dtype=np.uint8)
    body = """
      ld.param.u64 %d2, [p1]; mul.wide.u32 %d3, %r0, 16; add.u64 %d2, %d2, %d3;
      ld.global.v4.u32 {%r1, %r2, %r3, %r4}, [%d2]; ld.global.nc.v2.u8 {%h1, %h2}, [%d2+4]; ld.global.s8 %r5, [%d2+15];
      ld.global.v4.u16 {%h3, _, %h4, _}, [%d2+8]; cvt.u32.u16 %r6, %h1; cvt.u32.u16 %r7, %h4; cvt.u32.u16 %r8, %h2;
      xor.b32 %r1, %r1, %r4; add.u32 %r1, %r1, %r5; add.u32 %r1, %r1, %r6; xor.b32 %r1, %r1, %r7; xor.b32 %r1, %r1, %r8; st.global.u32 [%d1], %r1;
    """
    module(library, body, parameters=2).run("k", [out, data])
    words = data.view(np.uint32).reshape(32, 4)
    signed = data.view(np.int8)[15::16].astype(np.int64)
    expected = ((words[:, 0] ^ words[:, 3]) + signed + data[4::16]) & 0xFFFFFFFF
    halves = data.view(np.uint16).reshape(32, 8)
    assert (out == (expected ^ halves[:, 6] ^ data[5::16])).all()


def test_variables_have_their_initial_values(library: Library) -> None:
    before = """.global .align 4 .u32 table[4] = {7, 8, 9, 10}; .const .align 4 .f32 half = 0f3F000000;
      .global .align 8 .u64 where = generic(table); .global .align 1 .b8 bytes[3] = {1, 2};"""
    made = module(library, """
      and.b32 %r1, %r0, 3; ld.global.u64 %d2, [where]; mul.wide.u32 %d3, %r1, 4; add.u64 %d2, %d2, %d3; ld.u32 %r2, [%d2];
      ld.const.f32 %f1, [half]; cvt.rn.f32.u32 %f2, %r2; mul.f32 %f1, %f1, %f2; st.global.f32 [%d1], %f1;
    """, before)  # fmt: skip
    out = np.zeros(32, np.float32)
    made.run("k", [out])
    assert (out == np.array([3.5, 4, 4.5, 5] * 8)).all()
    made.variable("half").view(np.float32)[0] = 2
    assert made.variable("bytes").tolist() == [1, 2, 0]
    made.run("k", [out])
    assert (out == np.array([14, 16, 18, 20] * 8)).all()


def test_generic_addresses_know_their_space(library: Library) -> None:
    out = run(library, """
      .shared .align 4 .b8 s[128]; .local .align 4 .b8 t[8]; mov.u64 %d2, s; cvta.shared.u64 %d2, %d2; mov.u64 %d3, t; cvta.local.u64 %d3, %d3;
      isspacep.shared %p1, %d2; isspacep.local %p2, %d3; isspacep.global %p3, %d1; isspacep.shared %p4, %d1;
      selp.u32 %r1, 1, 0, %p1; @%p2 add.u32 %r1, %r1, 2; @%p3 add.u32 %r1, %r1, 4; @%p4 add.u32 %r1, %r1, 8; st.global.u32 [%d1], %r1;
    """)  # fmt: skip
    assert (out == 7).all()


# ---- lanes together ----


@pytest.mark.parametrize("mode", ["up", "down", "bfly", "idx"])
@pytest.mark.parametrize("width", [32, 16, 8])
def test_shuffles(library: Library, mode: str, width: int) -> None:
    # PTX ISA 9.7.9.6; c as CUDA's __shfl_*_sync makes it.
    clamp = 0 if mode == "up" else 31
    c = (32 - width) << 8 | clamp
    for b in (0, 1, 3, 5, 17, 31):
        out = run(library, f"add.u32 %r1, %r0, 100; shfl.sync.{mode}.b32 %r2|%p1, %r1, {b}, {c}, {FULL}; "
                           "@%p1 add.u32 %r2, %r2, 1000; st.global.u32 [%d1], %r2;")  # fmt: skip
        for lane in range(32):
            segment = c >> 8 & 31
            most = (lane & segment) | (clamp & ~segment & 31)
            least = lane & segment
            bval = b & 31
            j = {
                "up": lane - bval,
                "down": lane + bval,
                "bfly": lane ^ bval,
                "idx": least | (bval & ~segment),
            }[mode]
            inside = j >= most if mode == "up" else j <= most
            assert out[lane] == (j + 1100 if inside else lane + 100), (b, lane)


def test_votes_match_and_redux(library: Library) -> None:
    out = run(library, f"""
      and.b32 %r1, %r0, 3; setp.eq.u32 %p1, %r1, 0; vote.sync.ballot.b32 %r2, %p1, {FULL}; vote.sync.any.pred %p2, %p1, {FULL};
      vote.sync.all.pred %p3, %p1, {FULL}; vote.sync.uni.pred %p4, !%p3, {FULL}; match.any.sync.b32 %r3, %r1, {FULL};
      match.all.sync.b32 %r4|%p5, %r1, {FULL}; redux.sync.add.u32 %r5, %r0, {FULL}; redux.sync.max.s32 %r6, %r0, {FULL};
      selp.u32 %r7, 1, 0, %p2; @%p3 add.u32 %r7, %r7, 2; @%p4 add.u32 %r7, %r7, 4; @%p5 add.u32 %r7, %r7, 8;
      xor.b32 %r2, %r2, %r3; add.u32 %r2, %r2, %r4; add.u32 %r2, %r2, %r5; add.u32 %r2, %r2, %r6; shl.b32 %r2, %r2, 4; add.u32 %r2, %r2, %r7; st.global.u32 [%d1], %r2;
    """)  # fmt: skip
    ballot = 0x11111111
    match = np.array([ballot << i & 0xFFFFFFFF for i in range(4)] * 8, np.uint64)
    assert (out == (((match ^ ballot) + 496 + 31) * 16 + 5) & 0xFFFFFFFF).all()


TILE = "and.b32 %r2, %r0, 24; mov.u32 %r3, 255; shl.b32 %r3, %r3, %r2;"


@pytest.mark.parametrize(
    ("instruction", "wanted"),
    [
        ("shfl.sync.bfly.b32 %r1, %r0, 3, 31, %r3;", lambda lane: lane ^ 3),
        ("setp.gt.u32 %p1, %r0, 10; vote.sync.ballot.b32 %r1, %p1, %r3;",
         lambda lane: np.select([lane < 8, lane < 16, lane < 24], [0, 0xF800, 0xFF0000], 0xFF000000)),
        ("redux.sync.max.u32 %r1, %r0, %r3;", lambda lane: lane | 7),
        ("mov.u32 %r1, 5; elect.sync %r1|%p1, %r3;", lambda lane: lane & 24),
        ("and.b32 %r4, %r0, 1; match.any.sync.b32 %r5, %r4, 0xffffffff; redux.sync.add.s32 %r1, %r0, %r5;",
         lambda lane: np.where(lane % 2, 256, 240)),
    ],
)  # fmt: skip
def test_groups_of_a_warp_have_masks_of_their_own(
    library: Library, instruction: str, wanted: Callable[[np.ndarray], np.ndarray]
) -> None:
    out = run(library, TILE + instruction + " st.global.u32 [%d1], %r1;")
    assert (out == wanted(np.arange(32))).all()


def test_groups_wait_for_their_lanes_on_another_way(library: Library) -> None:
    out = run(library, TILE + """
      mov.u32 %r1, 7; setp.lt.u32 %p1, %r0, 12; @%p1 bra $low; add.u32 %r4, %r0, 100; bra $here; $low: add.u32 %r4, %r0, 200;
      $here: setp.eq.u32 %p2, %r0, 3; @%p2 bra $late; bra $sum; $late: add.u32 %r4, %r4, 1000;
      $sum: redux.sync.add.u32 %r1, %r4, %r3; st.global.u32 [%d1], %r1;
    """)  # fmt: skip
    lane = np.arange(32)
    value = lane + np.where(lane < 12, 200, 100) + np.where(lane == 3, 1000, 0)
    assert (out == value.reshape(4, 8).sum(1).repeat(8)).all()


def test_a_lane_that_takes_no_part_gives_a_shuffle_no_value(library: Library) -> None:
    out = run(
        library,
        "mov.u32 %r1, 7; setp.lt.u32 %p1, %r0, 4; @%p1 shfl.sync.down.b32 %r1, %r0, 2, 31, 15; "
        "st.global.u32 [%d1], %r1;",
    )
    assert out[:5].tolist() == [2, 3, 0xFFFFFFFF, 0xFFFFFFFF, 7]


@pytest.mark.parametrize(
    "leave",
    [
        "@%p1 bra $end;",
        "@!%p1 bra $on; ret; $on:",
        "@!%p1 bra $on; bra $end; $on:",
        # Some leave while the others wait for them.
        "@!%p1 bra $on; mov.u32 %r4, 0; $more: add.u32 %r4, %r4, 1; setp.lt.u32 %p2, %r4, %r0; @%p2 bra $more; ret; $on:",
    ],
)
@pytest.mark.parametrize(
    "together",
    ["setp.gt.u32 %p3, %r0, 3; vote.sync.ballot.b32 %r1, %p3, 0xffffffff;",
     "bar.warp.sync 0xffffffff; mov.u32 %r1, 0xffff0;"],
)  # fmt: skip
def test_threads_that_have_left_are_not_waited_for(
    library: Library, leave: str, together: str
) -> None:
    body = f"setp.ge.u32 %p1, %r0, 20; {leave} {together} st.global.u32 [%d1], %r1; $end:"
    out = run(library, body)
    assert (out == np.where(np.arange(32) < 20, 0xFFFF0, 0)).all()


def test_threads_that_have_left_are_not_expected_at_a_barrier(library: Library) -> None:
    out = run(library, """
      .shared .align 4 .b8 s[512]; mov.u32 %r9, s; setp.ge.u32 %p1, %r0, 70; @%p1 bra $end; shl.b32 %r1, %r0, 2; add.u32 %r2, %r1, %r9; st.shared.u32 [%r2], %r0;
      bar.sync 0; sub.u32 %r3, 69, %r0; shl.b32 %r3, %r3, 2; add.u32 %r3, %r3, %r9; ld.shared.u32 %r4, [%r3]; st.global.u32 [%d1], %r4; $end:
    """, block=128, races=1)  # fmt: skip
    assert (out[:70] == 69 - np.arange(70)).all()


def test_a_shuffle_waits_for_lanes_on_another_way(library: Library) -> None:
    # One bar.warp.sync in each branch: threads of the mask arrive from both.
    out = run(library, f"""
      setp.lt.u32 %p1, %r0, 16; @%p1 bra $low; bar.warp.sync {FULL}; mov.u32 %r1, 2; bra $end;
      $low: bar.warp.sync {FULL}; mov.u32 %r1, 1; $end: st.global.u32 [%d1], %r1;
    """)  # fmt: skip
    assert (out == np.where(LANE < 16, 1, 2)).all()


def test_atomics_of_many_blocks(library: Library) -> None:
    out = np.zeros(8, np.uint32)
    out[2] = 0xFFFFFFFF
    body = """
      mov.u32 %r9, %ctaid.x; atom.global.add.u32 %r1, [%d0], 1; red.global.max.u32 [%d0+4], %r9; atom.global.min.u32 %r2, [%d0+8], %r0;
      mov.f32 %f1, 0f3F800000; red.global.add.f32 [%d0+12], %f1; atom.global.inc.u32 %r3, [%d0+16], 9; mov.b32 %r4, 0x3c003c00;
      red.global.add.noftz.f16x2 [%d0+20], %r4; $again: ld.volatile.global.u32 %r5, [%d0+24]; add.u32 %r6, %r5, 1;
      atom.global.cas.b32 %r7, [%d0+24], %r5, %r6; setp.ne.u32 %p1, %r7, %r5; @%p1 bra $again;
    """
    module(library, body).run("k", [out], grid=64, block=32)
    assert out.tolist() == [
        2048,
        63,
        0,
        np.float32(2048).view(np.uint32),
        2048 % 10,
        0x68006800,
        2048,
        0,
    ]


def test_spinning_threads_let_others_of_their_warp_run(library: Library) -> None:
    out = run(library, """
      setp.eq.u32 %p1, %r0, 31; @%p1 bra $set; $spin: ld.volatile.global.u32 %r1, [%d0]; setp.eq.u32 %p2, %r1, 0; @%p2 bra $spin; bra $end;
      $set: mov.u32 %r1, 5; st.volatile.global.u32 [%d0], %r1; $end: st.global.u32 [%d1], %r1;
    """)  # fmt: skip
    assert (out == 5).all()


GRID_BARRIER = """
  ld.param.u64 %d0, [p0]; bar.sync 0; setp.ne.u32 %p1, %r0, 0; @%p1 bra $wait;
  mov.u32 %r1, %nctaid.x; atom.add.release.gpu.global.u32 %r2, [%d0], 1; $spin: ld.acquire.gpu.global.u32 %r3, [%d0];
  setp.lt.u32 %p2, %r3, %r1; @%p2 bra $spin; $wait: bar.sync 0; st.global.u32 [%d1+4], %r0;
"""


def test_a_cooperative_grid_can_wait_for_all_its_blocks(library: Library) -> None:
    out = np.zeros(65, np.uint32)
    made = module(library, GRID_BARRIER)
    made.run("k", [out], grid=50, block=64, cooperative=1)
    assert out[0] == 50
    out[0] = 0
    with pytest.raises(PtxFaultError, match="more than") as caught:
        made.run("k", [out], grid=50, block=64, threads=2, most_instructions=1_000_000)
    assert caught.value.kind == "endless"


def test_barriers_reduce(library: Library) -> None:
    out = run(library, """
      setp.lt.u32 %p1, %r0, 70; bar.red.popc.u32 %r1, 0, %p1; bar.red.or.pred %p2, 1, %p1; bar.red.and.pred %p3, 0, %p1;
      @%p2 add.u32 %r1, %r1, 1000; @%p3 add.u32 %r1, %r1, 5000; st.global.u32 [%d1], %r1;
    """, block=96)  # fmt: skip
    assert (out == 1070).all()


def test_threads_may_come_to_a_barrier_by_different_ways_where_it_is_not_aligned(
    library: Library,
) -> None:
    out = run(library, """
      setp.lt.u32 %p1, %r0, 40; @%p1 bra $low; add.u32 %r1, %r0, 1; bra $here; $low: add.u32 %r1, %r0, 2;
      $here: barrier.sync 0; st.global.u32 [%d1], %r1;
      and.b32 %r2, %r0, 1; setp.eq.u32 %p2, %r2, 0; @%p2 bra $even; bra $wait; $even: add.u32 %r1, %r1, 100;
      $wait: barrier.cta.sync 1; st.global.u32 [%d1], %r1;
    """, block=64)  # fmt: skip
    thread = np.arange(64)
    assert (out == thread + np.where(thread < 40, 2, 1) + np.where(thread % 2 == 0, 100, 0)).all()


def test_a_barrier_of_the_block_is_one_place(library: Library) -> None:
    body = "setp.lt.u32 %p1, %r0, 32; @%p1 bra $low; bar.sync 0{0}; bra $on; $low: bar.sync 0{0}; $on: st.global.u32 [%d1], %r0;"
    found = fault(library, body.format(""), block=64)
    assert found.kind == "barrier"
    assert "barrier 0 is passed at two places: warp 0 waits at line" in str(found)
    run(library, body.format(", 64"), block=64)  # of warps that do different work


def test_named_barriers_of_some_warps(library: Library) -> None:
    out = run(library, """
      .shared .align 4 .b8 s[512]; mov.u32 %r9, s; setp.ge.u32 %p1, %r0, 64; @%p1 bra $others; shl.b32 %r1, %r0, 2; add.u32 %r2, %r9, %r1; st.shared.u32 [%r2], %r0;
      bar.sync 1, 64; xor.b32 %r3, %r1, 128; add.u32 %r3, %r3, %r9; ld.shared.u32 %r4, [%r3]; st.global.u32 [%d1], %r4; $others:
    """, block=128, races=1)  # fmt: skip
    assert (out[:64] == (np.arange(64) ^ 32)).all()


def test_a_warp_that_arrives_hands_over_what_it_wrote(library: Library) -> None:
    # The first warp fills, the second one reads; "early" reads the words that are filled later.
    body = """
      .shared .align 4 .b8 s[256]; mov.u32 %r9, s; shl.b32 %r1, %r0, 2; add.u32 %r1, %r1, %r9; setp.ge.u32 %p1, %r0, 32; @%p1 bra $reads;
      st.shared.u32 [%r1], %r0; bar.arrive 1, 64; st.shared.u32 [%r1+128], %r0; bra $end;
      $reads: bar.sync 1, 64; ld.shared.u32 %r2, [%r1-OFFSET]; st.global.u32 [%d1], %r2; $end:
    """
    out = run(library, body.replace("OFFSET", "128"), block=64, races=1)
    assert (out[32:] == np.arange(32)).all()
    assert fault(library, body.replace("OFFSET", "0"), block=64, races=1).kind == "race"


def test_asynchronous_copies_arrive_when_they_are_waited_for(library: Library) -> None:
    data = np.arange(128, dtype=np.uint32)
    body = """
      .shared .align 16 .b8 s[512]; mov.u32 %r9, s; shl.b32 %r1, %r0, 4; add.u32 %r1, %r1, %r9; ld.param.u64 %d2, [p1]; mul.wide.u32 %d3, %r0, 16; add.u64 %d2, %d2, %d3;
      mov.u32 %r2, 77; st.shared.u32 [%r1], %r2; cp.async.cg.shared.global.L2::128B [%r1], [%d2], 16; cp.async.commit_group; WAIT
      ld.shared.v4.u32 {%r3, %r4, %r5, %r6}, [%r1]; st.global.u32 [%d1], %r3;
    """
    for wait, expected in (
        ("cp.async.wait_group 0;", data[::4]),
        ("cp.async.wait_all;", data[::4]),
        ("cp.async.wait_group 1;", 77),
    ):
        out = np.zeros(32, np.uint32)
        module(library, body.replace("WAIT", wait), parameters=2).run("k", [out, data])
        assert (out == expected).all(), wait


def test_printf(library: Library) -> None:
    before = r""".extern .func (.param .b32 r) vprintf (.param .b64 f, .param .b64 a);
      .global .align 1 .b8 text[16] = {37, 100, 32, 37, 46, 50, 102, 32, 37, 115, 10, 0}; .global .align 1 .b8 word[4] = {104, 105, 0, 0};"""
    made = module(library, """
      .local .align 8 .b8 t[24]; setp.ne.u32 %p1, %r0, 3; @%p1 bra $end; st.local.u32 [t], %r0; mov.u64 %d3, 0x3ff8000000000000; st.local.u64 [t+8], %d3;
      mov.u64 %d4, word; cvta.global.u64 %d4, %d4; st.local.u64 [t+16], %d4; mov.u64 %d2, t; cvta.local.u64 %d2, %d2; mov.u64 %d5, text; cvta.global.u64 %d5, %d5;
      { .param .b64 a; st.param.b64 [a], %d5; .param .b64 b; st.param.b64 [b], %d2; .param .b32 c; call.uni (c), vprintf, (a, b); ld.param.b32 %r5, [c]; }
      $end:
    """, before)  # fmt: skip
    assert made.run("k", [np.zeros(32, np.uint32)]).printed == "3 1.50 hi\n"


# ---- what is wrong with a kernel ----


def test_an_index_out_of_bounds_by_one(library: Library) -> None:
    text = (
        HEADER
        + '.file 1 "/src/scale.cu"\n.visible .entry k(.param .u64 p0)\n{'
        + START
        + ".loc 1 17 3\nadd.u64 %d1, %d1, 4; st.global.u32 [%d1], %r0;\nret;\n}\n"
    )
    out = np.zeros(64, np.uint32)
    with pytest.raises(PtxFaultError) as caught:
        library.load(text).run("k", [out], block=64)
    found = caught.value
    assert found.kind == "out of bounds"
    assert found.thread == (63, 0, 0)
    assert found.address == out.ctypes.data + 256
    for part in (
        "writes 4 bytes",
        "0 bytes after the end of the allocation of 256 bytes",
        "in k, PTX line 10",
        "st.global.u32 [%d1], %r0",
        "/src/scale.cu:17",
        "warp 1, lane 31",
    ):
        assert part in str(found), part


@pytest.mark.parametrize(
    ("body", "kind", "words"),
    [
        (".shared .align 4 .b8 s[128]; shl.b32 %r1, %r0, 2; st.shared.u32 [%r1+4], %r0;", "out of bounds", "shared memory of the block, which has 128 bytes"),
        (".local .align 4 .b8 t[8]; mov.u64 %d2, t; ld.local.u32 %r1, [%d2+8];", "out of bounds", "local memory of the thread"),
        ("ld.param.u32 %r1, [p0+8];", "out of bounds", "parameters of the kernel"),
        ("ld.global.u32 %r1, [%d1+2];", "misaligned", "no multiple of 4"),
        ("mov.u64 %d2, 0; ld.global.u32 %r1, [%d2];", "out of bounds", "reads 4 bytes at 0x0"),
        ("setp.lt.u32 %p1, %r0, 7; @%p1 bra $a; bar.sync 0; $a: st.global.u32 [%d1], %r1;", "barrier", "lane 0 takes another way"),
        ("bar.sync 1, 64;", "barrier", "32 threads wait, 64 are expected"),
        ("setp.lt.u32 %p1, %r0, 7; @%p1 shfl.sync.idx.b32 %r1, %r0, 0, 31, 0xff00;", "invalid", "not in the mask"),
        ("mov.u32 %r2, 3; setp.eq.u32 %p1, %r0, 1; @%p1 mov.u32 %r2, 2; setp.lt.u32 %p2, %r0, 2; @%p2 shfl.sync.idx.b32 %r1, %r0, 0, 31, %r2;", "invalid", "its mask 0x00000003 names lane 1, which has another mask"),
        ("trap;", "trap", "trap"),
        ("$l: bra $l;", "endless", "more than 100000"),
        ("tex.1d.v4.s32.s32 {%r1, %r2, %r3, %r4}, [%d0, {%r0}];", "not computed", "tex.1d.v4.s32.s32"),
        ("add.rn.unknown.f32 %f1, %f2, %f3;", "not computed", "add.rn.unknown.f32"),
    ],
)  # fmt: skip
def test_faults_say_what_is_wrong(library: Library, body: str, kind: str, words: str) -> None:
    found = fault(library, body, most_instructions=100_000)
    assert found.kind == kind
    assert words in str(found)


def test_missing_opcodes_are_known_before_a_launch(library: Library) -> None:
    made = module(
        library,
        "tex.1d.v4.s32.s32 {%r1, %r2, %r3, %r4}, [%d0, {%r0}]; sust.b.1d.b32.trap [%d0, {%r0}], %r1;",
    )
    assert made.lacks("k") == ["tex.1d.v4.s32.s32", "sust.b.1d.b32.trap"]


def test_an_operand_that_cannot_be_read_ends_only_the_threads_that_reach_it(
    library: Library,
) -> None:
    body = "{}add.u32 %r1, {{%r2, %r3}}, 1; $on: st.global.u32 [%d1], %r0;"
    out = np.zeros(32, np.uint32)
    module(library, body.format("bra $on; ")).run("k", [out])
    assert (out == LANE).all()
    assert fault(library, body.format("")).kind == "not computed"


REVERSE = """
  .shared .align 4 .b8 s[512]; mov.u32 %r9, s; shl.b32 %r1, %r0, 2; add.u32 %r1, %r1, %r9; st.shared.u32 [%r1], %r0; BARRIER
  sub.u32 %r2, 127, %r0; shl.b32 %r2, %r2, 2; add.u32 %r2, %r2, %r9; ld.shared.u32 %r3, [%r2]; st.global.u32 [%d1], %r3;
"""


def test_a_missing_barrier_is_a_race(library: Library) -> None:
    out = run(
        library, REVERSE.replace("BARRIER", "bar.sync 0;"), block=128, races=1, uninitialized=1
    )
    assert (out == 127 - np.arange(128)).all()
    found = fault(library, REVERSE.replace("BARRIER", ""), block=128, races=1)
    assert found.kind == "race"
    assert "no barrier between" in str(found)
    found = fault(library, REVERSE.replace("BARRIER", ""), block=128, uninitialized=1)
    assert found.kind == "uninitialized"


def test_each_line_of_a_race_is_found_once_and_the_kernel_goes_on(library: Library) -> None:
    again = "\n  ld.shared.u32 %r4, [%r2];\n  add.u32 %r3, %r4, 0; st.global.u32 [%d1], %r3;"
    body = REVERSE.replace("BARRIER", "") + again
    out = np.zeros(128, np.uint32)
    with pytest.raises(PtxFaultError) as caught:
        module(library, body).run("k", [out], block=128, races=1)
    lines = [line for line in str(caught.value).splitlines() if "PTX line" in line]
    # Each load of what another warp stored, and the store over what a warp before has read.
    assert len(lines) == len(set(lines)) == 3
    assert sorted("ld.shared" in line for line in lines) == [False, True, True]
    # Warps run in turn: the last one reads what the first one wrote.
    assert (out[96:] == 127 - np.arange(96, 128)).all()


def test_a_fault_is_reported_before_the_races(library: Library) -> None:
    found = fault(library, REVERSE.replace("BARRIER", "") + "trap;", block=128, races=1)
    assert (found.kind, str(found).count("PTX line")) == ("trap", 1)
    found = fault(library, REVERSE.replace("BARRIER", "") + "bar.sync 0; trap;", block=128, races=1)
    assert (found.kind, str(found).count("PTX line")) == ("trap", 3)
    assert "no barrier between" in str(found)


def test_a_value_that_several_warps_write_is_no_race(library: Library) -> None:
    text = """
      .shared .align 4 .b8 s[4]; mov.u32 %r9, s; shr.u32 %r1, %r0, 5; WRITTEN st.shared.u32 [%r9], %r1;
      bar.sync 0; ld.shared.u32 %r3, [%r9]; shl.b32 %r2, %r0, 2; st.global.u32 [%d1], %r3;
    """
    out = run(library, text.replace("WRITTEN", "mov.u32 %r1, 258;"), block=128, races=1)
    assert (out == 258).all()
    found = fault(library, text.replace("WRITTEN", ""), block=128, races=1)
    assert found.kind == "race"
    assert "which warp 0 wrote with no barrier between" in str(found)


# Each warp writes one value, and reads what it wrote.
UNCHANGED = """
  .shared .align 4 .b8 s[4]; mov.u32 %r9, s; shr.u32 %r1, %r0, 5; mov.u32 %r2, 258; st.shared.u32 [%r9], %r2;
  ld.shared.u32 %r3, [%r9]; shl.b32 %r2, %r0, 2; st.global.u32 [%d1], %r3;
"""
# The last instruction of the block is the write that changes the value.
LAST = """
  .shared .align 4 .b8 s[4]; mov.u32 %r9, s; shr.u32 %r1, %r0, 5; st.shared.u32 [%r9], %r1;
"""


def test_a_warp_reads_the_value_that_it_wrote_although_another_wrote_it_too(
    library: Library,
) -> None:
    assert (run(library, UNCHANGED, block=64, races=1) == 258).all()
    other = UNCHANGED.replace("mov.u32 %r2, 258;", "add.u32 %r2, %r1, 258;")
    assert fault(library, other, block=64, races=1).kind == "race"


def test_a_race_of_the_last_instruction_is_found(library: Library) -> None:
    found = fault(library, LAST, block=64, races=1)
    assert "writes shared memory at offset 0, which warp 0 wrote" in str(found)


# Block WRITER of two writes the first words, the other one reads them; then each writes its own.
SHARED_WORDS = """
  mov.u32 %r5, %ctaid.x; mov.u32 %r6, %tid.x; mul.wide.u32 %d2, %r6, 4; add.u64 %d2, %d0, %d2;
  setp.eq.u32 %p1, %r5, WRITER; @%p1 st.global.u32 [%d2], VALUE; FENCE @!%p1 ld.global.u32 %r7, [%d2];
"""


@pytest.mark.parametrize(
    ("writer", "found"),
    [
        (0, "reads global memory, which block 0 wrote: blocks run in any order"),
        (1, "writes global memory, which block 0 read: blocks run in any order"),
    ],
)
def test_blocks_that_share_words_are_a_race(library: Library, writer: int, found: str) -> None:
    text = SHARED_WORDS.replace("WRITER", str(writer))
    raced = fault(library, text.replace("VALUE", "7").replace("FENCE", ""), grid=2, races=1)
    assert (raced.kind, found in str(raced)) == ("race", True), str(raced)
    # No race: the value that was there before, a fence, one block.
    run(library, text.replace("VALUE", "0").replace("FENCE", ""), grid=2, races=1)
    run(library, text.replace("VALUE", "7").replace("FENCE", "membar.gl;"), grid=2, races=1)
    inner = text.replace("VALUE", "7").replace("FENCE", "membar.cta;")
    assert fault(library, inner, grid=2, races=1).kind == "race"
    run(library, text.replace("VALUE", "7").replace("FENCE", ""), grid=1, races=1)
    run(library, text.replace("VALUE", "7").replace("FENCE", ""), grid=2)


def test_a_block_reads_the_value_that_another_wrote_too(library: Library) -> None:
    text = "mov.u32 %r5, VALUE; st.global.u32 [%d1], %r5; ld.global.u32 %r6, [%d1];"
    assert (run(library, text.replace("VALUE", "7"), grid=3, races=1)[:32] == 7).all()
    found = fault(library, text.replace("VALUE", "%ctaid.x"), grid=3, races=1)
    assert "writes global memory, which block 0 read" in str(found)


def test_words_that_several_blocks_read_are_written_by_none(library: Library) -> None:
    text = """
      ld.global.u32 %r6, [%d1]; mov.u32 %r5, %ctaid.x; setp.eq.u32 %p1, %r5, 3; @%p1 st.global.u32 [%d1], 7;
    """
    found = fault(library, text, grid=4, races=1)
    assert "writes global memory, which other blocks read" in str(found)


def test_words_of_one_writer_beside_words_of_another_are_no_race(library: Library) -> None:
    text = """
      mov.u32 %r5, %ctaid.x; mov.u32 %r6, %tid.x; shl.b32 %r6, %r6, 1; add.u32 %r6, %r6, %r5;
      mul.wide.u32 %d2, %r6, 2; add.u64 %d2, %d0, %d2; add.u32 %r7, %r5, 1; cvt.u16.u32 %h1, %r7; st.global.u16 [%d2], %h1;
    """
    out = run(library, text, grid=2, races=1)
    assert (out[:32] == 0x20001).all()


# ---- order between lanes ----

# Each thread writes its word of shared memory and reads another thread's.
EXCHANGE = """
  .shared .align 4 .b8 s[512]; mov.u32 %r9, s; shl.b32 %r1, %r0, 2; add.u32 %r1, %r1, %r9; st.shared.u32 [%r1], %r0; {between}
  xor.b32 %r2, %r0, {other}; shl.b32 %r2, %r2, 2; add.u32 %r2, %r2, %r9; {read} st.global.u32 [%d1], %r3;
"""


def exchange(between: str, other: int = 31, read: str = "ld.shared.u32 %r3, [%r2];") -> str:
    return EXCHANGE.format(between=between, other=other, read=read)


@pytest.mark.parametrize(
    ("between", "other"),
    [
        (f"bar.warp.sync {FULL};", 31),
        ("bar.sync 0;", 31),
        (TILE + "bar.warp.sync %r3;", 7),
        # Two groups of lanes, in two branches.
        ("xor.b32 %r4, %r0, 8; and.b32 %r4, %r4, 24; setp.eq.u32 %p1, %r4, 0; xor.b32 %r4, %r0, 16; and.b32 %r4, %r4, 24; "
         "setp.eq.or.u32 %p1, %r4, 0, %p1; @%p1 bra $in; bar.warp.sync 0xff0000ff; bra $on; $in: bar.warp.sync 0x00ffff00; $on:", 31),
        # The lanes of one mask wait at two instructions.
        (f"setp.lt.u32 %p1, %r0, 16; @%p1 bra $low; bar.warp.sync {FULL}; bra $on; $low: bar.warp.sync {FULL}; $on:", 31),
    ],
)  # fmt: skip
def test_lanes_that_wait_for_each_other_have_an_order(
    library: Library, between: str, other: int
) -> None:
    run(library, exchange(between, other), races=1, uninitialized=1)


def test_an_order_may_come_by_way_of_another_lane(library: Library) -> None:
    between = """setp.le.u32 %p1, %r0, 16; setp.ge.u32 %p2, %r0, 16;
      @%p1 bar.warp.sync 0x0001ffff; @%p2 bar.warp.sync 0xffff0000;"""
    run(library, exchange(between, read="@%p2 ld.shared.u32 %r3, [%r2];"), races=1)
    assert (
        fault(library, exchange(between, read="@%p1 ld.shared.u32 %r3, [%r2];"), races=1).kind
        == "race"
    )


@pytest.mark.parametrize(
    ("between", "words"),
    [
        ("", "nothing"),
        ("activemask.b32 %r4;", "nothing"),
        (f"shfl.sync.bfly.b32 %r4, %r0, 31, 31, {FULL};", "only shfl"),
        (f"setp.eq.u32 %p1, %r0, 3; vote.sync.ballot.b32 %r4, %p1, {FULL};", "only vote"),
        (f"match.any.sync.b32 %r4, %r0, {FULL};", "only match"),
        (f"redux.sync.add.s32 %r4, %r0, {FULL};", "only redux"),
        ("movmatrix.sync.aligned.m8n8.trans.b16 %r4, %r0;", "only movmatrix"),
        # Both lanes of a pair must be there.
        (TILE + "shfl.sync.bfly.b32 %r4, %r0, 1, 31, %r3;", "nothing"),
        (TILE + "bar.warp.sync %r3;", "nothing"),
        ("membar.cta;", "nothing"),
    ],
)
def test_what_brings_lanes_together_does_not_order_memory(
    library: Library, between: str, words: str
) -> None:
    found = fault(library, exchange(between), races=1)
    assert found.kind == "race"
    order = ", which orders no memory" if "only" in words else ""
    wrote = "reads shared memory at offset 124, which lane 31 of the warp wrote with "
    assert f"{wrote}{words} between{order}\n" in str(found)
    # Without the option, and a sync later, nothing is found.
    run(library, exchange(between))
    run(library, exchange(between + f"bar.warp.sync {FULL};"), races=1)


def test_a_word_is_not_written_while_another_lane_may_read_it(library: Library) -> None:
    body = exchange(f"bar.warp.sync {FULL};") + "{} st.shared.u32 [%r1], 7;"
    found = fault(library, body.format(""), races=1)
    assert "writes shared memory at offset 0, which lane 31 of the warp reads" in str(found)
    run(library, body.format(f"bar.warp.sync {FULL};"), races=1)
    # Lanes that come together have read; lanes of another group may not have.
    run(library, body.format(f"shfl.sync.bfly.b32 %r4, %r0, 1, 31, {FULL};"), races=1)
    group = TILE.replace("%r2", "%r5").replace("%r3", "%r6") + "bar.warp.sync %r6;"
    assert fault(library, body.format(group), races=1).kind == "race"
    # A write that changes nothing.
    run(library, body.replace("%r1], 7", "%r1], %r0").format(""), races=1)


def test_a_warp_that_ends_has_come_to_the_barrier(library: Library) -> None:
    """Cards wait until each warp has come or ended: flash_attn_tile of llama.cpp relies on it."""
    body = """
      .shared .align 4 .b8 s[128]; mov.u32 %r9, s; and.b32 %r4, %r0, 31; shl.b32 %r4, %r4, 2; add.u32 %r1, %r4, %r9;
      setp.lt.u32 %p1, %r0, 32; @%p1 bra $reads; st.shared.u32 [%r1], %r0; ret;
      $reads: {} ld.shared.u32 %r6, [%r1]; st.global.u32 [%d1], %r6;
    """  # fmt: skip
    run(library, body.format("bar.sync 0;"), block=64, races=1)
    assert fault(library, body.format(""), block=64, races=1).kind == "race"


@pytest.mark.parametrize("space", ["shared", "global"])
def test_one_instruction_writes_one_value_to_a_place(library: Library, space: str) -> None:
    body = ".shared .align 4 .b8 s[4]; mov.u32 %r9, s; shr.u32 %r2, %r0, SHIFT; st.SPACE.u32 [AT], %r2; ld.SPACE.u32 %r3, [AT];"
    body = body.replace("SPACE", space).replace("AT", "%r9" if space == "shared" else "%d0")
    run(library, body.replace("SHIFT", "5"), races=1)
    found = fault(library, body.replace("SHIFT", "0"), races=1)
    assert "where lane 31 of the warp writes another value in the same instruction" in str(found)


@pytest.mark.parametrize("width", [1, 2])
def test_bytes_beside_each_other_are_no_race(library: Library, width: int) -> None:
    body = f"""
      .shared .align 4 .b8 s[64]; mov.u32 %r9, s; mad.lo.u32 %r1, %r0, {width}, %r9; cvt.u16.u32 %h1, %r0;
      st.shared.u{8 * width} [%r1], %h1; ld.shared.u{8 * width} %h2, [%r1]; {{}} st.shared.u{8 * width} [%r1], %h1;
    """
    run(library, body.format(""), races=1, uninitialized=1)
    # One that spans several lanes.
    word = (
        "and.b32 %r2, %r0, 7; shl.b32 %r2, %r2, 2; add.u32 %r2, %r2, %r9; ld.shared.u32 %r3, [%r2];"
    )
    assert fault(library, body.format(word), races=1).kind == "race"
    run(library, body.format(f"bar.warp.sync {FULL}; {word}"), races=1)


# Warp 0 fills, and one lane of it sets a flag that the second warp waits for.
FLAG = """
  .shared .align 4 .b8 s[512]; mov.u32 %r9, s; and.b32 %r4, %r0, 31; shl.b32 %r1, %r4, 2; add.u32 %r1, %r1, %r9;
  setp.eq.u32 %p1, %r0, 0; @%p1 st.shared.u32 [s+128], 0; bar.sync 0; setp.eq.u32 %p2, %r4, 0; setp.ge.u32 %p3, %r0, 32; @%p3 bra $waits;
  st.shared.u32 [%r1], %r0; bar.warp.sync 0xffffffff; @!%p2 bra $end; RELEASE bra $end;
  $waits: @!%p2 bra $here; $spin: ACQUIRE setp.eq.u32 %p4, %r5, 0; @%p4 bra $spin; FENCE $here: bar.warp.sync 0xffffffff;
  xor.b32 %r2, %r1, 124; ld.shared.u32 %r6, [%r2]; st.global.u32 [%d1], %r6; $end:
"""


@pytest.mark.parametrize(
    ("release", "acquire", "fence", "right"),
    [
        ("membar.cta; atom.shared.exch.b32 %r7, [s+128], 1;", "atom.shared.add.u32 %r5, [s+128], 0;", "membar.cta;", True),
        ("fence.acq_rel.cta; st.relaxed.cta.shared.u32 [s+128], 1;", "ld.relaxed.cta.shared.u32 %r5, [s+128];", "fence.acq_rel.cta;", True),
        ("membar.cta; st.volatile.shared.u32 [s+128], 1;", "ld.volatile.shared.u32 %r5, [s+128];", "membar.cta;", True),
        ("st.release.cta.shared.u32 [s+128], 1;", "ld.acquire.cta.shared.u32 %r5, [s+128];", "", True),
        ("red.release.cta.shared.add.u32 [s+128], 1;", "atom.acq_rel.cta.shared.cas.b32 %r5, [s+128], 5, 5;", "", True),
        ("atom.shared.exch.b32 %r7, [s+128], 1;", "atom.shared.add.u32 %r5, [s+128], 0;", "membar.cta;", False),
        ("st.relaxed.cta.shared.u32 [s+128], 1;", "ld.acquire.cta.shared.u32 %r5, [s+128];", "", False),
        ("st.shared.u32 [s+128], 1;", "ld.shared.u32 %r5, [s+128];", "", False),
    ],
)  # fmt: skip
def test_a_flag_hands_over_what_was_written(
    library: Library, release: str, acquire: str, fence: str, right: bool
) -> None:
    body = FLAG.replace("RELEASE", release).replace("ACQUIRE", acquire).replace("FENCE", fence)
    if right:
        assert (run(library, body, block=64, races=1)[32:] == 31 - LANE).all()
    else:
        assert fault(library, body, block=64, races=1).kind == "race"


# A lane reads words 2t and 2t + 1 of row l / 4; with .trans, of column l / 4.
ROWS = """
  .shared .align 16 .b8 s[512]; mov.u32 %r9, s; shl.b32 %r1, %r0, 2; add.u32 %r1, %r1, %r9; st.shared.u32 [%r1], %r0; BEFORE
  shl.b32 %r2, %r0, 4; and.b32 %r2, %r2, 112; add.u32 %r2, %r2, %r9; ldmatrix.sync.aligned.m8n8.x1TRANS.shared.b16 {%r3}, [%r2]; AFTER
  st.shared.u32 [%r1], 7; st.global.u32 [%d1], %r3;
"""


@pytest.mark.parametrize(
    ("trans", "before", "after", "found"),
    [
        # As rows, each lane reads what it wrote.
        ("", "", "", ""),
        (".trans", "", "", "reads shared memory at offset 32, which lane 8 of the warp wrote with nothing between"),
        (".trans", "bar.warp.sync 0xffffffff;", "bar.warp.sync 0xffffffff;", ""),
    ],
)  # fmt: skip
def test_the_lanes_that_get_a_matrix_read_it(
    library: Library, trans: str, before: str, after: str, found: str
) -> None:
    body = ROWS.replace("TRANS", trans).replace("BEFORE", before).replace("AFTER", after)
    if found:
        assert found in str(fault(library, body, races=1))
    else:
        run(library, body, races=1)


# Warp 1 copies over the words that warp 0 reads; both read them after the barrier.
COPY = """
  .shared .align 16 .b8 s[512]; mov.u32 %r9, s; and.b32 %r4, %r0, 31; shl.b32 %r1, %r4, 2; add.u32 %r1, %r1, %r9; mov.u32 %r5, OLD;
  setp.lt.u32 %p1, %r0, 32; @%p1 st.shared.u32 [%r1], %r5; bar.sync 0; @!%p1 bra $copies; ld.shared.u32 %r6, [%r1]; MIDDLE bra $on;
  $copies: MIDDLE mul.wide.u32 %d3, %r4, 4; add.u64 %d3, %d0, %d3; cp.async.ca.shared.global [%r1], [%d3], 4; BETWEEN cp.async.wait_all;
  $on: LATER bar.sync 0; ld.shared.u32 %r7, [%r1];
"""


@pytest.mark.parametrize(
    ("old", "middle", "between", "later", "right"),
    [
        (7, "", "", "", False),
        (7, "", "bar.sync 1, 64;", "@%p1 bar.sync 1, 64;", False),  # too late: it may have arrived
        (7, "bar.sync 1, 64;", "", "", True),
        (0, "", "", "", True),  # what is there already
    ],
)  # fmt: skip
def test_a_copy_is_compared_when_it_is_performed(
    library: Library, old: int, middle: str, between: str, later: str, right: bool
) -> None:
    body = COPY.replace("OLD", str(old)).replace("MIDDLE", middle)
    body = body.replace("BETWEEN", between).replace("LATER", later)
    if right:
        run(library, body, block=64, races=1)
    else:
        found = str(fault(library, body, block=64, races=1))
        assert "writes shared memory at offset 0, which warp 0 reads with no barrier" in found
        assert "cp.async.ca.shared.global" in found


# Two passes over the words of a block: each thread writes one, and another thread reads it.
PASSES = "st.global.u32 [%d1], 7; {} xor.b32 %r2, %r0, 33; mul.wide.u32 %d2, %r2, 4; add.u64 %d2, %d0, %d2; ld.global.u32 %r3, [%d2]; {} st.global.u32 [%d1], 9;"


@pytest.mark.parametrize(
    ("first", "second", "found"),
    [
        ("bar.sync 0;", "bar.sync 0;", ""),
        ("", "bar.sync 0;", "global memory, which warp "),
        ("bar.sync 0;", "", "global memory, which warp "),
        ("membar.gl;", "bar.sync 0;", "global memory, which warp "),
    ],
)
def test_warps_of_a_block_share_global_memory(
    library: Library, first: str, second: str, found: str
) -> None:
    body = PASSES.format(first, second)
    if found:
        assert found in str(fault(library, body, block=64, races=1))
    else:
        run(library, body, block=64, races=1)


def test_lanes_share_global_memory(library: Library) -> None:
    body = PASSES.replace("33", "1")
    found = str(fault(library, body.format("", ""), races=1))
    assert "reads global memory, which lane 1 of the warp wrote with nothing between" in found
    sync = f"bar.warp.sync {FULL};"
    run(library, body.format(sync, sync), races=1)


def test_bytes_of_blocks_are_compared(library: Library) -> None:
    body = "mov.u32 %r5, %ctaid.x; cvt.u64.u32 %d2, %r5; add.u64 %d2, %d0, %d2; cvt.u16.u32 %h1, %r5; add.u16 %h1, %h1, 1; st.global.u8 [%d2], %h1; {}"
    run(library, body.format(""), block=1, grid=4, races=1)
    found = fault(library, body.format("st.global.u8 [%d0+2], %h1;"), block=1, grid=4, races=1)
    assert "writes global memory, which block 0 wrote" in str(found)


def test_a_hole_is_not_memory(library: Library) -> None:
    out = np.zeros(32, np.uint32)
    made = module(library, "st.global.u32 [%d1], %r0;")
    address = out.ctypes.data
    library.c.ptx_register(address, out.nbytes, 0)
    try:
        with pytest.raises(PtxFaultError, match="nothing backs this memory"):
            made.run("k", [address])
    finally:
        library.c.ptx_unregister(address)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("hello", "no PTX"),
        (HEADER + ".visible .entry k() { add.u32 %r1, %r2, %r3; ret; }", "%r1 is not declared"),
        (HEADER + ".visible .entry k() { .reg .b32 %r<4>; bra $nowhere; }", "$nowhere, which is not declared"),
        (HEADER + ".visible .entry k() { .reg .b32 %r<4>; .reg .b64 %d<4>; add.u32 %r1, %d2, %r3; ret; }", "64 bits where the instruction takes 32"),
        (HEADER + ".visible .entry k() { ret;", "without '}'"),
    ],
)  # fmt: skip
def test_what_is_no_ptx_is_refused(library: Library, text: str, words: str) -> None:
    with pytest.raises(PtxError, match=re.escape(words)):
        library.load(text).run("k", [])


def test_counts_and_checksums_do_not_depend_on_the_host(library: Library) -> None:
    body = "mov.u32 %r9, %ctaid.x; mad.lo.u32 %r1, %r9, 32, %r0; mul.wide.u32 %d2, %r1, 4; add.u64 %d2, %d0, %d2; st.global.u32 [%d2], %r1; setp.lt.u32 %p1, %r0, 3; @%p1 add.u32 %r1, %r1, 1;"
    made = module(library, body)
    runs = [
        made.run("k", [np.zeros(640, np.uint32)], grid=20, threads=t, checksum=1) for t in (1, 2)
    ]
    assert runs[0].checksum == runs[1].checksum != 0
    assert runs[0].warp_instructions == runs[1].warp_instructions == 20 * 12
    assert runs[0].lane_instructions == 20 * (11 * 32 + 3)
