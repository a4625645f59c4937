"""The arguments of a preset's server: its own, and those that follow from models and context."""

from __future__ import annotations

import pytest

from builder.presets import command
from builder.presets.schema import Preset
from builder.recipes.schema import Recipe
from support.shipped import PRESETS, RECIPES

PLACES = {"model": "/models/m", "draft": "/models/d"}


def shipped(name: str) -> tuple[Preset, Recipe]:
    preset = PRESETS.preset(name).preset
    return preset, RECIPES.engine(preset.recipe).recipe


def test_llama_server_gets_model_context_and_drafter_by_its_own_options() -> None:
    words = command.arguments(*shipped("qwen3.6-27b-dflash@5090-laptop"), PLACES)
    assert words[:6] == [
        *("--model", "/models/m", "--ctx-size", "262144"),
        *("--model-draft", "/models/d"),
    ]
    assert words[6:8] == ["--spec-type", "dflash"]


def test_a_placeholder_replaces_the_option_of_the_recipe() -> None:
    words = command.arguments(*shipped("gemma-4-e2b-mtp@5090-laptop"), PLACES)
    assert words[:6] == [
        *("--model", "/models/m", "--ctx-size", "131072"),
        *("--mtp-head", "/models/d"),
    ]
    assert "--model-draft" not in words


def test_vllm_takes_the_model_first_and_its_drafter_in_json() -> None:
    words = command.arguments(*shipped("gemma-4-e4b-mtp@5090-laptop"), PLACES)
    assert words[:3] == ["/models/m", "--max-model-len", "32000"]
    assert '{"method":"mtp","model":"/models/d","num_speculative_tokens":3}' in words


def test_a_server_without_serve_takes_only_what_the_preset_names() -> None:
    words = command.arguments(*shipped("qwen3.6-27b-dflash-lucebox@3090"), PLACES)
    assert words == ["--target", "/models/m", "--draft", "/models/d"]


def test_without_a_context_the_engine_decides() -> None:
    preset, recipe = shipped("qwen3.6-27b-mtp@5090-laptop")
    assert preset.serve.context is None
    assert "--ctx-size" not in command.arguments(preset, recipe, PLACES)


def test_a_projector_has_the_option_of_its_server() -> None:
    words = command.arguments(*shipped("qwen3.6-27b-mtp@5090-laptop"), {"mmproj": "/models/p"})
    assert words[:2] == ["--mmproj", "/models/p"]


def test_no_placeholder_is_left_in_any_shipped_preset() -> None:
    for entry in PRESETS.valid():
        places = {"model": "M"} | ({"draft": "D"} if entry.preset.drafter else {})
        recipe = RECIPES.engine(entry.preset.recipe).recipe
        for word in command.arguments(entry.preset, recipe, places):
            assert not any(place in word for place in ("{model}", "{draft}", "{context}"))


def test_the_options_of_a_result_replace_those_of_the_preset() -> None:
    preset, recipe = shipped("qwen3.6-35b-a3b-draft@3090")
    words = command.written(preset, recipe, PLACES, preset.result[3].arguments)
    assert words[-4:] == ["--draft-min", "2", "--draft-max", "32"]
    assert words.count("--draft-max") == 1


@pytest.mark.parametrize(
    ("word", "option"),
    [
        ("-ngl", "--n-gpu-layers"),
        ("--max-model-len=4096", "--max-model-len"),
        ("-1", ""),
        ("on", ""),
        ("", ""),
    ],
)
def test_options_are_told_from_values(word: str, option: str) -> None:
    assert command.option_of(word) == option


def test_the_container_gets_what_the_preset_needs() -> None:
    preset, _ = shipped("qwen3.6-27b-dflash@5090-laptop")
    assert command.container_options(preset.container) == [
        "--ulimit=memlock=-1",
        "--cap-add=IPC_LOCK",
    ]
    needs = preset.container.model_copy(update={"ipc": "host", "shm_size": "16g"})
    other = preset.model_copy(update={"container": needs})
    assert command.container_options(other.container)[:2] == ["--ipc=host", "--shm-size=16g"]
