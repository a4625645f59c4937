"""The kernels of a cubin, whole and damaged."""

from __future__ import annotations

import hashlib
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator import MalformedElf, ledger
from simulator.ledger import Kernel
from support.cubins import (
    ANNOTATIONS,
    CLUSTER,
    LDL,
    MAX_THREADS,
    NOP,
    PARAMETERS,
    REQUIRED_THREADS,
    STL,
    Function,
    cubin,
    instruction,
)


def only(function: Function, arch: int = 120, abi: int = 8) -> Kernel:
    (kernel,) = ledger.kernels_of(cubin(function, abi=abi), arch)
    return kernel


def test_what_a_kernel_takes() -> None:
    code = instruction(NOP) * 24
    found = only(
        Function(
            "_Z4mainPf",
            code,
            registers=128,
            stack=400,
            shared=41024,
            attributes=(
                (PARAMETERS, (0, 0, 0x21F500)),
                (MAX_THREADS, (64, 4, 1)),
                (CLUSTER, (2, 1, 2)),
            ),
        )
    )
    digest = hashlib.sha256(code).hexdigest()
    assert found == Kernel("_Z4mainPf", 128, 40000, 400, 0, 0, 256, 4, len(code), digest)


def test_each_kernel_has_its_own_figures_and_functions_are_no_kernels() -> None:
    found = ledger.kernels_of(
        cubin(
            Function("first", registers=10, stack=8, attributes=((REQUIRED_THREADS, (96, 1, 1)),)),
            Function("called", registers=99, stack=99, entry=False),
            Function("second", registers=20, shared=1024 + 512),
        ),
        120,
    )
    assert [(each.name, each.registers, each.local) for each in found] == [
        ("first", 10, 8),
        ("second", 20, 0),
    ]
    assert [(each.threads, each.shared) for each in found] == [(96, 0), (0, 512)]


@pytest.mark.parametrize(("arch", "shared"), [(75, 2048), (89, 2048), (90, 1024), (121, 1024)])
def test_shared_memory_that_the_driver_reserves_is_not_the_kernels(arch: int, shared: int) -> None:
    assert only(Function("a", shared=2048), arch).shared == shared


def test_spills_are_added_up() -> None:
    code = b"".join(
        instruction(opcode, width)
        for opcode, width in [(NOP, 4), (STL, 4), (STL, 16), (LDL, 8), (LDL, 1), (LDL, 2), (STL, 4)]
    )
    marked = tuple(word for number in (1, 2, 3, 4, 5, 0) for word in (1, number * 16))
    # An annotation of another kind is no spill, nor is an access that is not annotated.
    words = (*marked, 7, 6 * 16)
    found = only(Function("a", code, stack=32, attributes=((ANNOTATIONS, words),)))
    assert (found.spill_stores, found.spill_loads, found.spills) == (20, 11, 31)


@pytest.mark.parametrize(
    ("abi", "stack", "spills"), [(7, 0, 0), (7, 16, None), (8, 0, 0), (8, 16, 0)]
)
def test_spills_are_unknown_where_an_old_compiler_may_not_mark_them(
    abi: int, stack: int, spills: int | None
) -> None:
    assert only(Function("a", stack=stack), abi=abi).spills == spills


def test_one_marked_kernel_shows_that_the_compiler_marks_spills() -> None:
    code = instruction(STL)
    found = ledger.kernels_of(
        cubin(
            Function("spills", code, stack=8, attributes=((ANNOTATIONS, (1, 0)),)),
            Function("array", stack=16),
            abi=7,
        ),
        120,
    )
    assert [each.spills for each in found] == [4, 0]


def test_registers_of_an_old_cubin_are_in_the_section() -> None:
    assert only(Function("a", registers=None)).registers == 40


def test_a_cubin_without_kernels() -> None:
    assert ledger.kernels_of(cubin(), 120) == []
    assert ledger.kernels_of(cubin(Function("a", entry=False)), 120) == []


SOUND = cubin(
    Function("a", attributes=((ANNOTATIONS, (1, 16)), (MAX_THREADS, (1, 2, 3)))), Function("b")
)


@pytest.mark.parametrize(
    ("data", "fault"),
    [
        (b"", "ELF header at byte 0x0: 16 bytes run past"),
        (cubin(machine=62), "byte 0x0: no cubin: ELF machine 62"),
        (SOUND[:-1], "section headers"),
        (SOUND[:40] + bytes(8) + SOUND[48:], "section"),
        (cubin(Function("a", attributes=((ANNOTATIONS, (1, 9999)),))), "spill outside of"),
    ],
)
def test_damage_is_located(data: bytes, fault: str) -> None:
    with pytest.raises(MalformedElf, match=fault) as raised:
        ledger.kernels_of(data, 120)
    assert "byte 0x" in str(raised.value)


@settings(deadline=5000, max_examples=500)
@given(
    st.lists(st.tuples(st.integers(0, 10_000), st.integers(0, 255)), min_size=1, max_size=6),
    st.integers(0, len(SOUND)),
)
def test_no_damage_is_another_error(damage: list[tuple[int, int]], end: int) -> None:
    data = bytearray(SOUND)
    for place, value in damage:
        data[place % len(data)] = value
    for damaged in (bytes(data), bytes(data[:end])):
        with suppress(MalformedElf):
            ledger.kernels_of(damaged, 120)


def words(*opcodes: int) -> bytes:
    return b"".join(instruction(opcode) for opcode in (*opcodes, *(NOP,) * 4))


# Opcodes as nvcc 13.0 makes them for sm_121a: LDC, EXIT, BPT.TRAP, BRA, CALL.ABS, CALL.REL, STG.
LDC, EXIT, TRAP, BRA, CALL, CALL_INSIDE, STG = 0xB82, 0x94D, 0x95C, 0x947, 0x343, 0x944, 0x986
EXTERNS = 0x0F


@pytest.mark.parametrize(
    ("code", "externs", "idle"),
    [
        (words(LDC, EXIT, BRA), (), "empty"),
        (words(LDC, TRAP, EXIT, BRA), (), "traps"),
        (words(LDC, STL, LDC, CALL, TRAP, BRA), ("vprintf",), "traps"),
        (words(LDC, CALL, EXIT, BRA), ("__assertfail",), "traps"),
        (words(LDC, CALL, EXIT, BRA), ("cudaGraphLaunch",), ""),
        (words(LDC, CALL, EXIT, BRA), ("vprintf", "work"), ""),
        (words(LDC, CALL, EXIT, BRA), (), ""),  # through a pointer
        (words(LDC, CALL_INSIDE, EXIT), (), ""),  # to another section
        (words(LDC, BRA, TRAP, STG, EXIT), (), ""),  # traps only for wrong input
        (words(LDC, STG, EXIT), (), ""),
        (words(LDC, LDL, EXIT), (), ""),
        (words(), (), ""),
    ],
)
def test_a_body_that_computes_nothing(code: bytes, externs: tuple[str, ...], idle: str) -> None:
    others = [Function(name, entry=False) for name in externs or ("work",)]
    attributes = ((EXTERNS, tuple(range(2, 2 + len(externs)))),) if externs else ()
    data = cubin(Function("k", code, attributes=attributes), *others)
    (kernel,) = ledger.kernels_of(data, 120)
    assert kernel.idle == idle
