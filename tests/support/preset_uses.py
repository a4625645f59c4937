"""Trials of presets, as a smoke test records them."""

from __future__ import annotations

from collections.abc import Mapping

from builder.presets.schema import ContextUse, PresetUse


def use_of(
    peak: int,
    *,
    context: int = 131072,
    own: int = 0,
    identity: str = "",
    kinds: Mapping[str, int] | None = None,
    smaller: ContextUse | None = None,
) -> PresetUse:
    """A trial on an RTX 5090 Laptop."""
    return PresetUse(
        identity=identity,
        context=context,
        card="NVIDIA GeForce RTX 5090 Laptop GPU",
        cards=1,
        memory=25 << 30,
        peak=peak,
        own=own,
        by_kind=kinds or {},
        smaller=smaller,
    )
