"""Device code compared: entries and functions."""

from __future__ import annotations

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

from builder.image.device_code import (
    CodeDifference,
    CodeTotals,
    compare_code,
    device_entries,
    left_over,
)
from simulator import MalformedElf
from support.cubins import ANNOTATIONS, STL, Function, cubin, instruction
from support.fatbins import ELF, FLAG_A, LZ4, PTX, ZSTD, entry, library, region

LDG, LDS, STG = 0x981, 0x984, 0x986


def load(opcode: int, width: int) -> bytes:
    """A load of the width 0 (unsigned, 8 bits), 1 (signed, 8 bits) or 4 (32 bits)."""
    return (opcode | width << 73).to_bytes(16, "little")


def ptx(*functions: str) -> bytes:
    return ".version 9.0\n.target sm_120\n{}\n".format("\n".join(functions)).encode() + b"\0"


def kernel(name: str, body: str = "ret;") -> str:
    return f".visible .entry {name}() {{ {body} }}"


def compared(before: io.BytesIO, after: io.BytesIO) -> CodeDifference:
    found = compare_code(before, after)
    assert found is not None
    return found


def cubins(*modules: bytes, packing: int = ZSTD) -> io.BytesIO:
    return library(*(region(entry(ELF, 120, FLAG_A | packing, each)) for each in modules))


def test_files_without_device_code() -> None:
    assert compare_code(io.BytesIO(b"#!/bin/sh"), library(region())) is None


def test_the_same_code_in_another_order_and_packing() -> None:
    first, second = (cubin(Function(name)) for name in ("_Z1av", "_Z1bv"))
    padded = library(
        *(region(entry(ELF, 120, FLAG_A, each + bytes(6))) for each in (first, second))
    )
    for other in (cubins(second, first, packing=LZ4), padded):
        found = compared(cubins(first, second), other)
        assert found == CodeDifference((CodeTotals("sm_120a", 2, 2, 2),))
        assert found.same


def test_kernels_that_are_added_removed_and_changed() -> None:
    before = cubin(Function("_Z4samePf"), Function("_Z4gonePf"), Function("_Z5worsePf"))
    worse = Function(
        "_Z5worsePf",
        instruction(STL, 16) * 9,
        registers=40,
        attributes=((ANNOTATIONS, (1, 0, 1, 16)),),
    )
    after = cubin(Function("_Z4samePf"), worse, Function("_Z5addedPf"))
    found = compared(cubins(before), cubins(after))
    assert not found.same
    assert found.totals == (CodeTotals("sm_120a", 1, 1, 0),)
    assert [(each.state, each.name, each.code) for each in found.functions] == [
        ("added", "added(float*)", "sm_120a"),
        ("removed", "gone(float*)", "sm_120a"),
        ("changed", "worse(float*)", "sm_120a"),
    ]
    changed = found.functions[2]
    assert changed.parts[0] == "SASS"
    assert changed.before is not None
    assert changed.after is not None
    assert (changed.before.size, changed.after.size) == (128, 144)
    assert (changed.before.registers, changed.after.registers) == (32, 40)
    assert (changed.before.spills, changed.more_spills) == (0, 32)
    assert {each.name for each in found.others} >= {".strtab", ".symtab", ".nv.info"}


def test_a_cubin_that_is_a_file_is_device_code() -> None:
    for abi in (7, 8):  # the architecture has another place in their headers
        before, after = (cubin(Function("_Z1av", load(LDG, n)), abi=abi) for n in (1, 4))
        found = compared(io.BytesIO(before), io.BytesIO(after))
        assert found.totals == (CodeTotals("sm_120", 1, 1, 0),)
        assert [(each.state, each.name) for each in found.functions] == [("changed", "a()")]
    assert compare_code(*(io.BytesIO(cubin(machine=62)) for _ in range(2))) is None


