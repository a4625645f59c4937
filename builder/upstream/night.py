"""A nightly run: freeze the newest upstream, build, check and push it, and move the channel last.

Channels are independent: a failure stops one channel, whose tag then stays where it is.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

from builder.build import crashes, record
from builder.build.session import BuildSession
from builder.core.errors import BuilderError, NightError, PatchError
from builder.core.files import named_lock, workspace
from builder.docker import engine as docker
from builder.engines.layout import CREATED, LABEL_KEY, LABEL_RECIPE
from builder.image.summary import KernelSummary
from builder.publish import tags
from builder.publish.nights import LONGEST_REASON, NightlyRun, Outcome, compared, write
from builder.publish.registry import Repository
from builder.publish.survey import is_nightly
from builder.publish.tag_history import past_moves, reason_of
from builder.publish.update_size import Update, require_within
from builder.publish.verdicts import Trust, require_signing, trust_of
from builder.recipes.catalog import BrokenEntry
from builder.recipes.edit import NamedCommit
from builder.upstream import channels, snapshot
from builder.upstream.channels import Channel
from builder.upstream.patch_state import PatchFinding
from builder.upstream.published import lock_tags, publish
from builder.upstream.session import SourceSession, open_session
from builder.upstream.snapshot import FrozenRecipe

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
    found = channels.channels(session.catalog, session.settings, names)
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
    known = crashes.as_builder_error(error)
    if known is None:
        session.log(f"internal error: the report is {crashes.write_report(error)}")
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
    progress.target = channels.newest(channel, sources.repositories)
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
    frozen = channels.frozen(session.catalog, channel, target, sources.repositories)
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
    names = {each.tag for each in channels.channels(session.catalog, session.settings)}
    images: dict[str, list[docker.Image]] = defaultdict(list)
    for name in docker.image_names(f"{channel.repository}:{channel.tag}-*"):
        tag = name.rpartition(":")[2]
        found = docker.image(name) if is_nightly(tag, channel.tag, names) else None
        if found is not None:
            images[found.platform].append(found)
    for platform, nights in images.items():
        nights.sort(key=lambda found: _built(session, found), reverse=True)
        for found in nights[KEPT:]:
            version = found.reference.rpartition("-")[0]
            beside = f"{version}-{platform.partition('/')[2]}"  # of several platforms
            for name in {found.reference, *(found.names & {version, beside})}:
                docker.untag(name)


def _built(session: BuildSession, found: docker.Image) -> str:
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
