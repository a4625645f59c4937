"""What a family reads of a source tree, to write a recipe for it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from builder.recipes.draft import DraftTable


class ReadableTree(Protocol):
    """A commit of a repository."""

    @property
    def paths(self) -> frozenset[str]:
        """The paths of all files."""

    def texts(self, paths: Iterable[str]) -> Mapping[str, str]:
        """The texts of files, without those that are absent.  Raises ``FetchError``."""

    def commits(self) -> int:
        """The number of commits in its history.  Raises ``FetchError``."""


@dataclass(frozen=True, slots=True)
class Draft:
    """What a family knows to write about a tree."""

    base: str
    tables: Mapping[str, Sequence[DraftTable]]
    """By name: "cuda", "cmake", "probe" and so on."""
    options: frozenset[str] = frozenset()
    """Options that ``--help`` of the engine will list; more may be there."""
