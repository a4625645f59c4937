"""The image that an image extends, as the engine has it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from builder.errors import WorldError
from builder.plan.plan import Plan
from builder.tools.docker import engine as docker


@dataclass(frozen=True, slots=True)
class ExtendedImage:
    """The image that an image extends: its number of layers, and its configuration."""

    layers: int
    config: Mapping[str, Any]


def extended_image(plan: Plan, base: docker.Image | None = None) -> ExtendedImage | None:
    """The image of the engine that an image extends; None where it extends none.

    The engine is asked for it where ``base`` is None.  Raises ``WorldError`` where it does not have
    it.
    """
    if not plan.family.extends_base:
        return None
    name = plan.base.references["runtime"]
    found = base or docker.image(name)
    if found is None:
        raise WorldError(
            f"Docker does not have the base of {plan.name}",
            f"looked for {name}",
            f"build it: `builder build {plan.name}`",
        )
    return ExtendedImage(found.layers, found.config)
