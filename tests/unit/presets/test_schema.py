"""Sizes of models and of memory, as sources give them."""

from __future__ import annotations

import pytest

from builder.presets.schema import Memory, ModelFile


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ({"published_size": "14.5 GB"}, 14_500_000_000),
        ({"published_size": "16.87 GiB"}, round(16.87 * 2**30)),
        ({"published_size": "75 MB"}, 75_000_000),
        ({"published_size": "about 6 GB"}, None),
        ({"file": "a.gguf", "size": 7, "published_size": "1 GB"}, 7),
        ({}, None),
    ],
)
def test_the_size_of_a_model_in_bytes(keys: dict[str, object], expected: int | None) -> None:
    assert ModelFile.model_validate({"repository": "a/b", **keys}).known_size == expected


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ({"published_size": "15 GB"}, 14_500_000_000),
        ({"published_size": "14.5 GB"}, 14_450_000_000),
        ({"published_size": "about 6 GB"}, None),
        ({"file": "a.gguf", "size": 7, "published_size": "1 GB"}, 7),
    ],
)
def test_a_source_rounds_the_size_of_a_model(keys: dict[str, object], expected: int | None) -> None:
    assert ModelFile.model_validate({"repository": "a/b", **keys}).least_size == expected


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ({"total": 20}, 20 * 10**9),
        ({"total": 20, "kinds": {"weights": 10}, "unit": "GiB"}, 20 * 2**30),
        ({"kinds": {"weights": 17.2, "KV cache": 3.2}}, 20_400_000_000),
        ({"kinds": {"KV cache": 3.2}}, None),
    ],
)
def test_all_of_the_memory(keys: dict[str, object], expected: int | None) -> None:
    assert Memory.model_validate(keys).whole == expected
