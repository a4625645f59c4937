"""Where every recipe and channel stands: what the registry serves, what upstream has, since when.

The registry is the state: a new machine with the recipes and a login gives the same answer.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime
from typing import Literal

from builder.errors import BuilderError, RegistryError, StaleError
from builder.nightly import channels, history
from builder.nightly.channels import Channel
from builder.nightly.history import Night
from builder.publish.push import opened
from builder.publish.remote_image import Served, served
from builder.recipes.catalog import BrokenEntry, Catalog, Entry
from builder.recipes.edit import Target
from builder.recipes.schema import GitSource, Recipe
from builder.settings import Settings
from builder.tools.git.arguments import COMMIT
from builder.tools.git.repositories import Repositories
from builder.upstream import snapshot
from builder.upstream import track as tracking

CURRENT = ("moved", "unchanged")
LONG_AGO = 2012
State = Literal["current", "behind", "stale", "empty", "unknown"]


@dataclass(frozen=True, slots=True)
class Status:
    """A tag of a registry, and how far it is behind its upstream."""

    recipe: str
    repository: str
    tag: str
    channel: bool
    """Whether nights move it; any other stays what it is."""
    served: Served | None = None
    upstream: str = ""
    """What upstream has: a tag, a branch or an image."""
    commit: str = ""
    """Its commit, or the image's digest."""
    commits: int | None = None
    """How many of upstream's commits the image does not have; None: not known."""
    days: int | None = None
    """Since when the oldest of them is there; 0 where there is none; None: not known."""
    limit: int | None = None
    """Days that a channel may be behind."""
    good: Night | None = None
    failed: Night | None = None
    """The last good and the last failed night."""
    problem: str = ""
    """Why something of it is not known."""

    @property
    def last(self) -> Night | None:
        """The night that came last."""
        nights = [night for night in (self.good, self.failed) if night is not None]
        return max(nights, key=lambda night: night.started, default=None)

    @property
    def state(self) -> State:
        """``empty``: the registry has no such tag; ``stale``: behind for longer than it may be."""
        if self.served is None:
            return "unknown" if self.problem else "empty"
        if self.days is None or self.problem:
            return "unknown"
        if self.limit is not None and self.days > self.limit:
            return "stale"
        return "current" if self.commits == 0 else "behind"


def statuses(
    catalog: Catalog,
    settings: Settings,
    names: Sequence[str],
    repositories: Repositories,
    *,
    only_channels: bool = False,
) -> Iterator[Status]:
    """The channel of each recipe that has one, else its version's tag, one after the other.

    What cannot be asked for is told by the status, and so is a recipe that is wrong.  Raises
    ``RecipeError`` for a name of none.
    """
    entries = [catalog.engine(name) for name in names] or catalog.engines.values()
    of_channels = {each.entry.name: each for each in channels.channels(catalog, settings)}
    for entry in entries:
        channel = of_channels.get(entry.name)
        if isinstance(entry, BrokenEntry):
            # Nobody knows whether it has a channel.
            yield Status(entry.name, "", "", channel=True, problem=str(entry.problems[0]))
        elif channel is not None:
            yield _of_channel(channel, repositories)
        elif not only_channels:
            yield _of_version(entry, settings, repositories)


def _of_channel(channel: Channel, repositories: Repositories) -> Status:
    """A channel; what cannot be told is a problem, and the rest is told all the same."""
    status = Status(
        channel.entry.name,
        channel.repository,
        channel.tag,
        channel=True,
        limit=channel.track.limit,
    )
    problems = []
    nights: list[Night] = []
    try:
        channel.need_alone()
        repository = opened(channel.repository, repositories.log)
        status = replace(status, served=served(repository, channel.tag))
        nights = history.nights(repository, channel.tag)
        repository.require_clock()
    except BuilderError as error:
        problems.append(str(error))
    status = replace(
        status,
        good=next((night for night in nights if night.good), None),
        failed=next((night for night in nights if not night.good), None),
    )
    try:
        status = _compared(status, _behind_channel(channel, status, nights, repositories))
    except BuilderError as error:
        problems.append(str(error))
    return replace(status, problem="\n".join(problems))


