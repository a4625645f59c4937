"""What is refused before any server starts."""

from __future__ import annotations

import pytest

from builder.errors import RecipeError
from builder.fit.run import require_one_capability
from builder.simulator import cards
from support.environment import REPOSITORY


def test_cards_that_take_different_code_are_refused() -> None:
    new, other, old = (cards.load(REPOSITORY, name) for name in ("5090", "5080", "3090"))
    require_one_capability([new, other])
    with pytest.raises(RecipeError, match="different compute capabilities") as caught:
        require_one_capability([new, old])
    assert caught.value.why == "NVIDIA GeForce RTX 5090: 12.0, NVIDIA GeForce RTX 3090: 8.6"
