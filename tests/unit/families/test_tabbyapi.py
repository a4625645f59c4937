"""TabbyAPI: what a recipe may set, and how its server starts."""

from __future__ import annotations

from pathlib import Path

import pytest

from builder.families.tabbyapi_log import read
from support.family_recipes import CALL, GIT, LOCKED, problems


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ((GIT, CALL), "the family tabbyapi has no use for [[cmake]]"),
        ((GIT, LOCKED), "the family tabbyapi has no use for [python]"),
    ],
)
def test_tables_without_effect_are_refused(
    catalog: Path, parts: tuple[str, ...], message: str
) -> None:
    assert message in problems(catalog, "tabbyapi", *parts)


def test_only_machine_code_is_compiled(catalog: Path) -> None:
    found = problems(catalog, "tabbyapi", GIT, cuda="120-virtual")
    assert "the family tabbyapi makes machine code only: 120" in found


def test_the_card_without_room_is_read_from_the_log() -> None:
    text = (
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.37 GiB. GPU 0 has a total "
        "capacity of 23.46 GiB of which 1.50 GiB is free. Including non-PyTorch memory"
    )
    assert read(text).no_room.startswith("Tried to allocate 2.37 GiB. GPU 0 has")
    assert not read("INFO: Model successfully loaded.").no_room


def test_the_cache_counts_once_the_model_is_loaded() -> None:
    cache = "INFO:     Using configured cache_size: 2048 tokens.\n"
    assert read(cache).kv_tokens is None
    found = read(f"{cache}INFO:     Model successfully loaded.\n")
    assert (found.kv_tokens, found.kinds, found.text) == (2048, {}, "2,048 tokens")
