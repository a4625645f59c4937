"""What a card does with the device code of a library."""

from __future__ import annotations

import io
from dataclasses import replace

import pytest

from builder.image.code_paths import (
    CodePaths,
    CodeSums,
    code_paths,
    rows,
    sums,
    text_of,
    text_of_sums,
)
from simulator import fatbin
from simulator.fatbin import Modules
from simulator.selection import Capability
from support.fatbins import ELF, FLAG_A, PTX, entry, region


def modules(*regions: bytes) -> tuple[Modules, ...]:
    data = b"".join(regions)
    return fatbin.modules(fatbin.regions(io.BytesIO(data), 0, len(data)))


def on(capability: str, *regions: bytes) -> tuple[int, int, int]:
    found = code_paths("/x.so", modules(*regions), Capability.parse(capability))
    return found.native, found.compiled, found.dead


def code(kind: int, arch: int, size: int, flags: int = 0) -> bytes:
    return entry(kind, arch, flags, b"x" * size)


OLD = region(code(ELF, 80, 100), code(PTX, 80, 10))  # as FlashAttention 2 of vLLM's wheels
OTHER = region(code(ELF, 90, 200, FLAG_A))  # as FlashAttention 3
NEW = region(code(ELF, 80, 300), code(ELF, 120, 30, FLAG_A), code(PTX, 120, 3))


@pytest.mark.parametrize(
    ("capability", "regions", "expected"),
    [
        ("12.0", [OLD], (0, 10, 100)),
        ("8.6", [OLD], (100, 0, 10)),
        ("12.0", [OTHER], (0, 0, 200)),
        ("12.0", [NEW], (30, 0, 303)),
        ("12.1", [NEW], (0, 3, 330)),
        ("7.5", [NEW], (0, 0, 333)),
        ("12.0", [OLD, OTHER, NEW, OLD, NEW], (60, 20, 200 + 200 + 606)),
        ("12.0", [], (0, 0, 0)),
    ],
)
def test_the_driver_takes_machine_code_else_ptx_and_the_rest_never_runs(
    capability: str, regions: list[bytes], expected: tuple[int, int, int]
) -> None:
    assert on(capability, *regions) == expected


def test_modules_of_the_same_code_are_counted_together() -> None:
    old, new = modules(OLD, NEW, OLD)
    assert (old.count, old.sizes, [each.name for each in old.codes]) == (
        2,
        (200, 20),
        ["sm_80", "compute_80"],
    )
    assert (new.count, new.sizes) == (1, (300, 30, 3))


def test_the_sums_name_the_libraries_that_the_driver_compiles() -> None:
    native = CodePaths("/opt/lib/_C.so", native=21_000_000, dead=5_000_000)
    late = CodePaths("/opt/lib/_fa2.so", compiled=65_000_000, dead=232_000_000)
    assert text_of([late, native]) == (
        "21.0 MB runs as it is, the driver compiles 65.0 MB at the first use (_fa2.so), "
        "237.0 MB never runs"
    )
    assert text_of([native]) == "21.0 MB runs as it is, 5.0 MB never runs"
    slim = replace(native, dead=0, removed=5_000_000)
    assert text_of([slim]) == "21.0 MB runs as it is, 0.0 MB never runs, 5.0 MB was removed"
    assert text_of([replace(native, removed=8)]) == text_of([native]), "alignment"
    assert text_of([]) == ""


def test_the_sums_of_each_card() -> None:
    native = CodePaths("/opt/lib/_C.so", native=21, dead=5, card="12.0", removed=100_000)
    late = CodePaths("/opt/lib/_fa2.so", compiled=65, dead=232, card="12.0", removed=1)
    never = CodePaths("/opt/lib/_fa3.so", dead=7, card="12.0")
    other = CodePaths("/opt/lib/_fa3.so", native=7, card="9.0")
    found = (native, late, never, other)
    assert sums(found) == (
        CodeSums("12.0", 21, 65, 244, 100_001, late=("_fa2.so",), pathless=("_fa3.so",)),
        CodeSums("9.0", 7, 0, 0, 0),
    )
    assert [each.shown_removed for each in sums(found)] == ["0.1 MB", ""]
    assert text_of_sums(sums(found)) == text_of(found)


def test_a_library_of_which_nothing_runs_is_named_and_cards_are_apart() -> None:
    of_12_0 = CodePaths("/opt/_fa3.so", dead=119_000_000, card="12.0")
    of_9_0 = CodePaths("/opt/_fa3.so", native=119_000_000, card="9.0")
    assert text_of([of_12_0]) == "0.0 MB runs as it is, 119.0 MB never runs (all of _fa3.so)"
    assert text_of([of_12_0, of_9_0]) == (
        "12.0: 0.0 MB runs as it is, 119.0 MB never runs (all of _fa3.so); "
        "9.0: 119.0 MB runs as it is, 0.0 MB never runs"
    )
    assert rows([of_12_0]) == [("/opt/_fa3.so", "", "", "119.0 MB")]
    assert rows([of_12_0, of_9_0]) == [
        ("/opt/_fa3.so (12.0)", "", "", "119.0 MB"),
        ("/opt/_fa3.so (9.0)", "119.0 MB", "", ""),
    ]
