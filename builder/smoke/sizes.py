"""Check: the image keeps its size budget, and no layer carries files that a later one hides."""

from __future__ import annotations

from collections.abc import Iterator

from builder.recipes.schema import Budget
from builder.smoke.contents import Contents
from builder.smoke.verdict import Check

MOST_HIDDEN = 16  # MB of a layer that later layers may remove or replace
MB = 1_000_000


def check(added: Contents, contents: Contents, budget: Budget) -> Iterator[Check]:
    """The sizes of each added layer, then the limits of the image."""
    below = len(contents.layers) - len(added.layers)
    for number, layer in enumerate(added.layers, below + 1):
        found = (
            f"{layer.size / MB:.1f} MB stored, {layer.unpacked / MB:.1f} MB unpacked, "
            f"{layer.hidden / MB:.1f} MB of it hidden: {layer.created_by[:120] or 'unknown'}"
        )
        limit = f"at most {MOST_HIDDEN} MB that later layers remove or replace"
        yield Check("layers", f"layer {number}", limit, found, layer.hidden <= MOST_HIDDEN * MB)
    limits = (
        ("to download", budget.download, contents.download_size),
        ("unpacked", budget.unpacked, contents.unpacked_size),
    )
    for what, most, size in limits:
        if most is not None:
            found = f"{size / MB:.1f} MB"
            yield Check("budget", what, f"at most {most} MB", found, size <= most * MB)
