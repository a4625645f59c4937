"""The fat binaries of a library as a card sees them, and the code table of the simulated card."""

from __future__ import annotations

import io
from collections.abc import Callable

import pytest

from simulator import MalformedElf, ledger
from simulator.ledger import code_table
from simulator.selection import Capability
from support.cubins import ANNOTATIONS, MAX_THREADS, STL, Function, cubin, instruction
from support.fatbins import ELF, FLAG_A, LZ4, MAPPED, PTX, ZSTD, entry, library, region

CARD = Capability(12, 0)
PTX_TEXT = b"""
.version 9.0
.target sm_90
.func helper() { ret; }
.visible .entry _Z5firstPf(
    .param .u64 .ptr .align 1 first_param_0
)
.maxntid 64, 2, 1
.minnctapersm 2
{ ret; }
.entry second() { .reg .b32 r; ret; }
.weak .entry third(.param .u64 x) .reqntid 32 { ret; }
.entry damaged() .maxntid , { ret; }
"""


def test_addresses_codes_and_kernels() -> None:
    first = region(
        entry(ELF, 90, 0, b"is not read"),
        entry(ELF, 120, FLAG_A | ZSTD, cubin(Function("a"), Function("b", registers=64))),
    )
    second = region(entry(PTX, 90, LZ4, PTX_TEXT), entry(ELF, 100, 0, b"is not read"))
    third = region(entry(ELF, 90, 0, b"is not read"))
    empty = region()
    found = list(ledger.read(library(first, empty, second, third), CARD))
    assert [each.code for each in found] == ["sm_120a", "compute_90", "none"]
    places = [0, len(first + empty), len(first + empty + second)]
    assert [each.address for each in found] == [MAPPED + place for place in places]
    assert [kernel.name for kernel in found[0].kernels] == ["a", "b"]
    assert [kernel.registers for kernel in found[0].kernels] == [32, 64]
    assert [(kernel.name, kernel.threads) for kernel in found[1].kernels] == [
        ("_Z5firstPf", 128),
        ("second", 0),
        ("third", 32),
        ("damaged", 0),
    ]
    assert found[2].kernels == ()


def test_only_what_is_loaded_is_read() -> None:
    code = region(entry(ELF, 120, 0, cubin(Function("a"))))
    assert list(ledger.read(library(code, name="__nv_relfatbin"), CARD)) == []
    assert list(ledger.read(library(code, kind=1), CARD)) == []
    assert list(ledger.read(io.BytesIO(b"#!/bin/sh"), CARD)) == []


def broken_cubin() -> bytes:
    return region(entry(ELF, 120, 0, cubin(Function("a"))[:-70]))


def broken_payload() -> bytes:
    return region(entry(ELF, 120, ZSTD, cubin(Function("a")))).replace(b"\x28\xb5\x2f\xfd", b"none")


def broken_region() -> bytes:
    return region(entry(ELF, 120, 0, b"payload."))[:-4]


@pytest.mark.parametrize(
    ("data", "fault"),
    [
        (broken_cubin, r"cubin for sm_120 at byte 0x450: section headers at byte 0x\w+:"),
        (broken_payload, "payload at byte 0x450: damaged zstd"),
        (broken_region, "region at byte 0x400: 72 bytes run past the section's end"),
    ],
)
def test_damage_is_located(data: Callable[[], bytes], fault: str) -> None:
    with pytest.raises(MalformedElf, match=fault):
        list(ledger.read(library(data()), CARD))


def test_the_code_table() -> None:
    spilling = Function(
        "_Z5spillPf",
        instruction(STL, 8),
        registers=255,
        stack=16,
        shared=1024 + 256,
        attributes=((ANNOTATIONS, (1, 0)), (MAX_THREADS, (256, 1, 1))),
    )
    data = library(
        region(entry(ELF, 120, FLAG_A, cubin(Function("plain"), spilling))),
        region(entry(PTX, 90, 0, PTX_TEXT)),
    )
    rows = code_table({"/opt/lib.so": ledger.read(data, CARD)}).splitlines()
    second = rows[3].split()[2]
    assert rows == [
        "fatbin /opt/lib.so 0x7000 sm_120a",
        "kernel plain registers=32 shared=0 local=0 threads=0 cluster=0 spills=0",
        "kernel _Z5spillPf registers=255 shared=256 local=16 threads=256 cluster=0 spills=8",
        f"fatbin /opt/lib.so {second} compute_90",
        "kernel _Z5firstPf registers=0 shared=0 local=0 threads=128 cluster=0 spills=0",
        "kernel second registers=0 shared=0 local=0 threads=0 cluster=0 spills=0",
        "kernel third registers=0 shared=0 local=0 threads=32 cluster=0 spills=0",
        "kernel damaged registers=0 shared=0 local=0 threads=0 cluster=0 spills=0",
    ]
    assert int(second, 16) > 0x7000


def test_a_space_in_a_path_does_not_end_the_word() -> None:
    data = library(region(entry(ELF, 90, 0, b"is not read")))
    assert code_table({"/opt/a b.so": ledger.read(data, CARD)}) == (
        "fatbin /opt/a%20b.so 0x7000 none\n"
    )


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("/opt/engine/lib/libggml-cuda.so", "libggml-cuda.so"),
        ("/lib/libcublas.so.13.0.2", "libcublas.so"),
        ("/opt/engine/bin/server", "server"),
        ("/x/_C.cpython-312-x86_64-linux-gnu.so", "_C.cpython-312-x86_64-linux-gnu.so"),
    ],
)
def test_library_names(path: str, name: str) -> None:
    assert ledger.library_name(path) == name
