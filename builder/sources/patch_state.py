"""The states of a patch on a tree."""

from __future__ import annotations

from enum import StrEnum


class PatchState(StrEnum):
    """The state of a patch on a tree, from the best to the worst."""

    APPLIES = "applies"
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
    PatchState.APPLIES: "applies exactly",
    PatchState.UPSTREAM: "upstream contains the change",
    PatchState.ABSENT: "the files that it changes do not exist",
    PatchState.DOUBTFUL: "it applies, but perhaps at a wrong place or a second time",
    PatchState.CONFLICTS: "the lines that it expects have changed",
    PatchState.BROKEN: "not a patch, without effect, or its commits are gone",
    PatchState.UNTRIED: "its script needs Docker with the recipe's base",
}
