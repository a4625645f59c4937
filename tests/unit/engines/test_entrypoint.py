"""What the entrypoint of an image is called with, and what it knows of the image."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from builder.core.errors import RecipeError
from builder.core.platforms import Platforms
from builder.engines import layout
from builder.engines.cmake import instructions, truth
from builder.engines.families import ENGINES
from builder.plan import plan as plan_module
from builder.recipes.schema import Cuda
from support.catalogs import load, rendered
from support.environment import REPOSITORY
from support.smoke_tests import hello_recipe


@pytest.mark.parametrize(
    ("arch", "code"),
    [
        (["120"], ["sm_120", "compute_120"]),
        (["120a-real", "90-virtual"], ["sm_120a", "compute_90"]),
    ],
)
def test_the_code_is_what_cmake_makes_of_the_architectures(
    arch: list[str], code: list[str]
) -> None:
    recipe = hello_recipe().model_copy(update={"cuda": Cuda(arch=arch)})
    assert ENGINES["cmake"].machine_code(recipe) == code


@pytest.mark.parametrize(
    ("cuda", "driver", "lines"),
    [
        ("13.0", None, ["cuda 13.0", "driver 580"]),
        ("12.9", None, ["cuda 12.9", "driver 570"]),
        ("13.0", "580.126.09", ["cuda 13.0", "driver 580.126.09"]),
        (None, None, []),
        ("99.0", None, ["cuda 99.0"]),
    ],
)
def test_the_driver_is_that_of_the_cuda_unless_the_recipe_names_one(
    cuda: str | None, driver: str | None, lines: list[str]
) -> None:
    recipe = hello_recipe().model_copy(update={"cuda": Cuda(arch=["120"], driver=driver)})
    found = list(layout.needs(recipe, ["sm_120"], cuda))
    assert found == ["recipe hello-sm120-0.1.0", "code sm_120", *lines]


@pytest.mark.parametrize(
    ("define", "amd64", "arm64"),
    [
        ({}, "sse4.2 avx f16c fma bmi2 avx2", "armv8.2-a dotprod fp16 i8mm"),
        ({"GGML_AVX2": False, "GGML_FMA": "off"}, "sse4.2 avx f16c bmi2", "armv8.2-a"),
        ({"GGML_AVX512": "ON"}, "avx512f avx512cd avx512vl avx512dq avx512bw", "armv8.2-a"),
        ({"GGML_AVX512_BF16": 1, "GGML_AMX_INT8": True}, "avx512bf16 amx-int8", "armv8.2-a"),
        ({"GGML_CPU_ARM_ARCH": "armv9-a+nosve"}, "avx2", "armv9-a"),
        ({"CMAKE_CXX_FLAGS": "-O3 -march=x86-64-v2 -mtune=x -mavxvnni"}, "popcnt avxvnni", "i8mm"),
        ({"CMAKE_C_FLAGS_RELEASE": "-march=znver4"}, "znver4", "znver4"),
    ],
)
def test_the_instructions_of_the_cpu_are_those_of_the_definitions(
    define: dict[str, str | int | bool], amd64: str, arm64: str
) -> None:
    plan = rendered(REPOSITORY, "llama-cpp-b10018")
    call = plan.recipe.cmake[0].model_copy(update={"define": define})
    recipe = plan.recipe.model_copy(update={"cmake": [call]})
    for target, expected in (("amd64", amd64), ("arm64", arm64)):
        found = plan.family.instructions(recipe, Platforms(target, target))
        assert set(expected.split()) <= set(found)
        assert bool(define) or found == expected.split()
        off = {name for name, value in define.items() if not truth(value)}
        assert not {name.removeprefix("GGML_").lower() for name in off} & set(found)


def test_code_that_ggml_chooses_when_it_starts_needs_no_instructions() -> None:
    on = {"GGML_CPU_ALL_VARIANTS": True, "GGML_BACKEND_DL": True, "GGML_AVX2": True}
    assert instructions(on, "amd64") == []
    assert instructions({"GGML_NATIVE": "ON", "GGML_AVX2": True}, "amd64") == ["native"]


def test_the_needs_of_an_image_have_the_instructions() -> None:
    text = rendered(REPOSITORY, "llama-cpp-b10018").text
    assert '"cpu sse4.2", "cpu avx", "cpu f16c", "cpu fma", "cpu bmi2", "cpu avx2"' in text
    assert '"cpu ' not in rendered(REPOSITORY, "vllm-0.20.2-wheel").text


def test_every_image_that_is_started_has_the_entrypoint() -> None:
    for name in load(REPOSITORY).engines:
        plan = rendered(REPOSITORY, name)
        words = [
            json.loads(rest)
            for keyword, rest in plan_module.instructions(plan.text)
            if keyword == "ENTRYPOINT"
        ]
        expected = layout.command(plan.recipe.image.entrypoint)
        assert words == ([expected] if plan.family.runs else []), name
        assert bool(plan.entrypoint) is plan.family.runs


def test_the_sources_of_the_entrypoint_decide_the_key(tmp_path: Path) -> None:
    for folder in ("recipes", "dockerfiles", "engines"):
        shutil.copytree(REPOSITORY / folder, tmp_path / folder)
    before = rendered(tmp_path, "hello-sm120-0.1.0").key
    source = tmp_path / "dockerfiles/entrypoint/verdict.c"
    source.write_text(source.read_text() + "// a comment\n")
    assert rendered(tmp_path, "hello-sm120-0.1.0").key != before


def test_an_engine_cannot_have_the_separator_among_its_words() -> None:
    recipe = hello_recipe()
    image = recipe.image.model_copy(update={"entrypoint": ["/x", "--", "y"]})
    found = [
        message for _, message in ENGINES["cmake"].check(recipe.model_copy(update={"image": image}))
    ]
    assert found == ["'--' cannot be one of its words"]


def test_a_catalog_without_the_base_that_compiles_the_entrypoint(tmp_path: Path) -> None:
    shutil.copytree(REPOSITORY / "recipes", tmp_path / "recipes")
    (tmp_path / "recipes/bases/debian-trixie-gcc.toml").unlink()
    with pytest.raises(RecipeError, match="needs the base debian-trixie-gcc") as raised:
        rendered(tmp_path, "vllm-0.20.2-wheel")
    assert "copy recipes/bases/debian-trixie-gcc.toml" in raised.value.hint
