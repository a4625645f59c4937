"""Services: what a container needs to serve a preset, and the reasons."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from builder.errors import RecipeError
from builder.presets import command
from builder.presets import service as module
from builder.presets.schema import Preset
from builder.presets.service import Files, Mount, Run, container_name, service
from support.services import SERVICES
from support.shipped import PRESETS, RECIPES

IMAGE = "me/image:1"


def preset_of(recipe: str, **keys: object) -> Preset:
    model = {"name": "A model", "repository": "me/A-GGUF", "file": "a.gguf"}
    given = {"recipe": recipe, "summary": "a", "card": "5090", "model": model}
    return Preset.model_validate(given | keys)


@pytest.mark.parametrize(
    "options",
    [
        *(["--port", "9000"], ["--port=9000"], ["--ctx-size", "1", "--host", "::1"]),
        *(["--host", "x.sock"], ["--uds", "/x"], ["--api-prefix", "/x"], ["--ssl-certfile", "x"]),
    ],
)
@pytest.mark.parametrize("preset", [True, False])
def test_an_option_that_moves_the_server_is_refused(options: list[str], *, preset: bool) -> None:
    """``run`` would wait for it in vain, and a liveness probe would kill it for ever."""
    recipe = RECIPES.engine("llama-cpp-b9261").recipe
    found = preset_of(recipe.name) if preset else None
    with pytest.raises(RecipeError, match="cannot be given after --") as raised:
        service(Run("a", recipe, found, options=tuple(options)), IMAGE, Files({"model": "/m"}))
    assert "--port N of builder" in raised.value.hint


@pytest.mark.parametrize("name", SERVICES)
def test_the_service_of_a_published_preset(name: str) -> None:
    found = SERVICES[name]
    preset = PRESETS.preset(name).preset
    recipe = RECIPES.engine(preset.recipe).recipe
    model = next(word for word in found.words if word.startswith("/models/"))
    assert found.mounts == (Mount("/srv/models", "/models"),)
    places = {"model": model}
    if preset.drafter is not None:
        places["draft"] = next(
            place
            for word in found.words
            for place in re.findall(r"/models/[\w./-]+", word)
            if place != model
        )
    assert found.words == command.arguments(preset, recipe, places)
    assert {each.name: each.value for each in found.environment} == preset.serve.environment
    assert found.cards == preset.cards
    assert re.fullmatch(r"[a-z][a-z0-9-]{0,61}[a-z0-9]", found.name)
    assert found.health in {"/health", "/v1/models"}
    assert len(found.notes) == len(preset.caveat)
    model_option = next(each for each in found.arguments if model in each.words)
    assert preset.model.shown in model_option.why


def test_an_option_has_its_meaning_and_the_caveats_that_name_it() -> None:
    preset = preset_of(
        "llama-cpp-b9261",
        serve={"arguments": ["--mlock", "--unheard-of", "1"], "context": 512},
        caveat=[{"text": "On WSL --mlock fails.", "thread": "me/engine#1"}],
        container={"memlock": True, "capabilities": ["IPC_LOCK"], "ipc": "host", "shm_size": "1g"},
    )
    run = Run("a@5090", RECIPES.engine(preset.recipe).recipe, preset)
    found = service(run, IMAGE, Files({"model": "/m"}))
    why = {option.words[0]: option.why for option in found.arguments}
    assert why["--mlock"].endswith("swapped out nor compressed; On WSL --mlock fails.")
    assert why["--unheard-of"] == ""
    assert why["--ctx-size"] == "size of the context in tokens"
    assert found.notes == ("On WSL --mlock fails. (me/engine#1)",)
    needs = [(key, value) for key, value, why in module.container_needs(found.container) if why]
    assert needs == [
        ("ipc", "host"),
        ("shm_size", "1g"),
        ("memlock", "-1"),
        ("capabilities", "IPC_LOCK"),
    ]


@pytest.mark.parametrize(
    ("words", "container", "size"),
    [
        (["--tensor-parallel-size", "2"], {}, "2g"),
        (["--tensor-parallel-size=2"], {}, "2g"),
        (["-tp", "2"], {"shm_size": "8g"}, "8g"),
        (["-tp", "2"], {"ipc": "host"}, None),
        (["--dtype", "auto"], {}, None),
    ],
)
def test_tensor_parallelism_has_shared_memory(
    words: list[str], container: dict[str, str], size: str | None
) -> None:
    preset = preset_of("vllm-0.21.0", serve={"arguments": words}, container=container)
    run = Run("a@5090", RECIPES.engine(preset.recipe).recipe, preset)
    assert service(run, IMAGE, Files({"model": "/m"})).container.shm_size == size


@pytest.mark.parametrize("words", [["--served-model-name", "a", "b"], ["--served-model-name=a"]])
def test_vllm_answers_to_the_first_name_that_it_is_given(words: list[str]) -> None:
    preset = preset_of("vllm-0.21.0", serve={"arguments": words})
    run = Run("a@5090", RECIPES.engine(preset.recipe).recipe, preset)
    assert service(run, IMAGE, Files({"model": "/m"})).api_model == "a"


def test_the_context_and_the_port_can_be_chosen() -> None:
    preset = preset_of("llama-cpp-b9261", serve={"context": 512})
    run = Run("a@5090", RECIPES.engine(preset.recipe).recipe, preset, context=1024)
    found = service(run, IMAGE, Files({"model": "/m"}), published=9000)
    assert found.words == ["--model", "/m", "--ctx-size", "1024"]
    assert (found.port, found.published, found.url) == (8080, 9000, "http://127.0.0.1:9000")


def test_a_recipe_without_preset_gets_its_own_options_for_a_gpu() -> None:
    recipe = RECIPES.engine("llama-cpp-b9261").recipe
    found = service(Run(recipe.name, recipe, None, 512), IMAGE, Files({"model": "/m"}))
    assert found.words == ["--model", "/m", "--ctx-size", "512", "--n-gpu-layers", "99"]
    assert found.health_check == ["/usr/local/bin/healthcheck", "8080", "health"]
    without = service(Run(recipe.name, recipe), IMAGE, Files({"model": "/m"}))
    assert "--ctx-size" not in without.words


def test_a_recipe_that_takes_no_model() -> None:
    recipe = RECIPES.engine("hello-sm120").recipe
    with pytest.raises(RecipeError, match="takes no --model"):
        service(Run(recipe.name, recipe), IMAGE, Files({"model": "/m"}))
    with pytest.raises(RecipeError, match="takes no --context"):
        service(Run(recipe.name, recipe, None, 512), IMAGE, Files({}))


def test_a_preset_gets_no_file_that_its_engine_ignores() -> None:
    preset = preset_of("vllm-0.21.0")
    run = Run("a@5090", RECIPES.engine(preset.recipe).recipe, preset)
    with pytest.raises(RecipeError, match="takes no --mmproj"):
        service(run, IMAGE, Files({"model": "/m", "mmproj": "/p"}))


def test_a_server_without_a_model() -> None:
    recipe = RECIPES.engine("vllm-0.21.0").recipe
    with pytest.raises(RecipeError, match="needs a model"):
        service(Run(recipe.name, recipe), IMAGE, Files({}))
    own = Run(recipe.name, recipe, options=("OWNER/NAME",))
    assert service(own, IMAGE, Files({})).words == ["OWNER/NAME"]


def test_a_recipe_that_is_no_server() -> None:
    recipe = RECIPES.engine("hami-core").recipe
    with pytest.raises(RecipeError, match="is no server"):
        service(Run(recipe.name, recipe), IMAGE, Files({}))


@pytest.mark.parametrize(
    ("run", "name"),
    [
        ("qwen3.6-27b@5090-laptop", "builder-qwen3-6-27b-5090-laptop"),
        ("A__b@2x3090", "builder-a-b-2x3090"),
        ("m" * 44 + "@5090", "builder-" + "m" * 44),
    ],
)
def test_the_name_of_a_container_is_a_label_in_dns(run: str, name: str) -> None:
    assert container_name(run) == name


def test_reasons_are_found_by_the_long_name_of_an_option() -> None:
    file = Path(module.__file__).with_name("reasons.toml")
    tables = tomllib.loads(file.read_text())
    assert [name for name in tables["option"] if command.option_of(name) != name] == []
