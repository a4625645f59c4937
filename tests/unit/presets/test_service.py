"""Services: what a container needs to serve a preset, and the reasons."""

from __future__ import annotations

import re
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest

from builder.core.errors import RecipeError
from builder.presets import command
from builder.presets import service as module
from builder.presets.schema import Preset
from builder.presets.service import Files, Mount, Run, container_name, service
from support.services import SERVICES
from support.shipped import PRESETS, RECIPES

IMAGE = "me/image:1"
LLAMA, VLLM, SGLANG = "llama-cpp-b9261", "vllm-0.21.0", "sglang-0.5.23-wheel"


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
    assert "--listen ADDRESS and --port N" in raised.value.hint


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
    words = [*found.words]
    if recipe.family == "vllm-overlay":
        place = words.index("--served-model-name")
        assert words[place + 1] == found.api_model == name.partition("@")[0]
        if "--served-model-name" not in preset.serve.arguments:
            del words[place : place + 2]
    assert words == command.arguments(preset, recipe, places)
    assert {each.name: each.value for each in found.environment} == preset.serve.environment
    assert found.cards == preset.cards
    assert re.fullmatch(r"[a-z][a-z0-9-]{0,61}[a-z0-9]", found.name)
    assert found.health in {"/health", "/v1/models"}
    assert len(found.notes) == len(preset.caveat)
    model_option = next(each for each in found.arguments if model in each.words)
    assert preset.model.shown in model_option.why


def test_an_option_has_its_meaning() -> None:
    preset = preset_of(
        "llama-cpp-b9261",
        serve={"arguments": ["--mlock", "--unheard-of", "1"], "context": 512},
        caveat=[{"text": "On WSL --mlock fails.", "thread": "me/engine#1"}],
        container={"memlock": True, "capabilities": ["IPC_LOCK"], "ipc": "host", "shm_size": "1g"},
    )
    run = Run("a@5090", RECIPES.engine(preset.recipe).recipe, preset)
    found = service(run, IMAGE, Files({"model": "/m"}))
    why = {option.words[0]: option.why for option in found.arguments}
    assert why["--mlock"].endswith("neither swapped out nor compressed")
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
        (["--tensor_parallel_size=2"], {}, "2g"),
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


@pytest.mark.parametrize("words", [["--served-model-name", "a", "b"], ["--served_model_name=a"]])
def test_vllm_answers_to_the_first_name_that_it_is_given(words: list[str]) -> None:
    preset = preset_of("vllm-0.21.0", serve={"arguments": words})
    run = Run("a@5090", RECIPES.engine(preset.recipe).recipe, preset)
    assert service(run, IMAGE, Files({"model": "/m"})).api_model == "a"


@pytest.mark.parametrize(
    ("recipe", "option"),
    [
        ("vllm-0.21.0", "--served-model-name"),
        ("sglang-0.5.23-wheel", "--served-model-name"),
        ("lmdeploy-0.18.0-wheel", "--model-name"),
    ],
)
def test_requests_name_the_preset_and_no_path(recipe: str, option: str) -> None:
    engine = RECIPES.engine(recipe).recipe
    files = Files({"model": "/model/Qwen3-8B"})
    found = service(Run("short@5090", engine, preset_of(recipe)), IMAGE, files)
    assert (found.words[found.words.index(option) + 1], found.api_model) == ("short", "short")
    own = service(Run(recipe, engine), IMAGE, files)  # without a preset, the folder's name
    assert (own.words[own.words.index(option) + 1], own.api_model) == ("Qwen3-8B", "Qwen3-8B")
    given = Run(recipe, engine, options=("--model", "me/a"))
    assert option not in service(given, IMAGE, Files({})).words


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


GIB = 1 << 30
CACHED, LIBRARIES = (
    "of cached prompts (llama-server's --cache-ram)",
    "for the program and its libraries (not measured)",
)


@pytest.mark.parametrize(
    ("recipe", "words", "cpu", "needs"),
    [
        (LLAMA, ["-ngl", "99"], False, {CACHED: 8 * GIB, LIBRARIES: GIB}),
        (
            LLAMA,
            ["--cache-ram", "0", "-ncmoe", "9"],
            False,
            {"of weights (--n-cpu-moe)": 9, LIBRARIES: GIB},
        ),
        (LLAMA, ["-cram", "1024"], True, {"of weights (--cpu)": 9, CACHED: GIB, LIBRARIES: GIB}),
        (
            LLAMA,
            ["--no-mmap"],
            False,
            {"of weights (--no-mmap)": 9, CACHED: 8 * GIB, LIBRARIES: GIB},
        ),
        ("vllm-0.21.0", [], False, {'as in vLLM\'s own example ("Using Kubernetes")': 6 * 10**9}),
    ],
)
def test_the_memory_of_the_machine(
    recipe: str, words: list[str], needs: dict[str, int], *, cpu: bool
) -> None:
    model = {"name": "A", "repository": "me/A-GGUF", "file": "a.gguf", "size": 9}
    preset = preset_of(recipe, serve={"arguments": words}, model=model)
    run = Run("a@5090", RECIPES.engine(recipe).recipe, preset, cpu=cpu)
    found = service(run, IMAGE, Files({"model": "/models/me/A-GGUF/a.gguf"}))
    assert {what: count for what, count in found.ram.items() if count} == needs


