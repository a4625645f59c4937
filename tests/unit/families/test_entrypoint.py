"""What the entrypoint of an image is called with, and what it knows of the image."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from builder.errors import RecipeError
from builder.families import ENGINES, entrypoint
from builder.plan.dockerfile import instructions
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
    assert entrypoint.machine_code(recipe) == code


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
    found = list(entrypoint.needs(recipe, ["sm_120"], cuda))
    assert found == ["recipe hello-sm120-0.1.0", "code sm_120", *lines]


def test_every_image_that_is_started_has_the_entrypoint() -> None:
    for name in load(REPOSITORY).engines:
        plan = rendered(REPOSITORY, name)
        words = [
            json.loads(rest) for keyword, rest in instructions(plan.text) if keyword == "ENTRYPOINT"
        ]
        expected = entrypoint.command(plan.recipe.image.entrypoint)
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
