"""The name under which the image of a recipe is run: by digest, where that is known."""

from __future__ import annotations

from builder.families.layout import LABEL_RECIPE
from builder.plan.published_image import PATIENCE
from builder.recipes.schema import Recipe
from builder.settings import Settings
from builder.tools.docker import engine as docker
from builder.tools.docker import imagetools


def tagged(recipe: Recipe, settings: Settings) -> str:
    """``NAMESPACE/REPOSITORY:TAG``: the recipe's image under the tag of its version."""
    return f"{settings.repository(recipe.image.repository)}:{recipe.image.tags[0]}"


def published(recipe: Recipe, settings: Settings) -> str | None:
    """The image with the digest that the registry serves; None where it serves none.

    Without a namespace nothing is asked: the name is then that of somebody else's image.
    """
    name = tagged(recipe, settings)
    digest = imagetools.digest(name, PATIENCE) if settings.namespace else None
    return f"{name}@{digest}" if digest else None


def in_engine(recipe: Recipe, settings: Settings) -> str | None:
    """The image with its digest in the engine; None where the engine does not have it.

    By tag alone where the engine has the classic store, which keeps no digests of manifests.
    Raises ``WorldError`` where no engine answers.
    """
    name = tagged(recipe, settings)
    found = docker.image(name)
    if found is None or found.labels.get(LABEL_RECIPE) != recipe.name:
        return None
    return f"{name}@{found.digest}" if docker.engine().containerd_store else name
