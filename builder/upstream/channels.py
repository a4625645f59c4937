"""Channels: moving tags that follow an upstream, and the newest state of that upstream."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from builder.core import settings
from builder.core.errors import FetchError, RecipeError
from builder.core.log import Log
from builder.core.settings import Settings
from builder.publish.registry import Repository
from builder.publish.remote_image import remote_image
from builder.recipes.catalog import BrokenEntry, Catalog, Entry
from builder.recipes.edit import NamedCommit
from builder.recipes.schema import Recipe
from builder.recipes.sources import GitSource, Track
from builder.sources.repositories import Repositories
from builder.upstream import snapshot
from builder.upstream import track as tracking
from builder.upstream.snapshot import FrozenRecipe


@dataclass(frozen=True, slots=True)
class Channel:
    """A moving tag of a repository, and the recipe whose ``[track]`` it follows."""

    entry: Entry[Recipe]
    track: Track
    tag: str
    repository: str
    rivals: tuple[str, ...] = ()
    """Other recipes that would move the same tag."""

    def require_sole_recipe(self) -> None:
        """Raise ``RecipeError`` where another recipe would move the same tag."""
        if self.rivals:
            names = " and ".join(sorted((self.entry.name, *self.rivals)))
            raise RecipeError(
                f"{names} would both move {self.repository}:{self.tag}",
                hint="give one of them another channel",
            )

    @property
    def source(self) -> GitSource:
        """The git repository that is followed; raises ``RecipeError`` where there is none."""
        source = self.entry.recipe.source
        if not isinstance(source, GitSource):
            problem = self.entry.problem(("track",), "the source is not a git repository")
            raise RecipeError(
                f"the upstream of {self.entry.name} is not known",
                hint="follow a published image: image = REPOSITORY:TAG in [track]",
                problems=(problem,),
            )
        return source


def channels(catalog: Catalog, settings: Settings, names: Sequence[str] = ()) -> list[Channel]:
    """The channels of these recipes, or of all valid recipes.

    Raises ``RecipeError`` where one of the named recipes has none.
    """
    named = {entry.name for entry in require_channels(map(catalog.engine, names))}
    entries = catalog.engines.values()
    valid = [entry for entry in entries if not isinstance(entry, BrokenEntry)]
    known = [found for entry in valid if (found := _channel(entry, settings)) is not None]
    movers: dict[tuple[str, str], set[str]] = defaultdict(set)
    for channel in known:
        movers[channel.repository, channel.tag].add(channel.entry.name)
    return [
        replace(channel, rivals=tuple(movers[channel.repository, channel.tag] - {entry.name}))
        for channel in known
        if (entry := channel.entry).name in named or not names
    ]


def require_channels(entries: Iterable[Entry[Recipe]]) -> list[Entry[Recipe]]:
    """These recipes; raises ``RecipeError`` where one of them has no channel."""
    found = list(entries)
    without = sorted({entry.name for entry in found if not tag_of(entry)})
    if without:
        raise RecipeError(
            f"{', '.join(without)} {'has' if len(without) == 1 else 'have'} no channel",
            hint='add channel = "TAG" to [track] in the recipe, and the tag to image.moving',
        )
    return found


def tag_of(entry: Entry[Recipe]) -> str:
    """The tag that nightly runs of a recipe move; empty: it has no channel."""
    track = entry.recipe.track
    return (track.channel if track else None) or ""


def _channel(entry: Entry[Recipe], settings: Settings) -> Channel | None:
    recipe, tag = entry.recipe, tag_of(entry)
    if recipe.track is None or not tag:
        return None
    return Channel(entry, recipe.track, tag, settings.repository(recipe.image.repository))


def newest(channel: Channel, repositories: Repositories) -> NamedCommit:
    """The newest state of the upstream that a channel follows.

    Raises ``FetchError`` when upstream does not answer, or has no such tag, branch or image;
    ``RecipeError`` where the recipe's source cannot be followed.
    """
    image = channel.track.image
    if image is not None:
        return published(image, repositories.log)
    return tracking.upstream_target(channel.source.git, channel.track, repositories)


def published(image: str, log: Log) -> NamedCommit:
    """The published image that a tag points to.  Raises ``FetchError``."""
    name, _, tag = image.rpartition(":")
    digest = _repository(name, log).resolve(tag)
    if not digest:
        raise FetchError(f"{name} has no tag {tag}", hint="correct [track] in the recipe")
    return NamedCommit(image, digest, "image")


def day_of(channel: Channel, target: NamedCommit, repositories: Repositories) -> str:
    """The day (YYYY-MM-DD) of a state of a channel's upstream: a commit's, or a published image's
    by its configuration; empty where the image has none.

    Raises ``FetchError``, ``RegistryError``.
    """
    if target.kind != "image":
        return tracking.committed(channel.source.git, target.commit, repositories)
    found = remote_image(
        _repository(target.name.rpartition(":")[0], repositories.log), target.commit
    )
    return found.created[:10] if found else ""


def _repository(name: str, log: Log) -> Repository:
    return Repository(name, log, settings.load().token_hosts)


def frozen(
    catalog: Catalog, channel: Channel, target: NamedCommit, repositories: Repositories
) -> FrozenRecipe:
    """The recipe of a channel at a state of its upstream.

    Raises ``FetchError``; ``RecipeError`` where that would be no valid recipe.
    """
    version = snapshot.version_of(channel.tag, target)
    if target.kind == "image":
        return snapshot.at_image(catalog, channel.entry, target, version)
    count = partial(tracking.commit_count, channel.source.git, target.commit, repositories)
    return snapshot.at_commit(catalog, channel.entry, target, count, version)
