"""The status of recipes and channels: the image in the registry, and how far upstream is ahead.

The registry is the state: any machine that has the recipes and a login gives the same answer.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

from pydantic_core import to_jsonable_python

from builder.core.errors import BuilderError, FetchError, RegistryError, StaleError
from builder.core.files import workspace
from builder.core.settings import Settings
from builder.engines.layout import REVISION
from builder.presets.catalog import load
from builder.publish import nights
from builder.publish.nights import NightlyRun
from builder.publish.registry import RemoteImage, Repository, remote_image
from builder.publish.signing import trust_of
from builder.publish.tags import last_note, open_repository
from builder.publish.verdicts import Reproduced, of_all, referrers, reproduced
from builder.publish.vulnerabilities import Summary, newest_scan
from builder.recipes.catalog import BrokenEntry, Catalog, Entry
from builder.recipes.edit import SHORT_COMMIT, NamedCommit
from builder.recipes.schema import GitSource, Recipe
from builder.sources.git import COMMIT
from builder.sources.mirrors import Repositories
from builder.upstream import night
from builder.upstream import track as tracking
from builder.upstream.night import Channel
from builder.upstream.patches import PIN, PatchFinding, SourceSession, diagnose
from builder.upstream.track import Lag
from builder.upstream.update import version_of

CURRENT = ("moved", "unchanged")
REQUEST = re.compile(r": (?:GET|HEAD) \S+$", re.MULTILINE)
"""The request in a registry's error: without it, one cause is the same text for all recipes."""
URL = re.compile(r"(https?://[^/\s']+)/[^\s']*?(?=[:',.]*(?:\s|$))")
"""An address in an error: one server that does not answer is one cause for all repositories."""
State = Literal["current", "behind", "held", "stale", "still", "empty", "unknown"]


@dataclass(slots=True)
class Status:
    """A tag of a registry, its image, and how far that is behind its upstream."""

    recipe: str
    repository: str
    tag: str
    channel: bool
    """Whether nightly runs move the tag; a version tag stays."""
    image: RemoteImage | None = None
    upstream: str = ""
    """The tag, the branch or the image that is followed."""
    commit: str = ""
    """Its commit, the image's digest, or the release."""
    commits: int | None = None
    """How many commits of upstream the image lacks, of PyPI releases; None: not known."""
    days: int | None = None
    """Age of the oldest of these commits; 0 where there is none; None: not known."""
    limit: int | None = None
    """Days that the channel may be behind."""
    still: int | None = None
    """Days since the newest state of a channel's upstream; None: not known."""
    still_limit: int | None = None
    """Days without anything new upstream before the channel counts as still."""
    held: str = ""
    """Why the channel was rolled back, where that was its last move."""
    answered: bool = False
    """Whether the registry answered for the tag."""
    unanswered: bool = False
    """Whether part of the status is not known because a server fails or does not answer."""
    update: int | None = None
    """Bytes to download for somebody who has the image before, of several platforms the most; None:
    not known."""
    updates: Mapping[str, int] = field(default_factory=dict)
    """The same by platform ("linux/amd64"), where the image is an index."""
    reproduced: Reproduced | None = None
    """The statement that the image was built again; None: it has none."""
    vulnerable: tuple[Summary, ...] = ()
    """The newest scan of each image for vulnerabilities; empty: none is recorded."""
    good: NightlyRun | None = None
    failed: NightlyRun | None = None
    """The last good and the last failed nightly run."""
    problem: str = ""
    """Why part of the status is not known."""
    errors: tuple[str, ...] = ()
    """The same, of each error by itself."""
    presets: tuple[str, ...] = ()
    """The presets that run the image."""

    @property
    def causes(self) -> list[str]:
        """Each problem in one line that does not name the repository: the same for all it meets."""
        lines = [URL.sub(r"\1", each).splitlines()[:2] for each in self.errors or (self.problem,)]
        return [": ".join(filter(None, each)) for each in lines if each]

    @property
    def last(self) -> NightlyRun | None:
        """The last nightly run."""
        runs = [run for run in (self.good, self.failed) if run is not None]
        return max(runs, key=lambda run: run.started, default=None)

    @property
    def state(self) -> State:
        """``empty``: the registry lacks the tag; ``stale``: behind for longer than ``limit``;
        ``held``: behind, because somebody rolled it back; ``still``: the newest, and upstream has
        not moved for longer than ``still_limit``."""
        if self.image is None:
            return "empty" if self.answered or not self.problem else "unknown"
        if self.days is None or self.problem:
            return "unknown"
        if self.limit is not None and self.days > self.limit:
            return "stale"
        if self.commits != 0:
            return "held" if self.held else "behind"
        limit = self.still_limit
        return "still" if limit and self.still is not None and self.still > limit else "current"

    def as_json(self) -> dict[str, Any]:
        """The status as JSON data."""
        return {"state": self.state, **to_jsonable_python(self, exclude={"errors"})}


