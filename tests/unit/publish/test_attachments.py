"""The recipe that is attached to an image in a real registry, written back by `recipe export`."""

from __future__ import annotations

from pathlib import Path

import pytest

from builder.errors import RegistryError
from builder.publish.attachments import RECIPE, recipe_texts
from builder.publish.referrers import File, attach
from builder.tools.registry.client import Repository
from support.catalogs import load
from support.commands import Builder
from support.environment import REPOSITORY
from support.registries import put_image

NAME = "lucebox-f12a87c"


@pytest.mark.usefixtures("docker_config")
def test_a_recipe_comes_back_with_its_locks(
    builder: Builder, registry: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BUILDER_NAMESPACE", f"{registry}/me")
    entry = load(REPOSITORY).engine(NAME)
    repository = Repository(f"{registry}/me/{entry.recipe.image.repository}", print)
    image = put_image(repository, NAME, "1")
    files = [File(name, RECIPE, text.encode()) for name, text in entry.texts().items()]
    attach(repository, image, RECIPE, {}, files)
    done = builder("recipe", "export", NAME, "1", "--output", tmp_path / "recipes")
    assert done.returncode == 0, done.stderr
    written = {
        str(file.relative_to(tmp_path / "recipes")): file.read_text()
        for file in (tmp_path / "recipes").rglob("*.toml")
    }
    assert written == {
        name: (REPOSITORY / "recipes" / name).read_text()
        for name in (f"{NAME}.toml", f"locks/{NAME}.toml", f"locks/{NAME}.debian.toml")
    }


@pytest.mark.parametrize(
    "name", ["../x.toml", "/x.toml", "locks/../x.toml", ".git/x.toml", "x.py", "a//x.toml"]
)
def test_a_path_that_is_not_below_the_recipes_is_refused(name: str) -> None:
    with pytest.raises(RegistryError, match="has a file with the path"):
        recipe_texts([File(name, RECIPE, b"x = 1\n")])
