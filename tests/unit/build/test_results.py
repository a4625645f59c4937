"""Whether an image was reproduced, and whether only its compression differs."""

from __future__ import annotations

import pytest

from builder.build.compare import ReproducedImages, Reproduction, ReproductionState
from builder.image.compare import (
    Comparison,
    Difference,
    LayerDifference,
    LayerSide,
    LayerState,
    Values,
)

VALUE = (Difference("created", ("1",), ("2",)),)


def reproduction(*layers: LayerState, times: Values = ()) -> Reproduction:
    sides = [LayerSide(number, "sha256:1", 1, "COPY") for number in range(1, len(layers) + 1)]
    differences = [
        LayerDifference(side, side, state) for side, state in zip(sides, layers, strict=True)
    ]
    comparison = Comparison("a", "b", ("1", "2"), 0, (), times=times, layers=tuple(differences))
    return Reproduction("x", "x:1", "sha256:1", "sha256:2", comparison)


@pytest.mark.parametrize(
    ("found", "state", "packed"),
    [
        (Reproduction("x", "x:1", "sha256:1", "sha256:1"), "reproduced", []),
        (reproduction("equal", "compression", "compression"), "compression", [2, 3]),
        (reproduction("equal", "compression", times=VALUE), "different", [2]),
        (reproduction("equal", times=VALUE), "different", []),
        (reproduction("equal", "files"), "different", []),
        (reproduction("equal", "times"), "different", []),
        (reproduction("equal", "added"), "different", []),
    ],
)
def test_what_differs(found: Reproduction, state: ReproductionState, packed: list[int]) -> None:
    assert found.state == state
    assert found.packed == packed
    assert ReproducedImages("x", (found,), "default", ()).good is (state == "reproduced")
