"""PTX text split into functions."""

from __future__ import annotations

from builder.image.device_code import split_ptx

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
    functions, outside = split_ptx(TEXT)
    assert [name for name, _ in functions] == ["_Z4deepfi", "_Z5shiftPc", "stops", "last"]
    assert [text.split(b"(")[0] for _, text in functions] == [
        b".func  ",
        b".visible .entry _Z5shiftPc",
        b".weak .func .noreturn stops",
        b".entry last",
    ]
    assert all(text.endswith(b"}") for _, text in functions)
    assert sum(len(text) for _, text in functions) + len(outside) == len(TEXT)
    for word in (b".version 9.0", b"table[16]", b"__assertfail", b"after", b"demoted"):
        assert word in outside


def test_a_text_that_ends_in_a_function() -> None:
    ((_, text),), outside = split_ptx(b".entry cut() { mov.b32 a, b;")
    assert text == b".entry cut() { mov.b32 a, b;"
    assert outside == b""