def test_on_the_cpu_the_machine_needs_what_the_card_needed() -> None:
    preset = preset_of(LLAMA, memory={"total": 20, "unit": "GiB"})
    run = Run("a@5090", RECIPES.engine(LLAMA).recipe, preset, cpu=True)
    found = service(run, IMAGE, Files({"model": "/m"})).ram
    assert found["that the published run took on its card (--cpu)"] == 20 * GIB
    assert found.keys() == {"that the published run took on its card (--cpu)", CACHED, LIBRARIES}


def test_the_memory_of_the_machine_has_the_size_of_a_given_file(tmp_path: Path) -> None:
    (file := tmp_path / "b.gguf").write_bytes(b"1234")
    given = Files({"model": "/model/b.gguf"}, (Mount(str(file), "/model/b.gguf", file=True),))
    preset = preset_of("llama-cpp-b9261", serve={"arguments": ["--mlock"]})
    run = Run("a@5090", RECIPES.engine(preset.recipe).recipe, preset)
    assert service(run, IMAGE, given).ram["of weights (--mlock)"] == 4
    assert "of weights that are known (--mlock)" in service(run, IMAGE, Files({"model": "/m"})).ram


def test_reasons_are_found_by_the_long_name_of_an_option() -> None:
    file = Path(module.__file__).with_name("reasons.toml")
    tables = tomllib.loads(file.read_text())
    assert [name for name in tables["option"] if command.option_of(name) != name] == []


def words_of(recipe: str, own: list[str], options: list[str], **run: object) -> list[str]:
    """The words of a service whose preset has these arguments, and whose user gives ``options``."""
    preset = preset_of(recipe, serve={"arguments": own, "context": 65536})
    wanted = Run("a@5090", RECIPES.engine(recipe).recipe, preset, options=(*options,))
    return service(replace(wanted, **run), IMAGE, Files({"model": "/m"})).words  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("recipe", "own", "options"),
    [
        (LLAMA, "-ngl 99", "--n-gpu-layers 3"),
        (LLAMA, "--n-gpu-layers 99", "--gpu-layers=3"),
        (LLAMA, "--n-gpu-layers 99", "--n_gpu_layers 3"),
        (LLAMA, "--split-mode tensor", "-sm layer"),
        (LLAMA, "--spec-draft-n-max 3", "--draft-max 5"),
        (LLAMA, "--spec-draft-ngl 99", "-ngld 1"),
        (LLAMA, "--no-mmap", "--mmap"),
        (LLAMA, "--kv-unified", "-no-kvu"),
        (LLAMA, "-kvo", "-nkvo"),
        (LLAMA, "-fa on", "--flash-attn off"),
        (LLAMA, "--override-tensor a=CPU --override-tensor b=CPU", "-ot c=CPU -ot d=CPU"),
        (LLAMA, "--lora a --lora b", "--lora c"),
        (LLAMA, "--chat-template-kwargs {}", '--chat-template-kwargs={"a":1}'),
        (VLLM, "--tensor-parallel-size 2", "-tp 1"),
        (VLLM, "--enable-prefix-caching", "--no-enable-prefix-caching"),
        (VLLM, "--served-model-name a b", "--served-model-name c d e"),
        (VLLM, "--gpu-memory-utilization 0.9", "--gpu_memory_utilization=0.5"),
        (VLLM, "--speculative-config {}", "--speculative-config.method mtp -q awq"),
        (SGLANG, "--tp-size 2", "--tp 1"),
        (SGLANG, "--enable-metrics", "--disable-metrics"),
    ],
)
def test_an_option_replaces_all_that_sets_the_same(recipe: str, own: str, options: str) -> None:
    words = words_of(recipe, ["--seed", "1", *own.split()], options.split())
    assert words[-len(options.split()) :] == options.split()
    assert not {*own.split()} & {word for word in words if word.startswith("-")} - {
        *options.split()
    }
    assert words[words.index("--seed") + 1] == "1"


