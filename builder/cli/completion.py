"""Completion in a shell: names of the catalog.

They come from the names of files; of presets, only the model's name is read. A key press does not
wait for files to be checked.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Iterable
from pathlib import Path

import typer

from builder.core.errors import RecipeError
from builder.core.farm import farm_root


def recipes(ctx: typer.Context, incomplete: str) -> list[str]:
    """Recipes."""
    return _completed(ctx, incomplete, lambda root: _stems(root / "recipes"))


def presets_and_recipes(ctx: typer.Context, incomplete: str) -> list[str]:
    """Short names of presets, presets, then recipes."""
    return _completed(
        ctx,
        incomplete,
        lambda root: [
            *_short_names(root / "presets"),
            *_stems(root / "presets"),
            *_stems(root / "recipes"),
        ],
    )


def known_cards(ctx: typer.Context, incomplete: str) -> list[str]:
    """Cards that have a file."""
    from builder.presets import cards  # slow to import: its models are pydantic's

    return _completed(ctx, incomplete, cards.names)


def tags(ctx: typer.Context, incomplete: str) -> list[str]:
    """The tags of the recipe that stands before."""

    def of_recipe(root: Path) -> list[str]:
        text = (root / "recipes" / f"{ctx.params['recipe']}.toml").read_text("utf-8")
        return [str(tag) for tag in tomllib.loads(text)["image"]["tags"]]

    return _completed(ctx, incomplete, of_recipe)


def _completed(
    ctx: typer.Context, incomplete: str, names: Callable[[Path], Iterable[str]]
) -> list[str]:
    try:
        found = names(farm_root(ctx.params.get("catalog")))
    except (RecipeError, OSError, ValueError, LookupError):
        return []  # a shell that completes shows no errors
    return [name for name in found if name.startswith(incomplete)]


def _short_names(folder: Path) -> list[str]:
    from builder.presets import short_names

    texts = {file.stem: file.read_text("utf-8") for file in folder.glob("*.toml")}
    models = {name: tomllib.loads(text)["model"]["name"] for name, text in texts.items()}
    return short_names.all_names(models)


def _stems(folder: Path) -> list[str]:
    return sorted(file.stem for file in folder.glob("*.toml"))
