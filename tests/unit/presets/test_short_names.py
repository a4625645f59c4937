from __future__ import annotations

import pytest

from builder.core.errors import RecipeError
from builder.presets import model_names, named
from support.shipped import PRESETS

ENTRIES = PRESETS.valid()
MODELS = {entry.name: entry.preset.model.name for entry in ENTRIES}


def test_every_preset_has_a_model() -> None:
    found = model_names(MODELS)
    assert found.keys() == {entry.name for entry in ENTRIES}
    assert found["qwen3.6-27b-dflash@5090-laptop"] == "qwen3.6-27b"
    assert found["qwen3.6-35b-a3b@5070"] == "qwen3.6-35b-a3b"
    # A quantization may be a part of the model's name.
    names = {"qwen3.6-27b@5080": "Qwen3.6 27B", "qwen3.6-27b-awq@5090": "Qwen3.6 27B AWQ"}
    assert {*model_names(names).values()} == {"qwen3.6-27b"}
    assert all(name.startswith(model) for name, model in found.items())


def names(short: str) -> list[str]:
    return [entry.name for entry in named(ENTRIES, short)]


def test_a_kind_is_what_follows_the_model() -> None:
    lucebox = ["qwen3.6-27b-dflash-lucebox@5090"]
    assert names("qwen3.6-27b:dflash-lucebox") == lucebox
    assert names("Qwen3.6-27B:dflash") == ["qwen3.6-27b-dflash@5090-laptop"]
    assert {*names("qwen3.6-27b:dflash"), *lucebox} < {*names("qwen3.6-27b")}


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("qwen3.6-28b", "did you mean qwen3.6-27b?"),
        ("qwen3.6-27b:dflush", "no preset of qwen3.6-27b is of the kind dflush"),
    ],
)
def test_an_unknown_name_is_an_error_that_lists_the_known(name: str, message: str) -> None:
    with pytest.raises(RecipeError) as raised:
        named(ENTRIES, name)
    assert message in raised.value.what
    assert "qwen3.6-27b" in raised.value.why
