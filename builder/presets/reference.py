"""The reference page of all keys of a preset."""

from __future__ import annotations

from builder.presets.schema import Preset
from builder.recipes.schema.reference import keys_of

HEAD = """\
# Preset keys

All keys of a preset. `builder recipe schema --preset --markdown` writes this page from the same
descriptions that editors show. See [Presets](presets.md) for how to write one.
"""


def reference() -> str:
    """The page, in Markdown."""
    return "\n".join([HEAD, "## Presets\n", keys_of(Preset)])
