"""A nightly run: freeze the newest upstream, build, check and push it, and move the channel last.

Channels are independent: a failure stops one channel, whose tag then stays where it is.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from builder.build import build as pipeline
from builder.build import record, reports
from builder.build.record import Record
from builder.build.session import BuildSession
from builder.core import settings
from builder.core.errors import (
    BuilderError,
    FetchError,
    NightError,
    PatchError,
    RecipeError,
    UnvouchedError,
)
from builder.core.files import named_lock, workspace
from builder.core.log import Log
from builder.core.settings import Settings
from builder.docker import engine as docker
from builder.engines.layout import CREATED, LABEL_KEY, LABEL_RECIPE
from builder.image.code_paths import KernelSummary
from builder.plan.plan import Plan
from builder.publish import tags
from builder.publish.nights import LONGEST_REASON, NightlyRun, Outcome, compared, write
from builder.publish.prune import is_nightly
from builder.publish.push import (
    Verified,
    built_here,
    find_published,
    key_of_index,
    push_image,
    push_index,
)
from builder.publish.registry import Repository
from builder.publish.remote_image import Update, remote_image, require_within
from builder.publish.tag_history import past_moves, reason_of
from builder.publish.verdicts import Trust, require_signing, trust_of
from builder.recipes.catalog import BrokenEntry, Catalog, Entry
from builder.recipes.edit import NamedCommit
from builder.recipes.schema import GitSource, Recipe, Track
from builder.sources.mirrors import Repositories
from builder.upstream import snapshot
from builder.upstream import track as tracking
from builder.upstream.patches import PatchFinding
from builder.upstream.session import SourceSession, open_session
from builder.upstream.snapshot import FrozenRecipe

# Channels: moving tags that follow an upstream, and the newest state of that upstream.


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
        return published_image_of(image, repositories.log)
    return tracking.upstream_target(channel.source.git, channel.track, repositories)


def published_image_of(image: str, log: Log) -> NamedCommit:
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


def frozen_channel(
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


# The images of a frozen recipe in the registry: existing images, or new ones.

WORST = 10
"""Spilling kernels of each library that a run keeps."""


def publish(
    session: BuildSession, frozen: FrozenRecipe, repository: Repository, serves: str, work: Path
) -> tuple[str, KernelSummary | None]:
    """The digest of a frozen recipe's image in the registry: of an existing image, or of a new one.

    For several platforms, the tag of the index of their images.  With the kernels of the image, of
    the first platform, where this machine built it.  The image that the channel ``serves`` already
    (a digest) needs no trust, for nothing moves.  Raises like ``build.build``, ``push_image``.
    """
    session = replace(session, catalog=frozen.catalog)
    plans = session.plans(frozen.name)
    several = len(plans) > 1
    immutable = plans[0].immutable_tag
    if several:
        immutable = tags.tags_of_index(plans[0].recipe, key_of_index(plans)).immutable
    if serves and repository.head_digest(immutable) == serves:
        return serves, _kernels(built_here(session, plans[0]))
    results: list[Verified | BuilderError] = []
    for plan in plans:
        folder = work / plan.platforms.target
        folder.mkdir()
        try:
            results.append(_ready(session, plan, repository, folder))
        except BuilderError as error:
            if several:
                session.log(f"{plan.title} failed: {error.what}")
            results.append(error)
    pipeline.require_all(plans, results)
    ready = [each for each in results if isinstance(each, Verified)]
    first = ready[0].record
    folder = work / "release"
    folder.mkdir()
    with lock_tags(session):
        only = tags.Tags(immutable, (), ())
        if several:
            digest = push_index(session, plans, only, frozen.files, folder).digest
        elif first:
            digest = push_image(session, plans[0], first, only, frozen.files, folder).digest
        else:
            digest = ready[0].digest
    return digest, _kernels(first)


def _ready(session: BuildSession, plan: Plan, repository: Repository, work: Path) -> Verified:
    """The registry's image of a key, if it counts, else the image that this machine builds.

    Where nothing vouches for the registry's image, it is compared with an image that is built here.
    Layers of a registry's cache would prove nothing: whoever can write the image may write them.
    """
    try:
        there = find_published(session, plan, repository, work)
    except UnvouchedError as error:
        session.log(f"{error.what}: building it here, to compare the digests")
        _rebuilt(session, plan)
        there = find_published(session, plan, repository, work)
    if there is not None:
        return there
    record = _built(session, plan)
    return Verified(record.digest, record)


def _built(session: BuildSession, plan: Plan) -> Record:
    """The record of the image, which this machine builds unless it has."""
    found = pipeline.build(plan, session).record
    if not found.built_here:  # the engine's image was pulled
        return _rebuilt(session, plan)
    return found


def _rebuilt(session: BuildSession, plan: Plan) -> Record:
    """The record of the image, which is built here without layers of a cache."""
    return pipeline.build(plan, replace(session, rebuild=True)).record


def lock_tags(session: BuildSession) -> AbstractContextManager[None]:
    """Wait until no other process of this machine moves tags, and keep others from it."""
    return named_lock(session.settings.cache_dir, tags.TAGS, wait=session.log)


def _kernels(record: Record | None) -> KernelSummary | None:
    found = record.verdict.kernels if record else None
    return found.shortened(WORST) if found else None


# The runs.

KEPT = 2
"""Images of a channel that stay in the engine, the newest ones."""


@dataclass
class _Progress:
    """How far a run came; ``digest`` is the digest that the channel points to."""

    target: NamedCommit = field(default_factory=lambda: NamedCommit("", "", "commit"))
    digest: str = ""
    outcome: Outcome = "failed"
    reason: str = ""
    update: int | None = None
    kernels: KernelSummary | None = None
    """The kernels of the image that the channel points to."""


def run_channels(session: BuildSession, names: Sequence[str] = ()) -> Iterator[NightlyRun]:
    """Move the channels of these recipes, or all channels, to their newest upstream.

    They run one after the other; each run is recorded in its registry.  Raises ``RecipeError`` for
    a recipe without a channel, ``RegistryError`` where no namespace is set, ``BusyError`` during
    another nightly run on this machine.
    """
    session.settings.require_directories()
    found = channels(session.catalog, session.settings, names)
    for channel in found:
        tags.open_repository(
            channel.repository, session.log
        )  # missing settings fail once, and here
    with workspace(session.settings.cache_dir) as work:
        require_signing(session.settings, work)
    with named_lock(session.settings.cache_dir, tags.NIGHTLY):
        for channel in found:
            yield _run_channel(session, channel)
        if not names:
            yield from _broken(session)


def _broken(session: BuildSession) -> Iterator[NightlyRun]:
    """A failed run for each broken recipe: whether it has a channel is not known."""
    for entry in session.catalog.engines.values():
        if isinstance(entry, BrokenEntry):
            yield NightlyRun(
                recipe=entry.name,
                channel="",
                outcome="failed",
                started=_now(),
                seconds=0.0,
                reason=str(entry.problems[0]),
            )


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def _run_channel(session: BuildSession, channel: Channel) -> NightlyRun:
    """One channel, from its upstream to its tag in the registry.

    Nothing is recorded where the registry does not answer, refuses, or has a different time.
    """
    started, clock = _now(), time.monotonic()
    progress = _Progress()
    writable: Repository | None = None
    try:
        channel.require_sole_recipe()
        repository = tags.open_repository(channel.repository, session.log)
        progress.digest = repository.head_digest(channel.tag)
        repository.require_clock()
        repository.require_push()
        writable = repository
        with open_session(
            session.catalog, session.settings, session.log, offline=session.offline
        ) as sources:
            _update_channel(session, channel, sources, repository, progress)
    except Exception as error:
        progress.reason = _reason(session, error)
    done = NightlyRun(
        recipe=channel.entry.name,
        channel=channel.tag,
        outcome=progress.outcome,
        started=started,
        seconds=round(time.monotonic() - clock, 1),
        upstream=progress.target.name,
        commit=progress.target.commit,
        digest=progress.digest,
        reason=progress.reason,
        update=progress.update,
        kernels=progress.kernels,
    )
    return _finished(session, channel, writable, done) if writable is not None else done


def _reason(session: BuildSession, error: Exception) -> str:
    """Why a run failed, for everybody to read; the report of an internal error stays here."""
    known = reports.as_builder_error(error)
    if known is None:
        session.log(f"internal error: the report is {reports.write_report(error)}")
        known = BuilderError(f"internal error: {type(error).__name__}: {error}")
    text = str(known)
    return text if len(text) <= LONGEST_REASON else f"{text[:LONGEST_REASON]} ..."


def _finished(
    session: BuildSession, channel: Channel, repository: Repository, done: NightlyRun
) -> NightlyRun:
    """Record a run, and remove old images from the engine.

    A run that cannot be recorded has failed; a failed clean-up only adds to its reason.
    """
    try:
        done = compared(repository, done)
        write(repository, done)
    except Exception as error:
        reason = _joined(f"the run could not be recorded: {_reason(session, error)}", done.reason)
        return done.model_copy(update={"outcome": "failed", "reason": reason})
    try:
        if done.outcome == "moved":
            _remove_old_images(session, channel)
    except Exception as error:
        reason = _joined(done.reason, f"old images are not removed: {_reason(session, error)}")
        return done.model_copy(update={"reason": reason})
    return done


def _joined(*parts: str) -> str:
    return "\n".join(part for part in parts if part)


def _update_channel(
    session: BuildSession,
    channel: Channel,
    sources: SourceSession,
    repository: Repository,
    progress: _Progress,
) -> None:
    """Move a channel to an image of its newest upstream, unless it is there or is held."""
    before = progress.digest
    progress.target = newest(channel, sources.repositories)
    frozen = _frozen(session, channel, sources, progress.target)
    digest, kernels = publish(session, frozen, repository, before, sources.context.work)
    if digest == before:
        progress.outcome, progress.kernels = "unchanged", kernels
        return
    trust = trust_of(session.settings, sources.context.work)
    held = _held(repository, channel.tag, digest, trust)
    if held:
        progress.outcome, progress.reason = "held", held
        return
    name, budget = channel.entry.name, channel.entry.recipe.budget.update
    hint = (
        "`builder compare` shows the layers; to move the tag all the same: "
        f"`builder tag promote {name} {channel.tag} --to {digest} --reason TEXT`"
    )

    def approve(updates: Sequence[Update]) -> None:
        require_within(updates, budget, session.log, f"{channel.tag} is not moved", hint)

    with lock_tags(session):
        done = tags.move(
            repository,
            channel.tag,
            digest,
            f"nightly run of {frozen.name}",
            "night",
            before,
            trust=trust,
            approve=approve,
        )
    # It is unchanged where another machine has moved it to the same image in the meantime.
    progress.outcome = "moved" if done.before != digest else "unchanged"
    progress.digest, progress.kernels, progress.update = digest, kernels, done.update


def _frozen(
    session: BuildSession, channel: Channel, sources: SourceSession, target: NamedCommit
) -> FrozenRecipe:
    """The frozen recipe of a run, without the patches that upstream contains.

    Raises ``PatchError`` where another patch does not apply.
    """
    frozen = frozen_channel(session.catalog, channel, target, sources.repositories)
    frozen, unfit = snapshot.fitted(frozen, sources)
    if unfit:
        raise PatchError(
            f"{len(unfit)} of the patches of {channel.entry.name} do not apply to {target.name}",
            "\n".join(_line(found) for found in unfit),
            f"`builder patch check {channel.entry.name}` shows what changed in the patched files",
        )
    frozen.write(session.settings.state_dir / "frozen")
    return frozen


def _line(found: PatchFinding) -> str:
    return f"{found.patch}: {found.state}: {'; '.join((*found.details, *found.commits))}"


def _held(repository: Repository, tag: str, digest: str, trust: Trust) -> str:
    """Why a channel must not move to an image: a person moved it away from there.  Or empty.

    Where upstream itself went back the channel does so too, unless it was moved away by hand.
    """
    known = past_moves(repository, tag, trust)
    seen = {each for move in known for each in (move.digest, move.before)}
    decision = next((move for move in known if move.before == digest), None)
    if decision is None or decision.by != "rollback":
        decision = known[0] if digest in seen and known[0].by != "night" else None
    if decision is None:
        return ""
    return f"it was rolled back from {digest}: {reason_of(repository, decision, trust)}"


def _remove_old_images(session: BuildSession, channel: Channel) -> None:
    """Untag the older images of a channel in the engine, which removes them.

    Each platform keeps its newest ones.
    """
    names = {each.tag for each in channels(session.catalog, session.settings)}
    images: dict[str, list[docker.Image]] = defaultdict(list)
    for name in docker.image_names(f"{channel.repository}:{channel.tag}-*"):
        tag = name.rpartition(":")[2]
        found = docker.image(name) if is_nightly(tag, channel.tag, names) else None
        if found is not None:
            images[found.platform].append(found)
    for platform, nights in images.items():
        nights.sort(key=lambda found: _built_at(session, found), reverse=True)
        for found in nights[KEPT:]:
            version = found.reference.rpartition("-")[0]
            beside = f"{version}-{platform.partition('/')[2]}"  # of several platforms
            for name in {found.reference, *(found.names & {version, beside})}:
                docker.untag(name)


def _built_at(session: BuildSession, found: docker.Image) -> str:
    """When this machine built an image; without a record, the time of its newest input."""
    recipe, key = found.labels.get(LABEL_RECIPE, ""), found.labels.get(LABEL_KEY, "")
    kept = record.read(session.settings.state_dir, recipe, key)
    return kept.created if kept else found.labels.get(CREATED, "")


def require_good(runs: Sequence[NightlyRun]) -> None:
    """Raise ``NightError`` with every channel that failed."""
    failed = [each for each in runs if not each.good]
    if failed:
        raise NightError(
            f"{len(failed)} of {len(runs)} channels failed in this nightly run",
            "\n".join(f"{each.recipe}: {each.reason}" for each in failed),
            "`builder status` shows where the channels are",
        )