def statuses(
    catalog: Catalog,
    settings: Settings,
    names: Sequence[str],
    repositories: Repositories,
    *,
    only_channels: bool = False,
) -> Iterator[Status]:
    """The status of each recipe's channel, else of its version tag.

    A server that does not answer, or a broken recipe, is a problem of the status.  Raises
    ``RecipeError`` for a name that no recipe has, ``RegistryError`` without a namespace.
    """
    entries = [catalog.engine(name) for name in names] or catalog.engines.values()
    if not settings.namespace:
        raise RegistryError(
            "status shows published images, and BUILDER_NAMESPACE is not set",
            "`builder list` shows what this machine built",
            "set BUILDER_NAMESPACE to the account that publishes them: me, or ghcr.io/me",
        )
    for entry in entries:
        if not isinstance(entry, BrokenEntry):
            open_repository(settings.repository(entry.recipe.image.repository), repositories.log)
    of_channels = {each.entry.name: each for each in night.channels(catalog, settings)}
    presets = load(catalog)
    for entry in entries:
        channel = of_channels.get(entry.name)
        if isinstance(entry, BrokenEntry):
            # Whether it has a channel is not known.
            yield Status(entry.name, "", "", channel=True, problem=str(entry.problems[0]))
            continue
        if channel is not None:
            status = _of_channel(channel, settings, repositories)
        elif only_channels:
            continue
        else:
            status = _of_version(entry, catalog, settings, repositories)
        status.presets = tuple(each.name for each in presets.of_recipe(entry.name))
        yield status


def _of_channel(channel: Channel, settings: Settings, repositories: Repositories) -> Status:
    status = Status(
        channel.entry.name,
        channel.repository,
        channel.tag,
        channel=True,
        limit=channel.track.limit,
        still_limit=channel.track.still,
    )
    errors: list[BuilderError] = []
    runs: list[NightlyRun] = []
    try:
        channel.require_sole_recipe()
        repository = open_repository(channel.repository, repositories.log)
        _look_up(status, repository, settings)
        runs = nights.nightly_runs(repository, channel.tag)
        repository.require_clock()
    except BuilderError as error:
        errors.append(error)
    status.good = next((run for run in runs if run.good), None)
    status.failed = next((run for run in runs if not run.good), None)
    try:
        target = night.newest(channel, repositories)
        _compare(status, target, *_behind(channel, status, target, runs, repositories))
        # An image without a date is as old as the first nightly run that found it.
        day = night.day_of(channel, target, repositories)
        status.still = tracking.days_since(day) if day else None
        seen = [run.started[:10] for run in runs if run.commit == target.commit]
        if status.still is None and seen:
            status.still = tracking.days_since(min(seen))
    except BuilderError as error:
        errors.append(error)
    _note(status, *errors)
    return status


def _note(status: Status, *errors: BuilderError) -> None:
    status.errors = tuple(REQUEST.sub("", str(error)) for error in errors)
    status.problem = "\n".join(status.errors)
    status.unanswered = any(isinstance(error, FetchError) for error in errors)


def _look_up(status: Status, repository: Repository, settings: Settings) -> None:
    """The image that the tag points to, the size of its update, whether the last move was a
    rollback, and whether the image was built again."""
    image = remote_image(repository, status.tag)
    if image is not None:
        with workspace(settings.cache_dir) as work:
            note = last_note(repository, status.tag, image.digest, trust_of(settings, work))
        digests = [each.digest for each in image.platforms.values()] or [image.digest]
        listed = {each: referrers(repository, each) for each in digests}
        again = [reproduced(entries, each, settings) for each, entries in listed.items()]
        status.reproduced = of_all(again)
        scans = (newest_scan(entries, each) for each, entries in listed.items())
        status.vulnerable = tuple(each for each in scans if each is not None)
        if note is not None:
            last = note.move
            status.update, status.updates = last.update, last.updates
            if last.by == "rollback":
                status.held = f"rolled back from {last.before[:19]}: {last.reason}"
    status.image, status.answered = image, True


def _of_version(
    entry: Entry[Recipe], catalog: Catalog, settings: Settings, repositories: Repositories
) -> Status:
    """The status of a version tag, which stays while upstream goes on."""
    recipe = entry.recipe
    name, tag = settings.repository(recipe.image.repository), recipe.image.tags[0]
    status = Status(entry.name, name, tag, channel=False)
    try:
        repository = open_repository(name, repositories.log)
        _look_up(status, repository, settings)
        repository.require_clock()
        commit = None
        if status.image is not None and isinstance(recipe.source, GitSource):
            commit = _commit_of(status, status.image)
        lag = tracking.lag(recipe, catalog, repositories, commit)
        if lag is None:
            status.commits, status.days = 0, 0
        else:
            _compare(status, lag.target, lag.ahead, lag.since)
    except BuilderError as error:
        _note(status, error)
    return status


def _commit_of(status: Status, image: RemoteImage) -> str:
    if not COMMIT.fullmatch(image.revision):
        raise RegistryError(
            f"{status.repository}:{status.tag} has no label with its source's commit",
            f"its label {REVISION} is {image.revision or 'absent'}",
            "builder did not push it, or its source is not a git repository",
        )
    return image.revision


