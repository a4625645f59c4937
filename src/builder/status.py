"""Where every recipe and channel stands: what the registry serves, what upstream has, since when.

The registry is the state: a new machine with the recipes and a login gives the same answer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime
from typing import Literal

from builder import channels, freezing, journal, upstream
from builder.catalogue import Catalogue, Entry
from builder.channels import Channel
from builder.errors import BuilderError, RegistryError, StaleError
from builder.journal import Night
from builder.schema import GitSource, Recipe
from builder.served import Served, configuration, served
from builder.settings import Settings
from builder.tools.git import COMMIT
from builder.tools.registry import Repository
from builder.tools.repositories import Repositories
from builder.upstream import Lag, Target

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
    def state(self) -> State:
        """``empty``: the registry has no such tag; ``stale``: behind for longer than it may be."""
        if self.served is None:
            return "unknown" if self.problem else "empty"
        if self.days is None:
            return "unknown"
        if self.limit is not None and self.days > self.limit:
            return "stale"
        return "current" if self.commits == 0 else "behind"


def statuses(
    catalogue: Catalogue,
    settings: Settings,
    names: Sequence[str],
    repositories: Repositories,
) -> Iterator[Status]:
    """The channel of each recipe that has one, else its version's tag, one after the other.

    What cannot be asked for is told by the status.  Raises ``RecipeError`` for a name of none.
    """
    entries = [catalogue.engine(name) for name in names] or [
        entry for entry in catalogue.engines.values() if entry.recipe and not entry.problems
    ]
    of_channels = {each.entry.name: each for each in channels.channels(catalogue, settings)}
    for entry in entries:
        channel = of_channels.get(entry.name)
        try:
            if channel is not None:
                yield _of_channel(channel, repositories)
            else:
                yield _of_version(entry, settings, repositories)
        except BuilderError as error:
            yield _unknown(entry, channel, settings, error)


def _unknown(
    entry: Entry[Recipe], channel: Channel | None, settings: Settings, error: BuilderError
) -> Status:
    recipe = entry.recipe
    assert recipe is not None
    return Status(
        entry.name,
        settings.repository(recipe.image.repository),
        channel.tag if channel else recipe.image.tags[0],
        channel is not None,
        limit=channel.track.limit if channel else None,
        problem=str(error),
    )


def _of_channel(channel: Channel, repositories: Repositories) -> Status:
    """A channel; what upstream does not tell is a problem, and the rest is told all the same."""
    repository = Repository(channel.repository, repositories.say)
    there = served(repository, channel.tag)
    nights = journal.nights(repository, channel.tag)
    known = Status(
        channel.entry.name,
        channel.repository,
        channel.tag,
        channel=True,
        served=there,
        limit=channel.track.limit,
        good=next((night for night in nights if night.good), None),
        failed=next((night for night in nights if not night.good), None),
    )
    return _compared(known, lambda: _behind_channel(channel, there, repositories))


def _of_version(entry: Entry[Recipe], settings: Settings, repositories: Repositories) -> Status:
    """A version stays; how far upstream is ahead of it is worth knowing all the same."""
    recipe = entry.recipe
    assert recipe is not None
    name, tag = settings.repository(recipe.image.repository), recipe.image.tags[0]
    there = served(Repository(name, repositories.say), tag)
    known = Status(entry.name, name, tag, channel=False, served=there)

    def ask() -> _Behind | None:
        lag = upstream.lag(recipe, repositories)
        return _of_lag(lag) if lag is not None else None

    return _compared(known, ask)


@dataclass(frozen=True, slots=True)
class _Behind:
    """What upstream has, the commits that are missing (None: not known), and since when."""

    target: Target
    commits: int | None
    since: str


def _compared(known: Status, ask: Callable[[], _Behind | None]) -> Status:
    try:
        found = ask()
    except BuilderError as error:
        return replace(known, problem=str(error))
    if found is None:
        return replace(known, commits=0, days=0)
    return replace(
        known,
        upstream=found.target.name,
        commit=found.target.commit,
        commits=found.commits,
        days=_days_since(found.since),
    )


def _days_since(day: str) -> int:
    """Days from a day (YYYY-MM-DD) until today, by UTC; 0 for no day, and for one to come."""
    if not day:
        return 0
    return max(0, (datetime.now(UTC).date() - date.fromisoformat(day)).days)


def _behind_channel(channel: Channel, there: Served | None, repositories: Repositories) -> _Behind:
    target = channels.newest(channel, repositories)
    if there is None or there.version == freezing.version_of(channel.tag, target):
        return _Behind(target, 0, "")
    if target.kind == "image":
        return _Behind(target, None, _day_of_image(target, repositories))
    recipe = channel.entry.recipe
    assert recipe is not None
    assert isinstance(recipe.source, GitSource)
    if not COMMIT.fullmatch(there.revision):
        raise RegistryError(
            f"{channel.repository}:{channel.tag} does not say what commit it was made of"
        )
    url = recipe.source.git
    return _of_lag(upstream.behind(url, there.revision, target, channel.track, repositories))


def _of_lag(lag: Lag) -> _Behind:
    return _Behind(lag.target, lag.ahead, lag.since)


def _day_of_image(target: Target, repositories: Repositories) -> str:
    """The day on which a published image was made."""
    name = target.name.rpartition(":")[0]
    repository = Repository(name, repositories.say)
    found = repository.manifest(target.commit)
    created = configuration(repository, found).get("created") if found else None
    return str(created or "")[:10]


def need_fresh(found: Sequence[Status]) -> None:
    """Raise ``StaleError`` with every channel that is behind for longer than it may be, has no
    image, or cannot be asked for."""
    bad = [each for each in found if each.channel and each.state in {"stale", "empty", "unknown"}]
    if bad:
        raise StaleError(
            f"{len(bad)} of the channels are not as they should be",
            "\n".join(_line(each) for each in bad),
            "`builder nightly` brings them on; the reason why one failed stands above",
        )


def _line(status: Status) -> str:
    where = f"{status.recipe}: {status.repository}:{status.tag}"
    if status.state == "stale":
        return f"{where} is {status.days} days behind; {status.limit} are allowed"
    if status.state == "empty":
        return f"{where} has no image yet"
    return f"{where}: {status.problem}"
