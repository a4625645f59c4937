"""Catalogs for tests that need no engine."""

from __future__ import annotations

from pathlib import Path

from builder import families
from builder.plan import base_image
from builder.plan.dockerfile import Rendered, render
from builder.plan.inputs import RootChoice
from builder.plan.resolve import bootstrapped_root, plan
from builder.platforms import Platforms
from builder.recipes import catalog
from builder.recipes.catalog import Catalog

AMD64 = Platforms("amd64")


def load(root: Path) -> Catalog:
    """Load a catalog with all families."""
    engines = {name: family.check for name, family in families.ENGINES.items()}
    bases = {name: family.check for name, family in families.BASES.items()}
    return catalog.load(root, engines, bases)


def mmdebstrap(found: Catalog) -> RootChoice:
    """The root that needs no registry."""
    recipe = found.base("debian-trixie").recipe
    assert recipe is not None
    return bootstrapped_root(recipe)


def unasked(found: Catalog, base: str, platforms: Platforms = AMD64) -> RootChoice:
    """What a base stands on, as far as that is known without asking anybody."""
    return base_image.choose(found, base, platforms, "mmdebstrap", print, ask=False)


def rendered(root: Path, name: str, platforms: Platforms = AMD64) -> Rendered:
    """The Dockerfile of a recipe of a catalog."""
    found = load(root)
    entry = found.engine(name)
    assert entry.recipe is not None
    return render(plan(found, entry, platforms, unasked(found, entry.recipe.base, platforms)))
