"""The recipe that an image was built from: the catalog's, or the one attached to the image."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

from builder.build.lookup import REFERENCE, Images, recipe_label
from builder.build.session import BuildSession
from builder.core.errors import FetchError, RecipeError, RegistryError, UsageError
from builder.docker import engine as docker
from builder.engines.families import load_catalog
from builder.engines.layout import LABEL_KEY
from builder.plan.plan import Plan
from builder.publish.attachments import RECIPE, attached, recipe_texts
from builder.publish.registry import Repository
from builder.publish.tags import open_repository
from builder.recipes import edit
from builder.recipes.catalog import Catalog


def image_of(session: BuildSession, target: str, found: docker.Image, work: Path) -> Plan:
    """The plan with the key of an image that Docker has by the name ``target``.

    From the catalog's recipe; else from the recipe that is attached to the image in its registry,
    such as the recipe of a nightly run.  ``work`` is a directory for a catalog that contains it.

    Raises ``RecipeError`` where the image names no recipe, neither recipe has its key, or it was
    compiled on another platform than this build would be.
    """
    recipe, key = recipe_label(target, found), found.labels.get(LABEL_KEY, "")
    image, why = _planned(session, recipe, key, target)
    if image is not None:
        return image
    session.log(f"{why}; looking for the recipe that is attached to {target}")
    try:
        catalog = _with_attached_recipe(session, target, work / "catalog")
    except (FetchError, RegistryError, UsageError) as error:
        why += f"\nthe recipe attached to the image cannot be read: {error.what}"
    else:
        image, again = _planned(replace(session, catalog=catalog), recipe, key, target)
        if image is not None:
            return image
        why += f"\nwith the recipe attached to the image: {again}"
    raise RecipeError(
        f"{target} was not built from the recipe {recipe} as it is now",
        why,
        "check out builder and the catalog as they were when the image was built; "
        "--catalog DIR names another catalog",
    )


def _planned(session: BuildSession, recipe: str, key: str, target: str) -> tuple[Plan | None, str]:
    """The image of a recipe that has this key, or why there is none."""
    try:
        plans = session.plans(recipe)
    except RecipeError as error:
        return None, error.what
    same = next((plan for plan in plans if plan.key == key), None)
    if same is not None:
        return same, ""
    for plan in plans:
        if (other := Images(session).compiled_on(plan, key)) is not None:
            build = plan.platforms.build
            raise RecipeError(
                f"{target} was compiled on linux/{other}, and this build would be on linux/{build}",
                "the platform that compiles is part of the key of an image",
                f"set BUILDER_COMPILE_ON={other}, or name a builder of that platform: --builder",
            )
    keys = " and ".join(each.short_key for each in plans)
    found = key[:12] or "absent"
    return None, f"the key of the image is {found}, the key of the recipe {recipe} is {keys}"


def _with_attached_recipe(session: BuildSession, target: str, folder: Path) -> Catalog:
    """The catalog with the recipe, the bases and the locks that are attached to an image.

    Raises ``RegistryError``, ``FetchError``, ``UsageError``.
    """
    if session.offline:
        raise FetchError("nothing is fetched (--offline)")
    repository, reference = place_of(session, target)
    texts = recipe_texts(attached(repository, reference, RECIPE))
    root = session.catalog.root
    folder.mkdir()
    for each in root.iterdir():
        if each.name != "recipes":
            (folder / each.name).symlink_to(each.resolve())
    shutil.copytree(root / "recipes", folder / "recipes")
    for name, text in texts.items():
        edit.write(folder / "recipes" / name, text)
    return load_catalog(folder)


def place_of(session: BuildSession, target: str) -> tuple[Repository, str]:
    """The repository of an image, and its tag or digest there.

    ``target`` is a recipe, or the name of an image.  Raises ``UsageError`` where an image of a
    registry cannot have that name.
    """
    if Images(session).is_recipe(target):
        plan = session.resolve(target)
        return open_repository(plan.repository, session.log), plan.immutable_tag
    name, _, digest = target.partition("@")
    repository, colon, tag = name.rpartition(":")
    if REFERENCE.fullmatch(target) and (digest or (colon and "/" not in tag)):
        place = repository if colon and "/" not in tag else name
        return open_repository(place, session.log), digest or tag
    raise UsageError(
        f"{target} is no image of a registry: nothing is attached to it",
        hint="name a recipe, or an image: REGISTRY/REPOSITORY:TAG",
    )
