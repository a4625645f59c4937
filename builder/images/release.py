"""Publishes a verified image with its attachments and its tags."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from builder.errors import TagMovedError
from builder.images.session import BuildSession
from builder.images.verified import Verified, find_published
from builder.plan.rendered import EngineImage
from builder.publish import push
from builder.publish.attachments import attachments_of
from builder.publish.push import Published, Pushing
from builder.publish.tags import Tags, open_repository
from builder.publish.upload import LocalImage
from builder.publish.verdicts import require_signing, trust_of
from builder.records.record import Record
from builder.tools.registry.client import Repository


@dataclass(frozen=True, slots=True)
class Release:
    """An image to publish."""

    image: EngineImage
    record: Record
    """The record of its good verdict."""
    tags: Tags
    recipe: Mapping[str, str]
    """The texts of the recipe's files, by their paths below ``recipes/``."""
    replace: str | None = None
    """The reason to take an immutable or a version tag from another image."""
    over_budget: str | None = None
    """The reason why an update may exceed its budget."""


def release(session: BuildSession, wanted: Release, work: Path) -> Published:
    """Push an image with its attachments, then give it its tags.

    ``work`` is an empty directory.  Where another machine gives the immutable tag to its own image
    of the same key at the same time, that image gets the other tags.  Raises like ``publish.push``
    and ``find_published``.
    """
    require_signing(session.settings, work)
    repository = open_repository(wanted.image.repository, session.log)
    try:
        return _push(session, repository, wanted, work / "first")
    except TagMovedError as error:
        digest = repository.head_digest(wanted.tags.immutable)
        if wanted.replace is not None or digest == wanted.record.digest:
            raise
        session.log(f"{error.what}: trying again with the image that it points to")
        return _push(session, repository, wanted, work / "second")


def _push(session: BuildSession, repository: Repository, wanted: Release, work: Path) -> Published:
    work.mkdir()
    tags, image = wanted.tags, wanted.image
    known = frozenset(repository.tags())
    found = None
    if wanted.replace is None and tags.immutable in known:
        found = find_published(session, image, repository, work)
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
    there, verified = (found.digest, found.record) if found else ("", wanted.record)
    return Pushing(
        work,
        session.log,
        trust_of(session.settings, work),
        attachments_of(wanted.image, verified or wanted.record, wanted.recipe, work),
        wanted.replace,
        there,
        verified,
        known,
        wanted.image.plan.recipe.budget.update,
        wanted.over_budget,
        local,
    )
