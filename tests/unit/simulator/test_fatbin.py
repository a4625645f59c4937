"""The device code in a section of CUDA fat binaries, whole and damaged."""

from __future__ import annotations

import io
import struct
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator import MalformedElf, fatbin
from support.fatbins import ELF, FLAG_A, FLAG_F, LTO, LZ4, PTX, ZSTD, entry, region


def names(*section: bytes) -> list[str]:
    data = b"".join(section)
    regions = fatbin.regions(io.BytesIO(data), 0, len(data))
    return [entry.code.name for region in regions for entry in region.entries]


@pytest.mark.parametrize(
    ("kind", "flags", "name"),
    [
        (ELF, 0, "sm_120"),
        (ELF, FLAG_A, "sm_120a"),
        (ELF, FLAG_F, "sm_120f"),
        (PTX, 0, "compute_120"),
        (PTX, FLAG_A, "compute_120a"),
        (PTX, FLAG_F, "compute_120f"),
    ],
)
def test_kinds_and_suffixes(kind: int, flags: int, name: str) -> None:
    assert names(region(entry(kind, 120, flags))) == [name]


def test_order_and_duplicates_are_kept() -> None:
    data = region(
        entry(ELF, 120, FLAG_A, header=112),
        entry(PTX, 75, payload=bytes(8), header=80),
        entry(ELF, 90, FLAG_A),
        entry(ELF, 120, FLAG_A),
    )
    assert names(data) == ["sm_120a", "compute_75", "sm_90a", "sm_120a"]


def test_regions_padded_or_empty() -> None:
    section = (
        bytes(8),
        region(),
        region(entry(ELF, 80)),
        bytes(3_000_000),
        region(entry(ELF, 90), header=24),
        region(entry(ELF, 120)),
        bytes(24),
    )
    assert names(*section) == ["sm_80", "sm_90", "sm_120"]


@pytest.mark.parametrize("data", [b"", bytes(8), bytes(4096)])
def test_no_region(data: bytes) -> None:
    assert names(data) == []


def test_intermediate_code_is_passed_over() -> None:
    assert names(region(entry(LTO, 120, header=120), entry(ELF, 120))) == ["sm_120"]


@pytest.mark.parametrize(
    ("data", "fault"),
    [
        (b"no magic", "runs past"),
        (b"no magic, but long enough", "unknown magic 0x6d206f6e"),
        (region(entry(ELF, 120))[:12], "runs past"),
        (region(entry(ELF, 120))[:-1], "past the section's end"),
        (struct.pack("<IHHQ", 0xBA55ED50, 1, 16, 2**64 - 1), "past the section's end"),
        (struct.pack("<IHHQ", 0xBA55ED50, 2, 16, 0), "version 2"),
        (struct.pack("<IHHQ", 0xBA55ED50, 1, 0, 0), "its header has 0 bytes"),
        (region(b"short"), "runs past"),
        (region(entry(ELF, 120), bytes(64)), "header of 0 bytes, payload of 0"),
        (region(entry(ELF, 120, payload=b"")), "payload of 0"),
        (region(entry(ELF, 120, header=64).replace(b"\x40\0\0\0", b"\x3f\0\0\0", 1)), "of 63"),
        (region(entry(ELF, 120)[:-1]), "past the region's end"),
        (region(struct.pack("<HHIQ48x", ELF, 0, 64, 2**64 - 1)), "past the region's end"),
        (region(entry(77, 120)), "unknown kind 77"),
        (region(entry(ELF, 120, FLAG_A | FLAG_F)), "both a and f"),
        (region(entry(ELF, 120, 1 << 12)), "unknown compression: flags 0x1011"),
        (region(entry(ELF, 120, LZ4).replace(b"\x11\x20", b"\x11\xa0", 1)), "unknown compression"),
    ],
)
def test_a_damaged_fat_binary_is_located(data: bytes, fault: str) -> None:
    sound = region(entry(ELF, 90))
    with pytest.raises(MalformedElf, match=fault) as raised:
        names(sound, data)
    offset = int(str(raised.value).partition("at byte ")[2].partition(":")[0], 16)
    assert len(sound) <= offset <= len(sound + data)


def payloads(data: bytes) -> list[bytes]:
    stream = io.BytesIO(data)
    found = fatbin.regions(stream, 0, len(data))
    return [entry.payload(stream) for region in found for entry in region.entries]


@pytest.mark.parametrize("size", [9, 64, 100_000])
def test_payloads_are_unpacked(size: int) -> None:
    text = (b".entry kernel();\n" * size)[:size]
    data = region(*(entry(ELF, 120, flags, text) for flags in (0, LZ4, ZSTD)))
    assert payloads(region() + data) == [text, text, text]


def test_regions_and_where_they_begin() -> None:
    first, second = region(entry(ELF, 90), entry(PTX, 90)), region(entry(ELF, 120))
    data = bytes(16) + first + bytes(8) + second
    found = list(fatbin.regions(io.BytesIO(data), 0, len(data)))
    assert [region.offset for region in found] == [16, 16 + len(first) + 8]
    assert [[each.code.name for each in region.entries] for region in found] == [
        ["sm_90", "compute_90"],
        ["sm_120"],
    ]


@pytest.mark.parametrize("flag", [LZ4, ZSTD])
def test_a_damaged_payload_is_located(flag: int) -> None:
    text = b"".join(struct.pack("<I", number * number) for number in range(4000))
    sound = entry(ELF, 120, flag, text)
    packed = sound[64:]
    # The size after decompression: one too few, one too many, and more than a machine has.
    for size, fault in ((15_999, ""), (16_001, ""), (1 << 62, "too many")):
        data = region(sound[:56] + struct.pack("<Q", size) + packed)
        with pytest.raises(MalformedElf, match=f"payload at byte 0x50.*{fault}"):
            payloads(data)
    with pytest.raises(MalformedElf, match="payload at byte 0x50: damaged"):
        payloads(region(sound[:64] + b"\xff" * len(packed)))


@settings(deadline=5000, max_examples=300)
@given(st.lists(st.tuples(st.integers(0, 10_000), st.integers(0, 255)), min_size=1, max_size=6))
def test_no_damage_is_another_error(damage: list[tuple[int, int]]) -> None:
    packed = [entry(ELF, 120, flag, b"kernel" * 20) for flag in (LZ4, ZSTD)]
    section = bytearray(region() + region(entry(ELF, 120, FLAG_A), *packed) + bytes(8))
    for place, value in damage:
        section[place % len(section)] = value
    with suppress(MalformedElf):
        payloads(bytes(section))