def _compare(status: Status, target: NamedCommit, commits: int | None, since: str) -> None:
    status.upstream, status.commit, status.commits = target.name, target.commit, commits
    status.days = tracking.days_since(since)


def _behind(
    channel: Channel,
    status: Status,
    target: NamedCommit,
    runs: Sequence[NightlyRun],
    repositories: Repositories,
) -> tuple[int | None, str]:
    """How many commits a channel lacks (None: not known), and since which day."""
    image = status.image
    if image is None:
        return 0, ""
    # The last time that the channel was up to date, as far as runs tell.
    current = next((run.started for run in runs if run.outcome in CURRENT), image.created)
    if target.kind == "image":
        same = image.version == version_of(channel.tag, target)
        return (0, "") if same else (None, current[:10])
    commit, url = _commit_of(status, image), channel.source.git
    lag = tracking.commits_behind(url, commit, target, channel.track, repositories)
    if lag.rewritten and not lag.ahead:  # upstream went back
        return None, current[:10]
    return lag.ahead, lag.since


def require_fresh(found: Sequence[Status]) -> None:
    """Raise ``StaleError`` with every channel that is stale, still, empty or unknown; else
    ``FetchError`` where the state of a tag is not known.

    A channel that is unknown only because a server does not answer is no reason for the first.
    """
    wrong = {"stale", "still", "empty"}
    unknown = [each for each in found if each.state == "unknown"]
    bad = [each for each in found if each.channel and each.state in {*wrong, "unknown"}]
    if any(not (each.state == "unknown" and each.unanswered) for each in bad):
        raise StaleError(
            f"{len(bad)} channels are stale, still, empty or unknown",
            "\n".join(_line(each) for each in bad),
            "correct the causes above, then run `builder nightly`",
        )
    if unknown:
        raise FetchError(
            f"the state of {len(unknown)} of {len(found)} tags is not known",
            "\n".join(grouped((each.recipe, cause) for each in unknown for cause in each.causes)),
            "try again later, or correct the causes above",
        )


def grouped(texts: Iterable[tuple[str, str]]) -> Iterator[str]:
    """Texts after the names of the recipes that have them; one that several have stands once."""
    names: dict[str, list[str]] = {}
    for name, text in texts:
        names.setdefault(text, []).append(name)
    for text, those in names.items():
        more = f" and {len(those) - 3} others" if len(those) > 4 else ""
        yield f"{', '.join(those[:3] if more else those)}{more}: {text}"


def _line(status: Status) -> str:
    where = f"{status.recipe}: {status.repository}:{status.tag}"
    if status.state == "stale":
        return f"{where} is {status.days} days behind; its limit is {status.limit} days"
    if status.state == "still":
        limit = f"its limit (still in [track]) is {status.still_limit} days"
        return f"{where}: upstream has not moved for {status.still} days; {limit}"
    if status.state == "empty":
        return f"{where} has no image"
    return f"{where}: {status.problem}"


# How far the newest recipe of each engine is behind upstream, and its patches there.


@dataclass(frozen=True, slots=True)
class Outdated:
    """A recipe, and how far its pin is behind upstream."""

    entry: Entry[Recipe]
    lag: Lag
    older: tuple[str, ...] = ()
    """Names of the engine's other recipes with a source at the same place."""
    patches: tuple[PatchFinding, ...] = ()
    """The states of its patches at the newest version; none where the pin is that version."""

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

    def as_json(self) -> dict[str, Any]:
        """The row as JSON data."""
        return {
            "recipe": self.entry.name,
            "engine": self.entry.recipe.engine,
            "pinned": self.pin,
            "channel": self.entry.recipe.channel,
            "behind": self.behind,
            **asdict(self.lag),
            "days": self.lag.days,
            "patches": [asdict(finding) for finding in self.patches],
            "older": list(self.older),
        }


def by_engine(found: Iterable[Outdated]) -> list[Outdated]:
    """The newest recipe of each engine and place of its source, in order of the engines.

    Recipes with a channel come after the others: nightly runs do not move the pin in their file.
    """
    groups: dict[tuple[str, str], list[Outdated]] = defaultdict(list)
    for each in found:
        recipe = each.entry.recipe
        place = recipe.source.git if isinstance(recipe.source, GitSource) else "PyPI"
        groups[recipe.engine, place].append(each)
    rows = []
    for group in groups.values():
        newest, *others = sorted(
            group,
            key=lambda each: (bool(each.entry.recipe.channel), each.lag.ahead, each.entry.name),
        )
        rows.append(replace(newest, older=tuple(sorted(each.entry.name for each in others))))
    return sorted(rows, key=lambda row: row.entry.recipe.engine)


def with_patches(session: SourceSession, row: Outdated) -> Outdated:
    """A row with the states of the recipe's patches at the newest version of its upstream.

    Raises ``FetchError``; ``RecipeError`` for a patch file that is missing.
    """
    if not row.entry.recipe.patch or not row.behind:
        return row
    found = diagnose(session.patch_set(row.entry))
    return replace(row, patches=tuple(each for each in found if each.target != PIN))