def test_attributes_of_a_kernel_are_compared_without_its_code() -> None:
    limited = Function("_Z1av", attributes=((0x05, (256, 1, 1)),))
    (found,) = compared(cubins(cubin(Function("_Z1av"))), cubins(cubin(limited))).functions
    assert found.parts == (".nv.info",)


def test_device_functions_are_compared_too() -> None:
    before = cubin(Function("_Z4deepf", entry=False, registers=None))
    after = cubin(Function("_Z4deepf", load(LDG, 4), entry=False, registers=None))
    (found,) = compared(cubins(before), cubins(after)).functions
    assert (found.name, found.parts) == ("deep(float)", ("SASS",))
    assert found.before is not None
    assert found.before.registers is None


def test_a_template_in_several_modules_is_paired_by_its_code() -> None:
    one, other, third = (cubin(Function("_Z1tv", load(LDG, 4) * n)) for n in (1, 2, 3))
    found = compared(cubins(one, other), cubins(other, third))
    (changed,) = found.functions
    assert changed.before is not None
    assert changed.after is not None
    assert (changed.before.size, changed.after.size) == (16, 48)
    assert (changed.before.module, changed.after.module) == (1, 2)


def ptxs(*functions: str) -> io.BytesIO:
    return library(region(entry(PTX, 120, ZSTD, ptx(*functions))))


def test_a_changed_function_of_ptx() -> None:
    before, after = (ptxs(kernel("_Z1kv", f"mov.b32 a, {name};")) for name in "bc")
    (changed,) = compared(before, after).functions
    assert (changed.name, changed.parts) == ("k()", ("PTX",))


def test_ptx_outside_of_functions() -> None:
    found = compared(ptxs(kernel("_Z1kv"), ".global .u32 a;"), ptxs(kernel("_Z1kv")))
    assert not found.functions
    assert [(each.code, each.name, each.modules) for each in found.others] == [
        ("compute_120", "PTX outside of functions", 1)
    ]


def test_code_that_one_file_lacks_is_counted_and_not_taken_apart() -> None:
    both = library(
        region(entry(ELF, 90, 0, b"is no cubin."), entry(ELF, 120, 0, cubin(Function("_Z1av"))))
    )
    one = library(region(entry(ELF, 120, 0, cubin(Function("_Z1av")))))
    found = compared(both, one)
    assert found.totals == (CodeTotals("sm_120", 1, 1, 1), CodeTotals("sm_90", 1, 0, 0))
    assert (found.functions, found.others, found.same) == ((), (), False)
    alone = compare_code(None, one)
    assert alone is not None
    assert alone.totals == (CodeTotals("sm_120", 0, 1, 0),)


def test_relocatable_code_is_code() -> None:
    found = library(region(entry(ELF, 120, 0, cubin(Function("a")))), name="__nv_relfatbin")
    assert [each.code for each in device_entries(found)] == ["sm_120"]


@pytest.mark.parametrize(
    "damaged",
    [
        region(entry(ELF, 120, 0, cubin(Function("a"))[:-70])),
        region(entry(ELF, 120, ZSTD, cubin(Function("a")))).replace(b"\x28\xb5\x2f\xfd", b"none"),
        region(entry(ELF, 120, 0, b"payload."))[:-4],
    ],
)
def test_damage_is_reported(damaged: bytes) -> None:
    plain = library(region(entry(ELF, 120, 0, cubin(Function("b")))))
    with pytest.raises(MalformedElf, match="byte 0x"):
        compare_code(library(damaged), plain)


@given(st.lists(st.integers(0, 3)), st.lists(st.integers(0, 3)))
def test_what_is_left_over_makes_one_side_of_the_other(before: list[int], after: list[int]) -> None:
    left, right = left_over(before, after, int)
    made = [*before]
    for each in left:
        made.remove(each)
    assert sorted([*made, *right]) == sorted(after)
    assert not {*left} & {*right}


def test_each_one_counts_once_and_the_order_stays() -> None:
    assert left_over([3, 1, 1, 2, 1], [1, 2], int) == ([3, 1, 1], [])
