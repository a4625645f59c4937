"""Names that are neither of a recipe nor of an image, and labels that name no recipe."""

from __future__ import annotations

from pathlib import Path

import pytest

from builder.build.lookup import Images
from builder.cli.session import build_session
from builder.core.errors import RecipeError
from builder.docker.engine import Image
from builder.engines.layout import LABEL_RECIPE
from support.commands import Builder
from support.environment import REPOSITORY

PRESET = "qwen3.6-35b-a3b-mtp@5090-laptop"


def image(labels: dict[str, str]) -> Image:
    found = frozenset[str]()
    return Image("farm:1", "sha256:0", "linux/amd64", found, found, 1, {"Labels": labels})


@pytest.mark.parametrize("command", ["smoke", "kernels"])
def test_a_preset_names_its_recipe(builder: Builder, command: str) -> None:
    done = builder(command, PRESET)
    assert done.returncode == 3
    assert f"{PRESET} is a preset, neither a recipe nor an image" in done.stderr
    assert "its recipe is llama-cpp-b9261" in done.stderr
    assert "-> name the recipe" in done.stderr


def test_a_preset_that_does_not_exist_is_named(builder: Builder) -> None:
    done = builder("smoke", "qwen3.6-35b-a3b-mtp@5090-laptob")
    assert f"no preset is named qwen3.6-35b-a3b-mtp@5090-laptob; did you mean {PRESET}?" in (
        done.stderr
    )


def test_a_preset_where_a_recipe_is_asked_for(builder: Builder) -> None:
    done = builder("recipe", "explain", PRESET)
    assert done.returncode == 3
    assert "MODEL@CARD is the name of a preset" in done.stderr
    assert f"`builder show {PRESET}` shows its recipe" in done.stderr


def test_an_image_of_another_catalog(catalog: Path) -> None:
    session = build_session(root=catalog)
    with pytest.raises(RecipeError) as error:
        Images(session).recipe_in_label("farm:1", image({LABEL_RECIPE: "theirs-1"}))
    assert f"its label {LABEL_RECIPE} names theirs-1; the catalog is {catalog}" in error.value.why
    assert "--catalog DIR" in error.value.hint


def test_an_image_of_this_catalog() -> None:
    session, own = build_session(root=REPOSITORY), "hello-sm120-0.1.0"
    assert Images(session).recipe_in_label("farm:1", image({LABEL_RECIPE: own})) == own


def test_an_image_without_a_recipe(catalog: Path) -> None:
    with pytest.raises(RecipeError, match="the image farm:1 names no recipe"):
        Images(build_session(root=catalog)).recipe_in_label("farm:1", image({}))
