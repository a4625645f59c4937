"""Publishes a verified image with its attachments and its tags."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from builder.errors import TagMovedError
from builder.pipeline.session import BuildSession
from builder.plan.plan import Plan
from builder.publish import push
from builder.publish.attachments import attachments_of
from builder.publish.push import Pushed, Pushing
from builder.publish.tags import Tags, open_repository
from builder.publish.upload import LocalImage
from builder.publish.verdicts import require_signing, trust_of
from builder.publish.verified import Verified, find_published, require_built_here
from builder.records import ptx
from builder.records.record import Record
from builder.tools.log import Log
from builder.tools.registry.client import Repository


@dataclass(frozen=True, slots=True)
class Release:
    """An image to publish."""

    plan: Plan
    record: Record
    """The record of its good verdict."""
    tags: Tags
    recipe: Mapping[str, str]
    """The texts of the recipe's files, by their paths below ``recipes/``."""
    replace: str | None = None
    """The reason to take an immutable or a version tag from another image."""
    over_budget: str | None = None
    """The reason why an update may exceed its budget."""
    dropped: tuple[str, ...] = ()
    """Platforms that tags may lose."""


def release(session: BuildSession, wanted: Release, work: Path) -> Pushed:
    """Push an image with its attachments, then give it its tags.

    ``work`` is an empty directory.  Where another machine gives the immutable tag to its own image
    of the same key at the same time, that image gets the other tags, if it counts.  Raises like
    ``publish.push``, ``find_published`` and ``require_built_here``.
    """
    require_signing(session.settings, work)
    repository = open_repository(wanted.plan.repository, session.log)
    immutable = () if wanted.replace is not None else (wanted.tags.immutable,)
    push_once = partial(_push, session, repository, wanted)
    return push_again_where_moved(push_once, immutable, session.log, work)


def push_again_where_moved(
    push_once: Callable[[Path], Pushed], immutable: Collection[str], log: Log, work: Path
) -> Pushed:
    """Push; once more where another machine gave one of the immutable tags meanwhile.

    Then its image of the same key counts.  Another tag that was moved stays where it is: that move
    was decided later.  Raises like ``push_once``.
    """
    try:
        return push_once(work / "first")
    except TagMovedError as error:
        if error.tag not in immutable:
            raise
        log(f"{error.what}: looking again at the image that it points to")
    return push_once(work / "second")


def _push(session: BuildSession, repository: Repository, wanted: Release, work: Path) -> Pushed:
    work.mkdir()
    tags, plan = wanted.tags, wanted.plan
    known = frozenset(repository.tags())
    found = None
    if wanted.replace is None and tags.immutable in known:
        found = find_published(session, plan, repository, work)
    if found is None:
        require_built_here(wanted.record)
    how = pushing(session, wanted, found, known, work)
    return push.push(repository, wanted.record, tags, how)


def pushing(
    session: BuildSession,
    wanted: Release,
    found: Verified | None,
    known: frozenset[str],
    work: Path,
    local: LocalImage | None = None,
) -> Pushing:
    """How an image is pushed; ``found`` is the registry's verified image of its key.

    ``known`` are the tags of the repository, ``local`` the engine's image where it has been read.
    """
    state, plan = session.settings.state_dir, wanted.plan
    file = ptx.path_of(state, plan.name, plan.key)
    record = (found and found.record) or wanted.record
    return Pushing(
        work,
        session.log,
        trust_of(session.settings, work),
        attachments_of(plan, record, wanted.recipe, work, file),
        wanted.replace,
        found,
        known,
        plan.recipe.budget.update,
        wanted.over_budget,
        local,
        wanted.dropped,
    )
