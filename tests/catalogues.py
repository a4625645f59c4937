"""Catalogues for tests that need no engine."""

from __future__ import annotations

from pathlib import Path

from builder import catalogue, families, roots
from builder.catalogue import Catalogue
from builder.dockerfile import Rendered, render
from builder.plan import RootChoice, bootstrapped_root, plan
from builder.platforms import Platforms

AMD64 = Platforms("amd64")


def load(root: Path) -> Catalogue:
    """Load a catalogue with all families."""
    engines = {name: family.check for name, family in families.ENGINES.items()}
    bases = {name: family.check for name, family in families.BASES.items()}
    return catalogue.load(root, engines, bases)


def mmdebstrap(found: Catalogue) -> RootChoice:
    """The root that needs no registry."""
    recipe = found.base("debian-trixie").recipe
    assert recipe is not None
    return bootstrapped_root(recipe)


def unasked(found: Catalogue, base: str, platforms: Platforms = AMD64) -> RootChoice:
    """What a base stands on, as far as that is known without asking anybody."""
    return roots.choose(found, base, platforms, "mmdebstrap", print, ask=False)


def rendered(root: Path, name: str, platforms: Platforms = AMD64) -> Rendered:
    """The Dockerfile of a recipe of a catalogue."""
    found = load(root)
    entry = found.engine(name)
    assert entry.recipe is not None
    return render(plan(found, entry, platforms, unasked(found, entry.recipe.base, platforms)))
