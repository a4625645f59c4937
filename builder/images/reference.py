"""The name under which the image of a recipe is run: by digest, where that is known."""

from __future__ import annotations

from builder.families.layout import LABEL_RECIPE
from builder.plan.published_image import PATIENCE
from builder.platforms import platform_of
from builder.recipes.schema import Recipe
from builder.settings import Settings
from builder.tools.docker import engine as docker
from builder.tools.docker import imagetools


def tagged(recipe: Recipe, settings: Settings) -> str:
    """``NAMESPACE/REPOSITORY:TAG``: the recipe's image under the tag of its version."""
    return f"{settings.repository(recipe.image.repository)}:{recipe.image.tags[0]}"


def absent(recipe: Recipe, settings: Settings) -> tuple[str, str]:
    """What to say where neither the engine nor the registry has the image, and the next step."""
    hint = f"build it: `builder build {recipe.name}`"
    if not settings.namespace:
        hint += ", or set BUILDER_NAMESPACE to the account that publishes it"
    name = tagged(recipe, settings)
    return f"there is no image {name}, neither in Docker nor published", hint


def published(recipe: Recipe, settings: Settings) -> str | None:
    """The image with the digest that the registry serves; None where it serves none.

    Without a namespace nothing is asked: the name is then somebody else's image.
    """
    name = tagged(recipe, settings)
    digest = imagetools.digest(name, PATIENCE) if settings.namespace else None
    return f"{name}@{digest}" if digest else None


def in_engine(recipe: Recipe, settings: Settings) -> str | None:
    """The image with its digest in the engine; None where the engine does not have it.

    A recipe with several images: the one for the engine's machine if it is there.  By tag alone
    where the engine has the classic store, which keeps no digests of manifests.
    Raises ``WorldError`` where no engine answers.
    """
    engine, plain = docker.engine(), tagged(recipe, settings)
    own = platform_of(engine.architecture)
    wanted = own if own in recipe.platform else None  # None: any, which is emulated
    suffix = recipe.tag_suffix(wanted) if wanted is not None else ""
    for name in dict.fromkeys((plain + suffix, plain)):
        found = docker.image(name)
        if found is None or found.labels.get(LABEL_RECIPE) != recipe.name:
            continue
        if wanted in {None, found.platform}:
            return f"{name}@{found.digest}" if engine.containerd_store else name
    return None
