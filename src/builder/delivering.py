"""The files of an artefact, taken out of its image."""

from __future__ import annotations

import os
import posixpath
from contextlib import suppress
from pathlib import Path
from uuid import uuid4

from builder.errors import RecipeError, WorldError
from builder.schema import Recipe
from builder.tools import containers


def need_artefact(recipe: Recipe, folder: Path) -> None:
    """Raise ``RecipeError`` for an engine, which is no file, ``WorldError`` where ``folder`` can be
    no directory."""
    if recipe.artefact is None:
        raise RecipeError(
            f"{recipe.name} is an engine: it is an image, and no file",
            hint="--output is for the family artefact; `docker image save` saves an image",
        )
    there = folder
    while not there.exists() and there != there.parent:
        there = there.parent
    if not there.is_dir() or not os.access(there, os.W_OK):
        raise WorldError(f"nothing can be written to {folder}", f"see {there}")


def deliver(recipe: Recipe, reference: str, folder: Path) -> list[Path]:
    """Write the files of a proved image to ``folder``, each whole or not at all.

    Raises ``WorldError`` where the directory does not take them.
    """
    assert recipe.artefact is not None
    delivered = []
    for path in recipe.artefact.files:
        file = folder / posixpath.basename(path)
        waiting = file.with_name(f".{file.name}.{uuid4().hex}")
        try:
            folder.mkdir(parents=True, exist_ok=True)
            containers.copy_out(reference, f"/{file.name}", waiting)
            waiting.replace(file)
        except OSError as error:
            raise WorldError(f"{file} cannot be written", error.strerror or str(error)) from error
        finally:
            with suppress(OSError):
                waiting.unlink(missing_ok=True)
        delivered.append(file)
    return delivered
