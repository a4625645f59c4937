"""The recipes and the presets of the repository, read once per process: nothing changes them."""

from __future__ import annotations

from builder.engines.families import load_catalog
from builder.presets import catalog
from support.environment import REPOSITORY

RECIPES = load_catalog(REPOSITORY)
PRESETS = catalog.load(RECIPES)