def _of_version(entry: Entry[Recipe], settings: Settings, repositories: Repositories) -> Status:
    """A version stays; how far upstream is ahead of it is worth knowing all the same."""
    recipe = entry.recipe
    name, tag = settings.repository(recipe.image.repository), recipe.image.tags[0]
    status = Status(entry.name, name, tag, channel=False)
    try:
        repository = opened(name, repositories.log)
        there = served(repository, tag)
        status = replace(status, served=there)
        repository.require_clock()
        if not isinstance(recipe.source, GitSource):
            return replace(status, commits=0, days=0)
        target = tracking.tracked(recipe.source.git, recipe.track, repositories)
        commit = _commit_of(status) if there is not None else recipe.source.commit
        url, track = recipe.source.git, recipe.track
        lag = tracking.behind(url, commit, target, track, repositories)
        return _compared(status, _Behind(target, lag.ahead, lag.since))
    except BuilderError as error:
        return replace(status, problem=str(error))


def _commit_of(status: Status) -> str:
    """The commit that a served image was made of; raises ``RegistryError`` where it is not told."""
    revision = status.served.revision if status.served else ""
    if not COMMIT.fullmatch(revision):
        raise RegistryError(
            f"{status.repository}:{status.tag} does not say what commit it was made of",
            "somebody else pushed it, or it was not made of one",
        )
    return revision


@dataclass(frozen=True, slots=True)
class _Behind:
    """What upstream has, the commits that are missing (None: not known), and since when."""

    target: Target
    commits: int | None
    since: str


def _compared(known: Status, found: _Behind) -> Status:
    return replace(
        known,
        upstream=found.target.name,
        commit=found.target.commit,
        commits=found.commits,
        days=_days_since(found.since),
    )


def _days_since(day: str) -> int | None:
    """Days from a day (YYYY-MM-DD) until today, by UTC; 0 for no day, and for one to come.

    None for one that cannot be: before there was anything that could be served.
    """
    if not day:
        return 0
    try:
        since = date.fromisoformat(day)
    except ValueError:
        return None
    return max(0, (datetime.now(UTC).date() - since).days) if since.year > LONG_AGO else None


def _behind_channel(
    channel: Channel, status: Status, nights: Sequence[Night], repositories: Repositories
) -> _Behind:
    target = channels.newest(channel, repositories)
    there = status.served
    if there is None:
        return _Behind(target, 0, "")
    # When it was last known to have all of it.
    known = next((night.started for night in nights if night.outcome in CURRENT), there.created)
    if target.kind == "image":
        current = there.version == snapshot.version_of(channel.tag, target)
        return _Behind(target, 0, "") if current else _Behind(target, None, known[:10])
    recipe = channel.entry.recipe
    assert isinstance(recipe.source, GitSource)
    url = recipe.source.git
    lag = tracking.behind(url, _commit_of(status), target, channel.track, repositories)
    if lag.rewritten and not lag.ahead:  # upstream went back
        return _Behind(target, None, known[:10])
    return _Behind(target, lag.ahead, lag.since)


def require_fresh(found: Sequence[Status]) -> None:
    """Raise ``StaleError`` with every channel that is behind for longer than it may be, has no
    image, or cannot be asked for."""
    bad = [each for each in found if each.channel and each.state in {"stale", "empty", "unknown"}]
    if bad:
        raise StaleError(
            f"{len(bad)} of the channels are not as they should be",
            "\n".join(_line(each) for each in bad),
            "`builder nightly` brings a channel on, once what stands above is mended",
        )


def _line(status: Status) -> str:
    where = f"{status.recipe}: {status.repository}:{status.tag}"
    if status.state == "stale":
        return f"{where} is {status.days} days behind; {status.limit} are allowed"
    if status.state == "empty":
        return f"{where} has no image yet"
    return f"{where}: {status.problem}"
