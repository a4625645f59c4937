"""Recipes of hello-sm120 with names of their own, and images of them that nobody compiles."""

from __future__ import annotations

from pathlib import Path

from builder.engines.layout import LABEL_KEY, LABEL_RECIPE
from builder.plan.resolver import Resolver
from support.catalogs import load
from support.environment import REPOSITORY
from support.smoke_tests import docker

VERSION = "0.1.0-of-the-test"
RUNS = "builder-hello-sm120-0-1-0-of-the-test"
"""The container of the recipe below: somebody may run the farm's own."""


def recipe_of(catalog: Path, repository: str) -> str:
    """Write a recipe of hello-sm120 with names of its own; its name."""
    recipe = (REPOSITORY / "recipes" / "hello-sm120-0.1.0.toml").read_text()
    for old, new in (
        ('repository = "hello-sm120"', f'repository = "{repository}"'),
        ('version = "0.1.0"', f'version = "{VERSION}"'),
    ):
        assert old in recipe
        recipe = recipe.replace(old, new)
    name = f"hello-sm120-{VERSION}"
    (catalog / "recipes" / f"{name}.toml").write_text(recipe)
    for folder in ("engines", "cards"):
        if not (catalog / folder).exists():
            (catalog / folder).symlink_to(REPOSITORY / folder)
    return name


def key_of(catalog: Path, name: str) -> str:
    """The build key of a recipe's image by mmdebstrap's root."""
    return Resolver(load(catalog), "amd64", "mmdebstrap").resolve(name).key


def image_of(start: str, reference: str, recipe: str, key: str) -> str:
    """An image of the engine with a server, and the labels of a recipe's image; its digest."""
    labels = {LABEL_RECIPE: recipe, LABEL_KEY: key, "org.opencontainers.image.version": VERSION}
    words = " ".join(f'{name}="{value}"' for name, value in labels.items())
    output = f"--output=type=image,name={reference}"
    docker(
        "buildx", "build", "--provenance=false", output, "-", text=f"FROM {start}\nLABEL {words}\n"
    )
    return docker("image", "inspect", "--format={{.Id}}", reference).strip()
