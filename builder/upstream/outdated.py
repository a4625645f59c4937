"""How far the newest recipe of each engine is behind upstream, and its patches there."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from builder.recipes.catalog import Entry
from builder.recipes.edit import SHORT_COMMIT
from builder.recipes.schema import Recipe
from builder.recipes.sources import GitSource
from builder.upstream.patch_state import PatchFinding
from builder.upstream.patches import PIN, diagnose
from builder.upstream.session import SourceSession
from builder.upstream.track import Lag


@dataclass(frozen=True, slots=True)
class Pinned:
    """A recipe, and how far its pin is behind upstream."""

    entry: Entry[Recipe]
    lag: Lag

    @property
    def behind(self) -> bool:
        """Whether upstream has something else: commits, releases, or a branch that went back.

        A pin between two tags is ahead of the newest one.
        """
        went_back = self.lag.rewritten and self.lag.target.kind == "branch"
        return bool(self.lag.ahead) or went_back

    @property
    def pin(self) -> str:
        """The release, or the ref with the commit."""
        source = self.entry.recipe.source
        if not isinstance(source, GitSource):
            return self.lag.release
        return " ".join([*([source.ref] if source.ref else []), source.commit[:SHORT_COMMIT]])

    @property
    def channel(self) -> str:
        """The tag that nightly runs move; empty: the recipe has none."""
        track = self.entry.recipe.track
        return (track.channel if track else None) or ""


@dataclass(frozen=True, slots=True)
class Outdated:
    """The recipe of an engine whose pin is the newest, beside its upstream."""

    pinned: Pinned
    older: tuple[str, ...]
    """Names of the engine's other recipes with a source at the same place."""
    patches: tuple[PatchFinding, ...] = ()
    """The states of its patches at the newest version; none where the pin is that version."""

    def as_json(self) -> dict[str, Any]:
        """The row as JSON data."""
        pinned = self.pinned
        return {
            "recipe": pinned.entry.name,
            "engine": pinned.entry.recipe.engine,
            "pinned": pinned.pin,
            "channel": pinned.channel,
            "behind": pinned.behind,
            **asdict(pinned.lag),
            "days": pinned.lag.days,
            "patches": [asdict(finding) for finding in self.patches],
            "older": list(self.older),
        }


def by_engine(found: Iterable[Pinned]) -> list[Outdated]:
    """The newest recipe of each engine and place of its source, in order of the engines.

    Recipes with a channel come after the others: nightly runs do not move the pin in their file.
    """
    groups: dict[tuple[str, str], list[Pinned]] = defaultdict(list)
    for pinned in found:
        recipe = pinned.entry.recipe
        place = recipe.source.git if isinstance(recipe.source, GitSource) else "PyPI"
        groups[recipe.engine, place].append(pinned)
    rows = []
    for group in groups.values():
        newest, *others = sorted(
            group, key=lambda each: (bool(each.channel), each.lag.ahead, each.entry.name)
        )
        rows.append(Outdated(newest, tuple(sorted(each.entry.name for each in others))))
    return sorted(rows, key=lambda row: row.pinned.entry.recipe.engine)


def patches_on_newest(session: SourceSession, pinned: Pinned) -> tuple[PatchFinding, ...]:
    """The states of a recipe's patches at the newest version of its upstream.

    Raises ``FetchError``; ``RecipeError`` for a patch file that is missing.
    """
    if not pinned.entry.recipe.patch or not pinned.behind:
        return ()
    found = diagnose(session.patch_set(pinned.entry))
    return tuple(finding for finding in found if finding.target != PIN)
