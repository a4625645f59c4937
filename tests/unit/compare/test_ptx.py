"""PTX text split into functions, and what makes two functions differ."""

from __future__ import annotations

import pytest

from builder.compare import ptx

TEXT = b"""
.version 9.0
.target sm_120 // { in a comment;
.address_size 64

// _ZZ7shared_PKcPiE1s has been demoted
.const .align 4 .b8 table[16] = {0, 0, 128, 63};
.extern .func (.param .b32 retval) __assertfail(.param .b64 a);
.func  (.param .b32 func_retval0) _Z4deepfi(
	.param .b32 _Z4deepfi_param_0
)
{
	{ // callseq 0, 0
	call.uni (retval0), _Z4deepfi, (param0);
	}
	ret;
}
	// .globl	_Z5shiftPc
.visible .entry _Z5shiftPc(
	.param .u64 .ptr .align 1 _Z5shiftPc_param_0
)
.maxntid 64, 1, 1
{
	ld.global.s8 %rs1, [%rd4];
	ld.global.v2.s8 {%rs1, %rs2}, [%rd4];
	ld.global.nc.L2::128B.u8 %rs1, [%rd4];
	cvt.s32.s8 %r1, %r2;
	ret;
}
.weak .func .noreturn stops() { trap; }
.entry last() { ret; }
.global .u32 after;
"""


def test_functions_and_what_is_outside_of_them() -> None:
    functions, outside = ptx.split(TEXT)
    assert [each.name for each in functions] == ["_Z4deepfi", "_Z5shiftPc", "stops", "last"]
    assert [each.text.split(b"(")[0] for each in functions] == [
        b".func  ",
        b".visible .entry _Z5shiftPc",
        b".weak .func .noreturn stops",
        b".entry last",
    ]
    assert all(each.text.endswith(b"}") for each in functions)
    assert sum(len(each.text) for each in functions) + len(outside) == len(TEXT)
    for word in (b".version 9.0", b"table[16]", b"__assertfail", b"after", b"demoted"):
        assert word in outside


def test_a_text_that_ends_in_a_function() -> None:
    (function,), outside = ptx.split(b".entry cut() { mov.b32 a, b;")
    assert function.text == b".entry cut() { mov.b32 a, b;"
    assert outside == b""


def test_8_bit_loads_are_counted_by_sign() -> None:
    functions, _ = ptx.split(TEXT)
    assert ptx.byte_loads(functions[1].text) == (2, 1)


@pytest.mark.parametrize(
    ("one", "other", "equal"),
    [
        (b"ld.global.s8 a, [b];", b"ld.global.u8 a, [b];", True),
        (b"mul.wide.s16 a, b, 3;", b"mul.wide.u16 a, b, 3;", True),
        (b"ld.global.s8 a, [b];", b"ld.global.s16 a, [b];", False),
        (b"cvt.rn.f32.s64 a, b;", b"cvt.rn.f16.s64 a, b;", False),
    ],
)
def test_signs_of_types(one: bytes, other: bytes, equal: bool) -> None:
    assert (ptx.without_signs(one) == ptx.without_signs(other)) is equal


@pytest.mark.parametrize(
    ("one", "other"),
    [
        # nvcc 13.0 for k.cu in one directory and in another, and for other.cu.
        ("_ZN36_GLOBAL__N__2acb0c51_4_k_cu_0f74741a4anonEPf",
         "_ZN36_GLOBAL__N__bcd646b5_4_k_cu_0f74741a4anonEPf"),
        ("_ZN36_GLOBAL__N__2acb0c51_4_k_cu_0f74741a4anonEPf",
         "_ZN40_GLOBAL__N__3cc8e884_8_other_cu_0f74741a4anonEPf"),
        ("_ZN34_INTERNAL_2acb0c51_4_k_cu_0f74741a36_GLOBAL__N__2acb0c51_4_k_cu_0f74741a6hiddenE",
         "_ZN34_INTERNAL_bcd646b5_4_k_cu_0f74741a36_GLOBAL__N__bcd646b5_4_k_cu_0f74741a6hiddenE"),
        ("__nv_static_25__2acb0c51_4_k_cu_0f74741a__Z8internalPf",
         "__nv_static_25__3a42341b_4_k_cu_0f74741a__Z8internalPf"),
        # With a process id; a hash, or the part before, ends in a digit.
        ("_ZZN67_INTERNAL_f80ad7ec_33_fattn_tile_instance_dkq80_dv80_cu_34ef183f_1520flash_attn_1",
         "_ZZN68_INTERNAL_f80ad7ec_33_fattn_tile_instance_dkq80_dv80_cu_34ef183f_12320flash_attn_1"),
        ("_ZN34_INTERNAL_2acb0c51_4_k_cu_0f74741036_GLOBAL__N__2acb0c51_4_k_cu_0f7474101fEv",
         "_ZN34_INTERNAL_bcd646b5_4_k_cu_0f74741136_GLOBAL__N__bcd646b5_4_k_cu_0f7474111fEv"),
        ("_ZN4abc236_GLOBAL__N__2acb0c51_4_k_cu_0f7474101fEv",
         "_ZN4abc236_GLOBAL__N__bcd646b5_4_k_cu_0f7474111fEv"),
    ],
)  # fmt: skip
def test_names_that_nvcc_makes(one: str, other: str) -> None:
    texts = [f".entry {name}() {{ ret; }}".encode() for name in (one, other)]
    assert ptx.without_made_up_names(texts[0]) == ptx.without_made_up_names(texts[1])


@pytest.mark.parametrize(
    "text",
    [b".entry _Z4samePf()", b"_ZN12_GLOBAL__N_11fEv", b"9_INTERNAL_x", b"_ZN36_GLOBAL__N__2a"],
)
def test_other_names_stay(text: bytes) -> None:
    assert ptx.without_made_up_names(text) == text


def test_what_follows_a_name_that_nvcc_makes_still_counts() -> None:
    name = b"_ZN36_GLOBAL__N__2acb0c51_4_k_cu_0f74741a4anonEPf"
    assert ptx.without_made_up_names(name) == b"_ZN4anonEPf"
