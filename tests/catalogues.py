"""Catalogues for tests that need no engine."""

from __future__ import annotations

from pathlib import Path

from builder import catalogue, families
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


def rendered(root: Path, name: str, platforms: Platforms = AMD64) -> Rendered:
    """The Dockerfile of a recipe of a catalogue."""
    found = load(root)
    return render(plan(found, found.engine(name), platforms, mmdebstrap(found)))
