"""The images of a frozen recipe in the registry: existing images, or new ones."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path

from builder.build import build as pipeline
from builder.build.record import Record
from builder.build.session import BuildSession
from builder.core.errors import BuilderError, UnvouchedError
from builder.core.files import named_lock
from builder.image.summary import KernelSummary
from builder.plan.plan import Plan
from builder.publish import tags
from builder.publish.push import key_of_index, push_image, push_index
from builder.publish.registry import Repository
from builder.publish.verified import Verified, built_here, find_published
from builder.upstream.snapshot import FrozenRecipe

WORST = 10
"""Spilling kernels of each library that a run keeps."""


def publish(
    session: BuildSession, frozen: FrozenRecipe, repository: Repository, serves: str, work: Path
) -> tuple[str, KernelSummary | None]:
    """The digest of a frozen recipe's image in the registry: of an existing image, or of a new one.

    For several platforms, the tag of the index of their images.  With the kernels of the image, of
    the first platform, where this machine built it.  The image that the channel ``serves`` already
    (a digest) needs no trust, for nothing moves.  Raises like ``pipeline.build``, ``push_image``.
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
