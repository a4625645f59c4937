"""Source trees as a family reads them for `recipe new`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Tree:
    """A tree whose files are given, with seven commits; None is a file that it does not have."""

    given: Mapping[str, str | None]
    name: str = "v1"
    commit: str = ""

    @property
    def files(self) -> dict[str, str]:
        return {path: text for path, text in self.given.items() if text is not None}

    @property
    def paths(self) -> frozenset[str]:
        return frozenset(self.files)

    def texts(self, paths: Iterable[str]) -> Mapping[str, str]:
        return {path: self.files[path] for path in paths if path in self.files}

    def commits(self) -> int:
        return 7
