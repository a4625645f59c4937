"""The plans of a recipe, also for a command that builds nothing."""

from __future__ import annotations

from builder.images.way import compiles_on
from builder.plan.plan import Plan
from builder.plan.resolver import Resolver, RootPolicy
from builder.platforms import Platform
from builder.recipes.catalog import Catalog
from builder.settings import Settings
from builder.tools.log import Log


def resolver(
    catalog: Catalog,
    settings: Settings,
    log: Log,
    build_architecture: str | None = None,
    *,
    offline: bool = False,
) -> Resolver:
    """A resolver; with ``build_architecture`` it asks neither engine nor registry."""
    ask = build_architecture is None
    policy = RootPolicy(settings.debian_root, log, ask=ask, offline=offline)
    return Resolver(catalog, compiles_on(settings, build_architecture), policy, settings.namespace)


def plans(found: Resolver, name: str, platform: Platform | None) -> tuple[Plan, ...]:
    """The plans of a recipe's images, in the recipe's order; of one, where a platform is named.

    Raises ``RecipeError``, ``WorldError`` or ``FetchError``.
    """
    return found.plans(name) if platform is None else (found.resolve(name, platform),)
