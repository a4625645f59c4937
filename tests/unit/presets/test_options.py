"""Options of the engine after ``--``: those that the recipe's arguments set are refused."""

from __future__ import annotations

import pytest

from builder.engines.families import complete
from builder.presets.fit import OptionError, given_option, require_free
from builder.recipes.schema import Recipe
from support.shipped import RECIPES


def recipe_of(name: str) -> Recipe:
    return complete(RECIPES.engine(name).recipe)


@pytest.mark.parametrize(
    ("engine", "word", "ours"),
    [
        ("llama-cpp-b9261", "--ctx-size", "--context"),
        ("llama-cpp-b9261", "-c", "--context"),
        ("llama-cpp-b9261", "-m", "--model"),
        ("llama-cpp-b9261", "--ctx-size=4096", "--context"),
        ("llama-cpp-b9261", "--spec-draft-model", "--draft"),
        ("llama-cpp-b9261", "-mm", "--mmproj"),
        ("llama-cpp-python", "--n_ctx", "--context"),
    ],
)
def test_what_fit_sets_is_refused(engine: str, word: str, ours: str) -> None:
    with pytest.raises(OptionError) as caught:
        require_free(["--parallel", "4", word, "4096"], recipe_of(engine), None)
    option = word.partition("=")[0]
    assert str(caught.value) == f"{option} is set by the {ours} of fit: leave it out after --"


def test_the_address_of_the_server_is_fits() -> None:
    with pytest.raises(OptionError, match="--port is set by fit"):
        require_free(["--port=9000"], recipe_of("llama-cpp-b9261"), None)


def test_other_options_are_free() -> None:
    words = ["-ngl", "10", "--cache-type-k", "q8_0", "--seed", "-1", "c"]
    require_free(words, recipe_of("llama-cpp-b9261"), None)


def test_a_drafter_that_an_option_names_must_be_given() -> None:
    words, recipe = ["--mtp-head", "{draft}"], recipe_of("atomic-b8995")
    require_free(words, recipe, "head.gguf")
    with pytest.raises(OptionError, match=r"\{draft\} stands for the file of --draft"):
        require_free(words, recipe, None)


def test_an_option_is_found_under_any_of_its_names() -> None:
    assert given_option(["-fa", "on", "-ngl", "10"], ["--n-gpu-layers", "99"]) == "-ngl"
    assert given_option(["--cache-type-k", "q8_0"], ["-ctk"]) == "--cache-type-k"
    assert given_option(["-fa", "on"], ["--n-gpu-layers", "99"]) == ""
