"""Deletes old nightlies of a channel, as ``prune_plan`` decided.

An image is deleted before its attachments, so that an image that has to stay after all is complete.
The attachments are listed in a file first: without the image nothing points to them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from builder.errors import WorldError
from builder.publish.prune_plan import PrunePlan, plan
from builder.publish.survey import ATTACHED, SurveyedImage, entries_of, images_among, survey
from builder.publish.tags import NIGHTLY, TAGS
from builder.publish.verdicts import trust_of
from builder.recipes.schema import Recipe
from builder.settings import Settings
from builder.tools.files import named_lock, workspace, write_json
from builder.tools.log import Log
from builder.tools.registry.client import Repository
from builder.tools.registry.credentials import HUB
from builder.tools.registry.hub import Hub
from builder.tools.web.json_model import first_error


class Deletion(BaseModel):
    """An image that is being deleted, as a file keeps it until all its parts are deleted."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")

    tags: tuple[str, ...]
    manifests: tuple[str, ...]
    """Digests: the image's own, then the digests of the manifests that it lists, if it is an
    index."""
    attached: tuple[str, ...]
    """Digests."""
    attached_tags: tuple[str, ...]


def path_of(state_dir: Path, repository: Repository) -> Path:
    """The file that keeps the deletion that is in progress in a repository."""
    return state_dir / "prune" / f"{re.sub(r'[^a-z0-9._-]', '_', repository.name)}.json"


def _interrupted(file: Path) -> Deletion | None:
    """The deletion that an earlier run did not finish.

    Raises ``WorldError`` where its file cannot be read.
    """
    try:
        return Deletion.model_validate_json(file.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValidationError) as error:
        why = first_error(error) if isinstance(error, ValidationError) else error.strerror
        raise WorldError(
            "the unfinished deletion of an earlier run cannot be read",
            f"{file}: {why}",
            "delete the file: attachments of one deleted image then stay in the registry",
        ) from error


@dataclass(frozen=True, slots=True)
class Pruned:
    """The outcome of a prune."""

    plan: PrunePlan
    deleted: tuple[str, ...]
    """The tags that were deleted."""
    on_hub: bool


def prune(
    repository: Repository,
    channel: str,
    keep: int,
    recipes: Iterable[Recipe],
    settings: Settings,
    log: Log,
    *,
    signed: bool = False,
    dry_run: bool = True,
) -> Pruned:
    """Delete all nightlies of a channel but the newest ``keep`` and the nightlies in use.

    The targets of ``keep`` rollbacks, one after the other, are in use.

    ``recipes`` are the recipes of the repository: their versions and tags are no nightlies;
    ``signed`` deletes signed images, too.  Raises ``BusyError`` where another run on this machine
    gives or deletes tags, and like ``delete``.
    """
    names = {
        name
        for recipe in recipes
        for name in (recipe.version, *recipe.image.tags, *recipe.image.moving)
    }
    settings.require_directories()
    file = path_of(settings.state_dir, repository)
    on_hub = repository.registry == HUB
    deleted: tuple[str, ...] = ()
    with ExitStack() as held:
        for lock in () if dry_run else (NIGHTLY, TAGS):
            held.enter_context(named_lock(settings.cache_dir, lock))
        work = held.enter_context(workspace(settings.cache_dir))
        images = survey(repository, channel, trust_of(settings, work))
        decided = plan(images, channel, keep, signed=signed, names=names)
        if not dry_run and on_hub:
            deleted = delete_tags(repository, Hub(settings.hub_api, log), decided, file, log)
        elif not dry_run:
            deleted = delete(repository, decided, file, log)
    return Pruned(decided, deleted, on_hub)


Stays = Callable[[SurveyedImage], bool]
Delete = Callable[[Deletion, Collection[str]], None]


