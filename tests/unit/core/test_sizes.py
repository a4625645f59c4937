"""Sizes for people: bytes that are shown, contexts that are read."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from builder.core import sizes

MAXIMA = [1 << power for power in range(10, 24)]
"""Contexts that models have: powers of two."""


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0.0 MB"), (1_500_000, "1.5 MB"), (2_670_000_000, "2.67 GB")]
)
def test_sizes_are_decimal(count: int, text: str) -> None:
    assert sizes.shown(count) == text


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("1000", (1000,)),
        ("8192, 4k", (8192, 4096)),
        ("64K,65K", (65536,)),
        ("128K,262K", (131072, 262144)),
        ("262K,256K,262144", (262144,)),
        ("300K", (307200,)),
    ],
)
def test_contexts_are_read_as_people_write_them(text: str, found: tuple[int, ...]) -> None:
    assert sizes.contexts_of(text) == found


@pytest.mark.parametrize("size", MAXIMA)
def test_a_power_of_two_has_both_of_its_names(size: int) -> None:
    """262144 is 256K, and 262K for those who count in thousands."""
    assert sizes.contexts_of(f"{size},{size // 1024}K,{size // 1000}K") == (size,)


@given(st.integers(1, 99_999_999))
def test_k_is_1024_but_for_thousands_of_a_power_of_two(count: int) -> None:
    assert sizes.contexts_of(str(count)) == (count,)
    assert sizes.contexts_of(f"{count}M") == (count * 1024 * 1024,)
    (read,) = sizes.contexts_of(f"{count}K")
    if read != count * 1024:
        assert read.bit_count() == 1
        assert read // 1000 == count


@pytest.mark.parametrize("text", ["", "32G", "0", "-4", "K", "32K,,64K", "1e5", "1.5K"])
def test_what_is_no_context_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a number of tokens such as 8192 or 32K"):
        sizes.contexts_of(text)


@pytest.mark.parametrize(
    ("usable", "text"),
    [
        (25_146_949_632, "24 GB (23.4 GiB usable)"),
        (33_680_457_728, "32 GB (31.4 GiB usable)"),
        (8_080_064_512, "8 GB (7.5 GiB usable)"),
        (12 << 30, "12 GB (12.0 GiB usable)"),
        (97_249 << 20, "96 GB (95.0 GiB usable)"),
        (81_049 << 20, "80 GB (79.1 GiB usable)"),
    ],
)
def test_a_card_is_named_by_its_nominal_memory(usable: int, text: str) -> None:
    assert sizes.card(usable) == text


@pytest.mark.parametrize("text", ["12G", "12 GB", "12GiB", "12g", "12288M", "12288 MiB"])
def test_memory_is_in_binary_units(text: str) -> None:
    assert sizes.memory_of(text) == 12 << 30


@pytest.mark.parametrize("text", ["12", "G", "0G", "-1G", "1.5G", "12T", "12Gb/s"])
def test_what_is_no_memory_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="no size of memory such as 12G"):
        sizes.memory_of(text)
