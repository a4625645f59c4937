"""The model folder: a tokenizer of bytes, and a configuration that fits it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from builder.checks import serves
from builder.presets import made_models
from builder.presets.hollow import is_hole
from simulator import gguf


@pytest.fixture
def files(tmp_path: Path) -> dict[str, Any]:
    """The content of each file, by its name."""
    serves.write_model_folder(tmp_path / "model")
    found = (tmp_path / "model").glob("*.json")
    return {file.name: json.loads(file.read_text()) for file in found}


def test_each_byte_is_a_token_with_the_letter_of_gpt_2() -> None:
    letters = sorted(made_models.bytes_as_characters())
    assert len(letters) == len(set(letters)) == 256
    # Their numbers in GPT-2's encoder.json.
    known = {0: "!", 220: "\u0120", 198: "\u010a", 188: "\u0100", 93: "~"}
    assert {number: letters[number] for number in known} == known


def test_zeros_are_printable_text(files: dict[str, Any]) -> None:
    [first] = [
        text for text, number in files["tokenizer.json"]["model"]["vocab"].items() if not number
    ]
    assert first == "!"


def test_the_configuration_fits_the_tokenizer_and_itself(files: dict[str, Any]) -> None:
    config, tokenizer = files["config.json"], files["tokenizer.json"]
    [end] = tokenizer["added_tokens"]
    assert end["content"] == files["tokenizer_config.json"]["eos_token"]
    assert end["id"] == config["eos_token_id"] == len(tokenizer["model"]["vocab"])
    assert config["vocab_size"] > end["id"]
    assert config["num_attention_heads"] % config["num_key_value_heads"] == 0
    assert config["max_position_embeddings"] == files["tokenizer_config.json"]["model_max_length"]


def test_the_weights_are_a_hole_of_the_size_that_the_configuration_says(
    files: dict[str, Any], tmp_path: Path
) -> None:
    file, config = tmp_path / "model" / serves.WEIGHTS, files["config.json"]
    with file.open("rb") as stream:
        header = gguf.read_safetensors(stream)
    assert header.end == file.stat().st_size
    assert is_hole(file)
    width, head, inner = config["hidden_size"], config["head_dim"], config["intermediate_size"]
    heads, groups = config["num_attention_heads"], config["num_key_value_heads"]
    attention = 2 * width * head * (heads + groups) + 2 * head
    layer = attention + 3 * width * inner + 2 * width
    whole = 2 * config["vocab_size"] * width + width
    assert header.weights == 2 * (config["num_hidden_layers"] * layer + whole)


def test_every_user_may_read_it(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    serves.write_model_folder(folder)
    assert folder.stat().st_mode & 0o777 == 0o755
    assert {file.stat().st_mode & 0o777 for file in folder.iterdir()} == {0o644}
