"""The files of an artifact, taken out of its image."""

from __future__ import annotations

from pathlib import Path

from builder.errors import RecipeError, WorldError
from builder.recipes.schema import Recipe
from builder.tools.docker import containers
from builder.tools.files import atomic_write, require_writable


def require_artifact(recipe: Recipe, folder: Path) -> None:
    """Raise ``RecipeError`` for an engine, which is no file, ``WorldError`` where ``folder`` can be
    no directory."""
    if recipe.artifact is None:
        raise RecipeError(
            f"{recipe.name} has no files that --output could write",
            "it is an engine, whose result is an image; --output is for the family artifact",
            "leave --output away; `docker image save` writes an image to a file",
        )
    require_writable(folder)


def deliver(recipe: Recipe, reference: str, folder: Path) -> list[Path]:
    """Write the files of a verified image to ``folder``, each atomically.

    Raises ``WorldError`` where the directory does not take them.
    """
    assert recipe.artifact is not None
    delivered = []
    for name in recipe.artifact.names:
        file = folder / name
        try:
            with atomic_write(file) as waiting:
                containers.copy_out(reference, f"/{name}", waiting)
        except OSError as error:
            raise WorldError(f"{file} cannot be written", error.strerror or str(error)) from error
        delivered.append(file)
    return delivered
