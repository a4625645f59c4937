"""Check: the image keeps its size budget, and no layer carries files that a later one hides."""

from __future__ import annotations

from collections.abc import Iterator

from builder.smoke.context import Context
from builder.smoke.verdict import Check

MOST_HIDDEN = 16  # MB of a layer that later layers may remove or replace
MB = 1_000_000


def check(context: Context) -> Iterator[Check]:
    """The sizes of each added layer."""
    added = context.added.layers
    for number, layer in enumerate(added, len(context.contents.layers) - len(added) + 1):
        found = (
            f"{layer.size / MB:.1f} MB stored, {layer.unpacked / MB:.1f} MB unpacked, "
            f"{layer.hidden / MB:.1f} MB of it hidden: {layer.created_by[:120] or 'unknown'}"
        )
        limit = f"at most {MOST_HIDDEN} MB that later layers remove or replace"
        few = layer.hidden <= MOST_HIDDEN * MB
        yield Check.of("layers", f"layer {number}", limit, found, few)


def check_budget(context: Context) -> Iterator[Check]:
    """The limits of the image."""
    budget, contents = context.recipe.budget, context.contents
    limits = (
        ("to download", budget.download, contents.download_size),
        ("unpacked", budget.unpacked, contents.unpacked_size),
    )
    for what, most, size in limits:
        if most is not None:
            found = f"{size / MB:.1f} MB"
            yield Check.of("budget", what, f"at most {most} MB", found, size <= most * MB)
