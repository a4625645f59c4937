"""Which Debian root the bases stand on: a registry's image, or one that mmdebstrap makes."""

from __future__ import annotations

from collections.abc import Callable

from builder.errors import FetchError, RecipeError
from builder.plan import published_image
from builder.plan.dockerfile import Rendered, render
from builder.plan.inputs import RegistryRoot, RootChoice
from builder.plan.resolve import bootstrapped_root, plan_base
from builder.platforms import Platforms
from builder.recipes.catalog import Catalog
from builder.recipes.schema import BaseRecipe, Root
from builder.tools.docker import engine as docker


def image_of(rendered: Rendered, stage: str) -> str:
    """The name that a base's stage has in the engine: its key is part of it."""
    return f"builder-base/{rendered.plan.name}:{stage}-{rendered.short_key}"


def in_engine(rendered: Rendered, stage: str) -> bool:
    """Whether the engine has that stage of the base, whole."""
    found = docker.image(image_of(rendered, stage))
    return found is not None and found.labels.get("builder.key") == rendered.key


def root_recipe(catalog: Catalog, base: str) -> BaseRecipe:
    """The recipe of the Debian root, or of the published image, below ``base``.

    Raises ``RecipeError`` where there is none.
    """
    for name in catalog.chain(base):
        recipe = catalog.base(name).recipe
        if recipe is not None and (recipe.root is not None or recipe.published is not None):
            return recipe
    raise RecipeError(f"the base {base} stands on no Debian root and on no published image")


def choose(
    catalog: Catalog,
    base: str,
    platforms: Platforms,
    way: str,
    log: Callable[[str], None],
    *,
    ask: bool = True,
    offline: bool = False,
) -> RootChoice:
    """Decide on the root; ``way`` is the setting ``debian_root``.

    Without ``ask`` neither engine nor registry is asked: the pinned image, else mmdebstrap.
    ``offline`` asks no registry.

    "auto" keeps to the root that the engine already has, so that a registry that comes or goes
    does not make every engine anew; else it tries the registry, then mmdebstrap.  Raises
    ``FetchError`` when "registry" is asked for and does not answer.
    """
    recipe = root_recipe(catalog, base)
    if recipe.published is not None:
        return published_image.choose(recipe.published, log, ask=ask, offline=offline)
    return _debian(catalog, recipe, platforms, way, log, ask=ask, offline=offline)


def _debian(
    catalog: Catalog,
    recipe: BaseRecipe,
    platforms: Platforms,
    way: str,
    log: Callable[[str], None],
    *,
    ask: bool,
    offline: bool,
) -> RootChoice:
    root = recipe.root
    assert root is not None
    bootstrapped = bootstrapped_root(recipe)
    pinned = RegistryRoot(root.image, root.digest) if root.digest else None
    if way == "mmdebstrap":
        return bootstrapped
    if not ask:
        return pinned or bootstrapped
    if way == "auto":
        for choice in (pinned, bootstrapped):
            if choice is not None:
                plan = plan_base(catalog, recipe.name, platforms, choice)
                if in_engine(render(plan), "root"):
                    return choice
    found = pinned if offline else _from_registry(root, log)
    if found is not None:
        return found
    if offline:
        return bootstrapped
    if way == "registry":
        raise FetchError(
            f"no registry answers for {root.image}",
            hint='set debian_root = "mmdebstrap" (BUILDER_DEBIAN_ROOT) to do without',
        )
    log(f"no registry answers for {root.image}: the Debian root comes from mmdebstrap")
    return bootstrapped


def _from_registry(root: Root, log: Callable[[str], None]) -> RegistryRoot | None:
    reference = f"{root.image}@{root.digest}" if root.digest else root.image
    digest = docker.registry_digest(reference, published_image.PATIENCE)
    if digest is None:
        return None
    if root.digest is None:
        log(f"{root.image} is not pinned: today it is {digest}")
    return RegistryRoot(root.image, root.digest or digest)
