"""A night: what moved upstream is frozen, built, smoke-tested, pushed; its channel moves last.

Each channel is a thing of its own: what fails of one stops that one, and leaves it where it was.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path

from builder import pipeline
from builder.errors import BuilderError, NightError, PatchError
from builder.images.release import release
from builder.images.session import BuildSession
from builder.images.verified import find_published
from builder.nightly import channels, history
from builder.nightly.channels import Channel
from builder.nightly.history import Night, Outcome
from builder.publish import push
from builder.publish.attachments import attachments_of
from builder.publish.remote_image import CREATED
from builder.publish.survey import is_nightly
from builder.publish.tag_history import moves
from builder.publish.verdicts import require_signing, trust_of
from builder.recipes.catalog import BrokenEntry
from builder.recipes.edit import Target
from builder.records import crashes
from builder.tools.docker import engine as docker
from builder.tools.files import named_lock, workspace
from builder.tools.registry.client import Repository
from builder.upstream import snapshot
from builder.upstream.patch_state import Finding
from builder.upstream.session import SourceSession, open_session
from builder.upstream.snapshot import Frozen

KEPT = 2
"""Images of a channel's nights that stay in the engine."""


@dataclass
class _Progress:
    """How far a night came; ``digest`` is what the channel leads to."""

    target: Target = field(default_factory=lambda: Target("", "", "commit"))
    digest: str = ""
    outcome: Outcome = "failed"
    reason: str = ""


def tonight(session: BuildSession, names: Sequence[str] = ()) -> Iterator[Night]:
    """Bring the channels of these recipes, or of all, to what their upstream has now.

    One after the other; each is written down in its registry.  Raises ``RecipeError`` for a
    recipe without a channel, ``RegistryError`` where no namespace is set, ``BusyError`` where
    another night goes on, on this machine.
    """
    session.settings.require_directories()
    found = channels.channels(session.catalog, session.settings, names)
    for channel in found:
        push.opened(channel.repository, session.log)  # a setting that lacks fails once
    with workspace(session.settings.cache_dir) as work:
        require_signing(session.settings, work)
    with named_lock(session.settings.cache_dir, push.NIGHTLY):
        for channel in found:
            yield _night(session, channel)
        if not names:
            yield from _wrong(session)


def _wrong(session: BuildSession) -> Iterator[Night]:
    """Of a recipe that cannot be read nobody knows whether it has a channel."""
    for entry in session.catalog.engines.values():
        if isinstance(entry, BrokenEntry):
            yield Night(entry.name, "", "failed", _now(), 0.0, reason=str(entry.problems[0]))


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def _night(session: BuildSession, channel: Channel) -> Night:
    """One channel, from what upstream has to what the registry serves.

    Where the registry cannot be asked at all, or has another time, nothing is written down.
    """
    started, clock = _now(), time.monotonic()
    progress = _Progress()
    repository: Repository | None = None
    try:
        channel.need_alone()
        opened = push.opened(channel.repository, session.log)
        progress.digest = opened.head_digest(channel.tag)
        opened.require_clock()
        opened.require_push()
        repository = opened
        with open_session(
            session.catalog, session.settings, session.log, offline=session.options.offline
        ) as at:
            _move_on(session, channel, at, repository, progress)
    except Exception as error:
        progress.reason = _reason(session, error)
    night = Night(
        channel.entry.name,
        channel.tag,
        progress.outcome,
        started,
        round(time.monotonic() - clock, 1),
        progress.target.name,
        progress.target.commit,
        progress.digest,
        progress.reason,
    )
    return _finished(session, channel, repository, night)


def _reason(session: BuildSession, error: Exception) -> str:
    """Why a night failed, as everybody may read it; of a fault of ours the report stays here."""
    known = crashes.as_builder_error(error)
    if known is None:
        session.log(f"a fault of builder itself: the report is {crashes.write_report(error)}")
        known = BuilderError(f"a fault of builder itself: {type(error).__name__}: {error}")
    text = str(known)
    return text if len(text) <= history.LONGEST_REASON else f"{text[: history.LONGEST_REASON]} ..."


def _finished(
    session: BuildSession, channel: Channel, repository: Repository | None, night: Night
) -> Night:
    """Write a night down, and tidy up after it.

    A night that nobody can read about has failed; what fails of tidying up changes nothing.
    """
    if repository is None:
        return night
    try:
        history.write(repository, night)
    except Exception as error:
        unwritten = f"the night could not be written down: {_reason(session, error)}"
        return replace(night, outcome="failed", reason=_joined(unwritten, night.reason))
    try:
        if night.outcome == "moved":
            _tidy(session, channel)
    except Exception as error:
        return replace(
            night, reason=_joined(night.reason, f"afterwards: {_reason(session, error)}")
        )
    return night


