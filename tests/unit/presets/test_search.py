"""What is refused before any server starts."""

from __future__ import annotations

import pytest

from builder.core.errors import RecipeError
from builder.presets import cards
from builder.presets.fit import require_code, require_one_capability
from support.environment import REPOSITORY
from support.shipped import RECIPES


def test_cards_that_take_different_code_are_refused() -> None:
    new, other, old = (cards.load(REPOSITORY, name) for name in ("5090", "5080", "3090"))
    require_one_capability([new, other])
    with pytest.raises(RecipeError, match="different compute capabilities") as caught:
        require_one_capability([new, old])
    assert caught.value.why == "NVIDIA GeForce RTX 5090: 12.0, NVIDIA GeForce RTX 3090: 8.6"


def test_a_card_that_is_older_than_all_code_of_a_recipe_is_refused() -> None:
    new, old = (cards.load(REPOSITORY, name) for name in ("5090", "3090"))
    recipe = RECIPES.engine("llama-cpp-b9261").recipe
    require_code([new], recipe)
    with pytest.raises(RecipeError, match="RTX 3090 does not run the code of llama-cpp-b9261"):
        require_code([new, old], recipe)
    both = recipe.model_copy(
        update={"cuda": recipe.cuda.model_copy(update={"arch": ["120a", "86-real"]})}
    )
    require_code([new, old], both)