def _run(plan: PrunePlan, file: Path, log: Log, stays: Stays, delete: Delete) -> tuple[str, ...]:
    """Delete image by image; the tags that were deleted.

    The unfinished deletion of an earlier run is finished first, unless a tag still points to that
    image: then it is treated like any other.
    """
    left = _interrupted(file)
    if left is not None:
        if plan.known.isdisjoint(left.manifests[:1]):
            # Its tags may point to other images by this time.
            delete(left.model_copy(update={"tags": ()}), plan.known)
            log(f"deleted the rest of {', '.join(left.tags)}")
        file.unlink()
    remaining = [*plan.deletions]
    deleted: list[str] = []
    for image in plan.deletions:
        if stays(image):
            continue
        remaining.remove(image)
        deletion = Deletion(
            tags=image.tags,
            manifests=tuple(image.manifests),
            attached=tuple(image.attached),
            attached_tags=image.attached_tags,
        )
        write_json(file, deletion.model_dump())
        # Shared parts are deleted with the last image that has them, which may have to stay.
        delete(deletion, plan.kept.union(*(other.names for other in remaining)))
        file.unlink()
        log(f"deleted {', '.join(image.tags)}")
        deleted += image.tags
    return tuple(deleted)


def delete(repository: Repository, plan: PrunePlan, file: Path, log: Log) -> tuple[str, ...]:
    """Carry out a plan by digest; the tags that were deleted.

    A registry deletes all tags of a digest with it.  So right before each image the tags are listed
    again, and all that may move or are new are looked up, the channel's last: an image that one of
    them points to stays, and so does a part of an image that stays.  The tag of a nightly names one
    build and does not move.  ``file`` keeps the deletion in progress.  Raises ``RegistryError``
    where the registry allows no deletion, ``FetchError``; ``WorldError`` where ``file`` cannot be
    read.
    """
    fixed = {tag for each in plan.candidates for tag in each.tags}

    def stays(image: SurveyedImage) -> bool:
        listed = [tag for tag in images_among(repository.tags()) if not ATTACHED.fullmatch(tag)]
        others = [tag for tag in listed if tag not in fixed | {plan.channel}]
        return _in_use(repository, image, [*others, plan.channel], plan, log)

    def delete(deletion: Deletion, kept: Collection[str]) -> None:
        # An index first: a registry may refuse to delete images that an index lists.
        for digest in (*deletion.manifests, *deletion.attached):
            if digest not in kept:
                repository.delete(digest)

    return _run(plan, file, log, stays, delete)


def _in_use(
    repository: Repository, image: SurveyedImage, tags: Sequence[str], plan: PrunePlan, log: Log
) -> bool:
    """Whether a tag points to an image or to an index that lists it; a line is logged."""
    deleted = image.manifests.keys() - plan.kept
    for tag in tags:
        digest = repository.head_digest(tag)
        reached = {digest}
        if digest not in plan.kept and (found := repository.manifest(tag)):
            reached |= {entry["digest"] for entry in entries_of(found)}
        if not reached.isdisjoint(deleted):
            log(f"{', '.join(image.tags)} stays: {tag} points to it now")
            return True
    return False


def delete_tags(
    repository: Repository, hub: Hub, plan: PrunePlan, file: Path, log: Log
) -> tuple[str, ...]:
    """Carry out a plan on Docker Hub, tag by tag: other tags of an image stay.

    Docker Hub deletes no manifests on request: attachments without a tag stay until it finds them
    unused.  If the channel points to an image once its tags are deleted, the image keeps its
    attachments.  Raises like ``delete``.
    """

    def stays(image: SurveyedImage) -> bool:
        return _in_use(repository, image, [plan.channel], plan, log)

    def delete(deletion: Deletion, kept: Collection[str]) -> None:
        for tag in deletion.tags:
            hub.delete_tag(repository.path, tag)
        for tag in deletion.attached_tags:
            if repository.head_digest(plan.channel) in {*deletion.manifests}.difference(kept):
                log(f"attachments of {deletion.manifests[0]} stay: {plan.channel} points to it")
                return
            if tag not in kept:
                hub.delete_tag(repository.path, tag)

    return _run(plan, file, log, stays, delete)
