"""A verified image goes to its registry, with all that belongs to it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from builder.errors import TagMovedError
from builder.images.session import BuildSession
from builder.images.verified import find_published
from builder.plan.rendered import EngineImage
from builder.publish import push
from builder.publish.attachments import attachments_of
from builder.publish.push import Published, Pushing, Tags
from builder.publish.verdicts import require_signing, trust_of
from builder.records.record import Record


def release(
    session: BuildSession,
    image: EngineImage,
    record: Record,
    tags: Tags,
    work: Path,
    recipe: Mapping[str, str],
    replace: str | None = None,
) -> Published:
    """Push a verified image with all that belongs to it, then give it its tags.

    ``work`` is an empty directory; ``recipe`` has the texts of the recipe's files by their paths
    below ``recipes/``.  Where another machine gives the immutable tag to its own image of the same
    key in the meantime, that one is taken.  Raises like ``publish.push`` and ``find_published``.
    """
    require_signing(session.settings, work)
    folders = [work / "once", work / "again"]
    for folder in folders:
        folder.mkdir()
    try:
        return _released(session, image, record, tags, folders[0], recipe, replace)
    except TagMovedError as error:
        repository = push.opened(tags.repository, session.log)
        if replace is not None or repository.head_digest(tags.own) == record.digest:
            raise
        session.log(f"{error.what}: looking again")
        return _released(session, image, record, tags, folders[1], recipe, None)


def _released(
    session: BuildSession,
    image: EngineImage,
    record: Record,
    tags: Tags,
    work: Path,
    recipe: Mapping[str, str],
    replace: str | None,
) -> Published:
    repository = push.opened(tags.repository, session.log)
    known = frozenset(repository.tags())
    found = None
    if replace is None and tags.own in known:
        found = find_published(session, image, repository, work)

    there, verified = (found.digest, found.record) if found else ("", record)
    attachments = attachments_of(image, verified or record, recipe, work)
    trust = trust_of(session.settings, work)
    how = Pushing(work, session.log, trust, attachments, replace, there, verified, known)
    return push.push(record, tags, how)
