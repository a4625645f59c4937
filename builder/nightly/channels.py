"""Channels: the moving tags that follow an upstream, and what that has now."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from builder import settings
from builder.errors import FetchError, RecipeError
from builder.recipes.catalog import BrokenEntry, Catalog, Entry
from builder.recipes.edit import Target
from builder.recipes.schema import GitSource, Recipe, Track
from builder.settings import Settings
from builder.tools.git.repositories import Repositories
from builder.tools.registry.client import Repository
from builder.upstream import snapshot
from builder.upstream import track as tracking
from builder.upstream.snapshot import Frozen


@dataclass(frozen=True, slots=True)
class Channel:
    """A moving tag, the recipe that says what it follows, and the repository that has it."""

    entry: Entry[Recipe]
    track: Track
    tag: str
    repository: str
    rivals: tuple[str, ...] = ()
    """Other recipes that would move the same tag."""

    def need_alone(self) -> None:
        """Raise ``RecipeError`` where another recipe would move the same tag."""
        if self.rivals:
            names = " and ".join(sorted((self.entry.name, *self.rivals)))
            raise RecipeError(
                f"{names} would both move {self.repository}:{self.tag}",
                hint="give one of them another channel",
            )


def channels(catalog: Catalog, settings: Settings, names: Sequence[str] = ()) -> list[Channel]:
    """The channels of these recipes, or of all that are right.

    Raises ``RecipeError`` where one that is named has none.
    """
    named = {entry.name for entry in tracked(map(catalog.engine, names))}
    entries = catalog.engines.values()
    valid = [entry for entry in entries if not isinstance(entry, BrokenEntry)]
    all_of_them = [found for entry in valid if (found := _channel(entry, settings)) is not None]
    movers: dict[tuple[str, str], set[str]] = defaultdict(set)
    for channel in all_of_them:
        movers[channel.repository, channel.tag].add(channel.entry.name)
    return [
        replace(channel, rivals=tuple(movers[channel.repository, channel.tag] - {entry.name}))
        for channel in all_of_them
        if (entry := channel.entry).name in named or not names
    ]


def tracked(entries: Iterable[Entry[Recipe]]) -> list[Entry[Recipe]]:
    """These recipes; raises ``RecipeError`` where one of them has no channel."""
    found = list(entries)
    without = sorted({entry.name for entry in found if not tag_of(entry)})
    if without:
        raise RecipeError(
            f"{', '.join(without)} has no channel",
            hint='say [track] channel = "TAG" in the recipe, and the tag in image.moving',
        )
    return found


def tag_of(entry: Entry[Recipe]) -> str:
    """The tag that the nights of a recipe move; empty: it has no channel."""
    track = entry.recipe.track
    return (track.channel if track else None) or ""


def _channel(entry: Entry[Recipe], settings: Settings) -> Channel | None:
    recipe, tag = entry.recipe, tag_of(entry)
    if recipe.track is None or not tag:
        return None
    return Channel(entry, recipe.track, tag, settings.repository(recipe.image.repository))


def newest(channel: Channel, repositories: Repositories) -> Target:
    """What the upstream of a channel has now.

    Raises ``FetchError`` when it does not answer, or has no such tag, branch or image;
    ``RecipeError`` where the recipe's source cannot be followed.
    """
    image, source = channel.track.image, channel.entry.recipe.source
    if image is not None:
        return published(image, repositories.log)
    if not isinstance(source, GitSource):
        problem = channel.entry.problem(("track",), "the source is no git repository")
        raise RecipeError(f"{channel.entry.name} cannot be followed", problems=(problem,))
    return tracking.tracked(source.git, channel.track, repositories)


def published(image: str, log: Callable[[str], None]) -> Target:
    """What the tag of a published image leads to.  Raises ``FetchError``."""
    name, _, tag = image.rpartition(":")
    digest = Repository(name, log, settings.load().token_hosts).resolve(tag)
    if not digest:
        raise FetchError(f"{name} has no tag {tag}", hint="correct [track] of the recipe")
    return Target(image, digest, "image")


def frozen(
    catalog: Catalog, channel: Channel, target: Target, repositories: Repositories
) -> Frozen:
    """The recipe of a channel at a state of its upstream.

    Raises ``FetchError``; ``RecipeError`` where that would be no recipe.
    """
    version = snapshot.version_of(channel.tag, target)
    if target.kind == "image":
        return snapshot.at_image(catalog, channel.entry, target, version)
    source = channel.entry.recipe.source
    assert isinstance(source, GitSource)
    number = 0
    if channel.entry.recipe.llama is not None:
        number = tracking.build_number(source.git, target.commit, repositories)
    return snapshot.at_commit(catalog, channel.entry, target, number, version)
