"""The states of a patch on a tree."""

from __future__ import annotations

from enum import StrEnum


class State(StrEnum):
    """The state of a patch on a tree, from the best to the worst."""

    APPLIES = "applies"
    INEXACT = "inexact"
    UPSTREAM = "upstream"
    ABSENT = "absent"
    DOUBTFUL = "doubtful"
    CONFLICTS = "conflicts"
    BROKEN = "broken"
    UNTRIED = "untried"

    @property
    def meaning(self) -> str:
        """The state in a sentence."""
        return MEANINGS[self]


MEANINGS = {
    State.APPLIES: "applies exactly",
    State.INEXACT: "applies with less context or by a merge, as the recipe allows",
    State.UPSTREAM: "upstream contains the change",
    State.ABSENT: "the files that it changes do not exist",
    State.DOUBTFUL: "it applies, but perhaps at a wrong place or a second time",
    State.CONFLICTS: "the lines that it expects have changed",
    State.BROKEN: "not a patch, without effect, or its commits are gone",
    State.UNTRIED: "its script needs Docker with the recipe's base",
}
FITS = frozenset({State.APPLIES, State.INEXACT})