def _joined(*parts: str) -> str:
    return "\n".join(part for part in parts if part)


def _move_on(
    session: BuildSession,
    channel: Channel,
    at: SourceSession,
    repository: Repository,
    progress: _Progress,
) -> None:
    """Have the channel lead to an image of what upstream has, unless it does, or must not."""
    before = progress.digest
    progress.target = channels.newest(channel, at.repositories)
    frozen = _frozen(session, channel, at, progress.target)
    digest = _image(session, frozen, repository, at.context.work)
    if digest == before:
        progress.outcome = "unchanged"
        return
    held = _held(repository, channel.tag, digest)
    if held:
        progress.outcome, progress.reason = "held", held
        return
    with _tags_locked(session):
        reason = f"night of {frozen.name}"
        done = push.move(repository, channel.tag, digest, reason, "night", before)
    # Where another machine's night has moved it to the same image, this one has nothing to do.
    progress.outcome = "moved" if done.before != digest else "unchanged"
    progress.digest = digest


def _tags_locked(session: BuildSession) -> AbstractContextManager[None]:
    """Nobody on this machine gives a tag by hand meanwhile; where somebody does, it is waited."""
    return named_lock(session.settings.cache_dir, push.TAGS, wait=session.log)


def _frozen(session: BuildSession, channel: Channel, at: SourceSession, target: Target) -> Frozen:
    """The recipe of tonight, without the patches that upstream has.

    Raises ``PatchError`` where another one does not fit.
    """
    frozen = channels.frozen(session.catalog, channel, target, at.repositories)
    frozen, unfit = snapshot.fitted(frozen, at)
    if unfit:
        raise PatchError(
            f"{len(unfit)} of the patches of {channel.entry.name} do not fit {target.name}",
            "\n".join(_line(found) for found in unfit),
            f"`builder patch check {channel.entry.name}` shows what changed below them",
        )
    frozen.write(session.settings.state_dir / "frozen")
    return frozen


def _line(found: Finding) -> str:
    return f"{found.patch}: {found.state}: {'; '.join((*found.details, *found.commits))}"


def _image(session: BuildSession, frozen: Frozen, repository: Repository, work: Path) -> str:
    """The digest of a frozen recipe's image in the registry: the one there, or a new one."""
    tonight = replace(session, catalog=frozen.catalog)
    image = tonight.resolve(frozen.name)
    there = find_published(tonight, image, repository, work)
    if there is not None:
        if there.record is not None:
            trust = trust_of(session.settings, work)
            attachments = attachments_of(image, there.record, frozen.files, work)
            push.vouch(repository, there.record, trust, attachments, session.log)
        return there.digest
    record = pipeline.build(image, session.options, session.reporter).record
    tags = push.Tags(repository.name, image.immutable_tag, (), ())
    folder = work / "release"
    folder.mkdir()
    with _tags_locked(session):
        return release(tonight, image, record, tags, folder, frozen.files).digest


def _held(repository: Repository, tag: str, digest: str) -> str:
    """Why a channel must not be moved to an image: somebody took it back from there.  Or empty.

    Where upstream itself went back, the channel does as well, but for what was taken back by hand.
    """
    known = moves(repository, tag)
    been = {each for move in known for each in (move.digest, move.before)}
    decided = next((move for move in known if move.before == digest), None)
    if decided is None or not decided.back:
        decided = known[0] if digest in been and not known[0].by_night else None
    return f"it was taken back from {digest}: {decided.reason}" if decided else ""


def _tidy(session: BuildSession, channel: Channel) -> None:
    """Take the names of older nights' images out of the engine, which removes the images."""
    names = {each.tag for each in channels.channels(session.catalog, session.settings)}
    ages = {}
    for name in docker.image_names(f"{channel.repository}:{channel.tag}-*"):
        tag = name.rpartition(":")[2]
        found = docker.image(name) if is_nightly(tag, channel.tag, names) else None
        if found is not None:
            ages[name] = found.labels.get(CREATED, "")
    for name in sorted(ages, key=lambda name: ages[name], reverse=True)[KEPT:]:
        docker.untag(name)
        docker.untag(name.rpartition("-")[0])


def require_good(nights: Sequence[Night]) -> None:
    """Raise ``NightError`` with every channel that failed."""
    failed = [night for night in nights if not night.good]
    if failed:
        raise NightError(
            f"{len(failed)} of {len(nights)} channels failed this night",
            "\n".join(f"{night.recipe}: {night.reason}" for night in failed),
            "`builder status` shows where the channels are",
        )