@pytest.mark.parametrize(
    ("recipe", "own", "options"),
    [
        (LLAMA, "--cpu-moe", "--n-cpu-moe 3"),
        (LLAMA, "--no-host", "--host-x 1"),
        (LLAMA, "--cache-type-k q8_0", "-ctkd q4_0"),
        (LLAMA, "--lora a", "--lora-scaled b 0.5"),
        (LLAMA, "--spec-no-thing 1", "--spec-thing 2"),
        (VLLM, "--max-num-seqs 1", "--max-num-batched-tokens 2048"),
    ],
)
def test_another_option_stays(recipe: str, own: str, options: str) -> None:
    words = words_of(recipe, own.split(), options.split())
    assert words[-len(f"{own} {options}".split()) :] == f"{own} {options}".split()


@pytest.mark.parametrize(
    ("recipe", "options", "left"),
    [
        (LLAMA, "--ctx-size 4", ["--model", "/m"]),
        (LLAMA, "-c 4", ["--model", "/m"]),
        (LLAMA, "-m /n", ["--ctx-size", "8192"]),
        (LLAMA, "-hf me/a", ["--ctx-size", "8192"]),
        (VLLM, "--max_model_len=4", ["/m", "--served-model-name", "a"]),
        (VLLM, "--model me/a", ["--max-model-len", "8192"]),
        (SGLANG, "--model me/a", ["--context-length", "8192"]),
        ("llama-cpp-python-0.3.36", "--n_ctx 4", ["--model", "/m"]),
    ],
)
def test_files_and_contexts_are_replaced_like_options(
    recipe: str, options: str, left: list[str]
) -> None:
    assert words_of(recipe, [], options.split(), context=8192) == [*left, *options.split()]


def test_a_recipes_own_options_for_a_gpu_are_replaced() -> None:
    for name, options in (("hello-sm120", "--device auto"), (LLAMA, "-ngl 3")):
        recipe = RECIPES.engine(name).recipe
        run = Run(recipe.name, recipe, options=(*options.split(),))
        assert service(run, IMAGE, Files({})).words == options.split()


def test_a_variable_that_sets_the_same_goes() -> None:
    variables = ("CTX_SIZE", "N_GPU_LAYERS", "NO_MMAP", "BATCH", "THREADS")
    environment = {f"LLAMA_ARG_{each}": "1" for each in variables} | {"CUDA_CACHE_PATH": "/c"}
    preset = preset_of(LLAMA, serve={"environment": environment, "context": 512})
    options = ("-ngl", "3", "--mmap", "-b", "1")
    run = Run("a@5090", RECIPES.engine(LLAMA).recipe, preset, options=options)
    found = service(run, IMAGE, Files({"model": "/m"}))
    assert [each.name for each in found.environment] == ["LLAMA_ARG_THREADS", "CUDA_CACHE_PATH"]


OWN = ["--split-mode", "tensor", "--no-mmap", "--spec-draft-n-max", "3", "--flash-attn", "on"]


@pytest.mark.parametrize(
    ("text", "options", "stays"),
    [
        ("--split-mode tensor answers are wrong", "", True),
        ("--split-mode tensor answers are wrong", "--split-mode layer", False),
        ("Answers are wrong (`-sm tensor`).", "--split-mode=layer", False),
        ("With --split-mode=tensor, answers are wrong.", "-sm row", False),
        ("--split-mode tensor answers are wrong", "-sm tensor", True),
        ("On WSL --no-mmap is slow.", "--mmap", False),
        ("On WSL --mmap is needed.", "--mmap", True),
        ("With --spec-draft-n-max 5 it is slow.", "--draft-max 5", True),
        ("With --ctx-size 65536 it ends.", "--ctx-size 512", False),
        ("Wrong with --no-mmap and --flash-attn on.", "-fa off", False),
        ("A projector (--mmproj) does not work.", "--mmproj /p", True),
        ("It is slow.", "--mmap", True),
    ],
)
def test_a_caveat_goes_with_its_option(text: str, options: str, *, stays: bool) -> None:
    preset = preset_of(LLAMA, serve={"arguments": OWN, "context": 65536}, caveat=[{"text": text}])
    run = Run("a@5090", RECIPES.engine(LLAMA).recipe, preset, options=(*options.split(),))
    found = service(run, IMAGE, Files({"model": "/m"}))
    assert found.notes == ((text,) if stays else ())
    assert any(text in option.why for option in found.arguments) <= stays


def test_a_caveat_without_the_value_stays_and_names_what_it_is_about() -> None:
    text = "--flash-attn must be on."
    preset = preset_of(LLAMA, serve={"arguments": OWN}, caveat=[{"text": text}])
    run = Run("a@5090", RECIPES.engine(LLAMA).recipe, preset, options=("-fa", "off"))
    found = service(run, IMAGE, Files({"model": "/m"}))
    about = "This is about the preset's --flash-attn on, which is replaced."
    assert found.notes == (f"{text} {about}",)
    assert not any(text in option.why for option in found.arguments)
