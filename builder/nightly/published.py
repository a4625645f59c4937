"""The images of a frozen recipe in the registry: those that are there, or new ones."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path

from builder import pipeline
from builder.errors import BuilderError
from builder.images.release import Release, release
from builder.images.release_index import index_release, release_index
from builder.images.session import BuildSession
from builder.images.verified import Verified, find_published
from builder.kernels.summary import KernelSummary
from builder.plan.rendered import EngineImage
from builder.publish import push, tags
from builder.publish.attachments import attachments_of
from builder.publish.verdicts import trust_of
from builder.records.record import Record
from builder.tools.files import named_lock
from builder.tools.registry.client import Repository
from builder.upstream.snapshot import FrozenRecipe

WORST = 10
"""Spilling kernels of each library that a run keeps."""


def publish(
    session: BuildSession, frozen: FrozenRecipe, repository: Repository, work: Path
) -> tuple[str, KernelSummary | None]:
    """The digest of a frozen recipe's image in the registry: the verified one, or a new one.

    Of several platforms, that of the index of their images.  With the kernels of the image, of the
    first platform, where this machine has its record.  Raises like ``pipeline.build``, ``release``
    and ``find_published``.
    """
    session = replace(session, catalog=frozen.catalog)
    images = session.images(frozen.name)
    if len(images) > 1:
        return _index(session, frozen, images, repository, work)
    (image,) = images
    there = find_published(session, image, repository, work)
    if there is not None:
        if there.record is not None:
            trust = trust_of(session.settings, work)
            attachments = attachments_of(image, there.record, frozen.files, work)
            push.vouch(repository, there.record, trust, attachments, session.log)
        return there.digest, _kernels(there.record)
    record = pipeline.build(image, session.options, session.reporter).record
    folder = work / "release"
    folder.mkdir()
    wanted = Release(image, record, tags.Tags(image.immutable_tag, (), ()), frozen.files)
    with lock_tags(session):
        return release(session, wanted, folder).digest, _kernels(record)


def _index(
    session: BuildSession,
    frozen: FrozenRecipe,
    images: tuple[EngineImage, ...],
    repository: Repository,
    work: Path,
) -> tuple[str, KernelSummary | None]:
    """The digest of the index of several images; none is pushed unless all are verified."""
    results: list[Verified | pipeline.Outcome | BuilderError] = []
    for image in images:
        folder = work / image.plan.platforms.target
        folder.mkdir()
        there = find_published(session, image, repository, folder)
        built = pipeline.build_all([image], session.options, session.reporter) if not there else []
        results += [there] if there else built
    pipeline.require_all(images, results)
    first = results[0]
    record = first.record if not isinstance(first, BuilderError) else None
    folder = work / "release"
    folder.mkdir()
    wanted = index_release(images, frozen.files, only_immutable=True)
    with lock_tags(session):
        return release_index(session, wanted, folder).digest, _kernels(record)


def lock_tags(session: BuildSession) -> AbstractContextManager[None]:
    """Wait until no other process of this machine moves tags, and keep others from it."""
    return named_lock(session.settings.cache_dir, tags.TAGS, wait=session.log)


def _kernels(record: Record | None) -> KernelSummary | None:
    found = record.verdict.kernels if record else None
    return found.shortened(WORST) if found else None
