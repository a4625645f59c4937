"""What a reproduction finds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from builder.compare.results import Comparison

State = Literal["reproduced", "compression", "different"]


@dataclass(frozen=True, slots=True)
class Reproduction:
    """An image that was built again."""

    name: str
    """Of the recipe; of a base with the stage: "cuda-13.0 runtime"."""
    reference: str
    """The image that it was compared with."""
    expected: str
    """Its digest."""
    found: str
    """The digest of the build."""
    comparison: Comparison | None = None
    """What differs, where the digests do."""

    @property
    def state(self) -> State:
        """``reproduced``: the same digest; ``compression``: the same layers and configuration, but
        packed by another version of a compressor."""
        if self.comparison is None:
            return "reproduced"
        same = all(layer.state in {"equal", "compression"} for layer in self.comparison.layers)
        if same and not self.comparison.config and not self.comparison.times:
            return "compression"
        return "different"

    @property
    def packed(self) -> list[int]:
        """The numbers of the layers of which only the compression differs, from 1."""
        layers = self.comparison.layers if self.comparison else ()
        packed = [each.before for each in layers if each.state == "compression"]
        return [side.number for side in packed if side is not None]


@dataclass(frozen=True, slots=True)
class Result:
    """The images of a command that were built again."""

    target: str
    reproductions: tuple[Reproduction, ...]
    builder: str
    """The buildx builder that built them."""
    taken: tuple[str, ...]
    """The images that were taken as they are, with digests: bases of an engine, published ones."""

    @property
    def good(self) -> bool:
        """Whether all have the same digest."""
        return all(each.state == "reproduced" for each in self.reproductions)
