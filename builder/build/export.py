"""The files of an artifact, taken out of its image."""

from __future__ import annotations

from pathlib import Path

from builder.core.errors import RecipeError, WorldError
from builder.core.files import atomic_write, require_writable
from builder.docker import copies
from builder.recipes.schema import Artifact, Recipe


def require_artifact(recipe: Recipe, folder: Path) -> Artifact:
    """The artifact of a recipe, whose files are to be written to ``folder``.

    Raises ``RecipeError`` for an engine, ``WorldError`` where the directory cannot be written to.
    """
    if recipe.artifact is None:
        raise RecipeError(
            f"{recipe.name} has no files that --output could write",
            "it is an engine, whose result is an image; --output is for the family artifact",
            "leave --output away; `docker image save` writes an image to a file",
        )
    require_writable(folder)
    return recipe.artifact


def deliver(artifact: Artifact, reference: str, folder: Path) -> list[Path]:
    """Write the files of a verified image to ``folder``, each atomically.

    Raises ``WorldError`` where the directory does not take them.
    """
    delivered = []
    for name in artifact.names:
        file = folder / name
        try:
            with atomic_write(file) as waiting:
                copies.copy_out(reference, f"/{name}", waiting)
        except OSError as error:
            raise WorldError(f"{file} cannot be written", error.strerror or str(error)) from error
        delivered.append(file)
    return delivered
