"""Where the farm's own files are: recipes/, dockerfiles/, shapes/, patches/ and the like.

A checkout has them at its top.  A wheel carries them in ``builder/_data`` (``force-include`` in
pyproject.toml).
"""

from __future__ import annotations

from pathlib import Path

from builder.core.errors import RecipeError

PACKAGE = Path(__file__).resolve().parents[1]


def installed() -> Path:
    """The farm that builder was installed with: the wheel's, else the checkout beside it."""
    carried = PACKAGE / "_data"
    return carried if carried.is_dir() else PACKAGE.parent


def farm_root(named: Path | None = None) -> Path:
    """The directory that holds ``recipes/bases``.

    ``named`` wins; else the nearest one from the working directory upwards; else the installed
    farm.  Raises ``RecipeError`` where there is none.
    """
    if named is not None:
        return named.resolve()
    here = Path.cwd()
    for folder in (here, *here.parents, installed()):
        if (folder / "recipes" / "bases").is_dir():
            return folder
    raise no_recipes(f"neither {here} nor a directory above it")


def no_recipes(where: str) -> RecipeError:
    """The error where a directory has no recipes."""
    return RecipeError(
        f"{where} has no recipes/ directory",
        hint="change into a checkout of the farm, or name one with --catalog DIR",
    )


def folder(root: Path, name: str) -> Path:
    """A directory of the farm at ``root``: "dockerfiles", "cards"; the installed one where the
    farm, which may be a catalog of recipes alone, has none."""
    own = root / name
    return own if own.is_dir() else installed() / name
