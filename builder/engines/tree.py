"""A source tree as a family reads it, to write a recipe."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from builder.recipes.draft import DraftTable


def is_lfs_pointer(text: str) -> bool:
    """Whether a file is a pointer of Git LFS, whose content is on another server.

    Format: ``docs/spec.md`` of git-lfs, "The Pointer"; versions before 1.0 had the first URL.
    """
    return text.startswith(
        ("version https://git-lfs.github.com/spec/", "version https://hawser.github.com/spec/")
    )


class ReadableTree(Protocol):
    """A commit of a repository."""

    @property
    def name(self) -> str:
        """The tag or the branch that names it, else the commit."""

    @property
    def paths(self) -> frozenset[str]:
        """The paths of all files."""

    def texts(self, paths: Iterable[str]) -> Mapping[str, str]:
        """The texts of the files that exist.  Raises ``FetchError``."""

    def commits(self) -> int:
        """The number of commits in its history.  Raises ``FetchError``."""


@dataclass(frozen=True, slots=True)
class Draft:
    """The parts of a recipe that a family reads from a tree."""

    base: str
    tables: Mapping[str, Sequence[DraftTable]]
    """By name: "cuda", "cmake", "probe" and so on."""
    options: frozenset[str] = frozenset()
    """Options that ``--help`` of the engine will list; more may be there."""

    @property
    def values(self) -> Mapping[str, Sequence[str]]:
        """The values of the options that it probes, as far as the tree shows them."""
        probes = [{line.key: line.value for line in each.lines} for each in self.tables["probe"]]
        return {probe["option"]: probe["has"] for probe in probes}
