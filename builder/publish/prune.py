"""Deletes old nightlies of a channel, as ``prune_plan`` decided.

The attachments of an image are deleted before the image itself: a run that was interrupted leaves
an image that the next run finds again.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import dataclass

from builder.core.files import named_lock, workspace
from builder.core.log import Log
from builder.core.settings import Settings
from builder.docker.engine import HUB
from builder.publish.hub import Hub
from builder.publish.prune_plan import PrunePlan, plan
from builder.publish.registry import Repository
from builder.publish.survey import SurveyedImage, entries_of, images_among, survey
from builder.publish.tags import NIGHTLY, TAGS
from builder.publish.verdicts import trust_of
from builder.recipes.schema import Recipe


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
    on_hub = repository.registry == HUB
    deleted: tuple[str, ...] = ()
    with ExitStack() as held:
        for lock in () if dry_run else (NIGHTLY, TAGS):
            held.enter_context(named_lock(settings.cache_dir, lock))
        work = held.enter_context(workspace(settings.cache_dir))
        images = survey(repository, channel, trust_of(settings, work))
        decided = plan(images, channel, keep, signed=signed, names=names)
        if not dry_run:
            hub = Hub(settings.hub_api, log) if on_hub else None
            deleted = delete(repository, decided, log, hub)
    return Pruned(decided, deleted, on_hub)


def delete(
    repository: Repository, plan: PrunePlan, log: Log, hub: Hub | None = None
) -> tuple[str, ...]:
    """Carry out a plan, image by image; the tags that were deleted.

    A registry deletes all tags of a digest with it.  So right before each image all tags that may
    move or are new are looked up, the channel's last: an image that one of them points to stays,
    and so does a part of an image that stays.  The tag of a nightly names one build and does not
    move.

    On Docker Hub tags are deleted one by one, and other tags of an image stay.  It deletes no
    manifests on request: attachments without a tag stay until it finds them unused.

    Raises ``RegistryError`` where the registry allows no deletion, ``FetchError``.
    """
    fixed = {tag for each in plan.candidates for tag in each.tags}
    gone: dict[str, SurveyedImage] = {}
    for image in plan.deletions:
        # On Docker Hub, an image that has another tag keeps its manifest anyway.
        listed = [] if hub else images_among(repository.tags())
        tags = [*(tag for tag in listed if tag not in fixed | {plan.channel}), plan.channel]
        if (tag := _tag_of(repository, image, tags, plan)) is not None:
            log(f"{', '.join(image.tags)} stays: {tag} points to it now")
            continue
        # Shared parts are deleted with the last image that has them, which may have to stay.
        left = (each for each in plan.deletions if each.digest not in {image.digest, *gone})
        kept = plan.kept.union(*(each.names for each in left))
        attached = image.attached_tags if hub else [*image.attached][::-1]  # lists of others last
        _delete(repository, [name for name in attached if name not in kept], hub)
        if _tag_of(repository, image, [plan.channel], plan) is not None:
            log(f"{', '.join(image.tags)} stays, without its attachments: push it again")
            continue
        # An index before its images: a registry may refuse to delete what an index lists.
        own = image.tags if hub else [each for each in image.manifests if each not in kept]
        _delete(repository, own, hub)
        log(f"deleted {', '.join(image.tags)}")
        gone[image.digest] = image
    return tuple(tag for image in gone.values() for tag in image.tags)


def _delete(repository: Repository, names: Iterable[str], hub: Hub | None) -> None:
    """Delete manifests by digest, or on Docker Hub tags."""
    for name in names:
        if hub is not None:
            hub.delete_tag(repository.path, name)
        else:
            repository.delete(name)


def _tag_of(
    repository: Repository, image: SurveyedImage, tags: Iterable[str], plan: PrunePlan
) -> str | None:
    """A tag that points to an image or to an index that lists it; None: there is none."""
    deleted = image.manifests.keys() - plan.kept
    for tag in tags:
        digest = repository.head_digest(tag)
        reached = {digest}
        if digest not in plan.kept and (found := repository.manifest(tag)):
            reached |= {entry["digest"] for entry in entries_of(found)}
        if not reached.isdisjoint(deleted):
            return tag
    return None
