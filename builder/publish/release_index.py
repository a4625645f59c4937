"""Publishes the images of a recipe's platforms, and one index of them, which gets the tags.

Nothing is uploaded before each platform has a verified image, here or in the registry, and before
the updates of all are within their budget.  The images come first, each with its attachments and
its immutable tag; then the index, signed, and its tags.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from builder.errors import RegistryError, WorldError
from builder.families.layout import LABEL_KEY, VERSION
from builder.pipeline.lookup import Images
from builder.pipeline.session import BuildSession
from builder.plan.plan import Plan
from builder.publish import push
from builder.publish.push import Pushed
from builder.publish.push_tags import PushTags, push_tags
from builder.publish.referrers import attach_all, referrers
from builder.publish.release import Release, push_again_where_moved, pushing
from builder.publish.remote_image import PlatformImage, configuration
from builder.publish.tags import Tags, open_repository, tags_of_key
from builder.publish.update_size import Update
from builder.publish.upload import LocalImage, local_image
from builder.publish.verdicts import require_signing, trust_of
from builder.publish.verified import Verified, find_published, require_built_here
from builder.records.record import Record
from builder.tools.registry.client import Manifest, Repository
from builder.tools.registry.responses import INDEX


@dataclass(frozen=True, slots=True)
class IndexRelease:
    """The images of a recipe to publish, one for each of its platforms."""

    plans: tuple[Plan, ...]
    recipe: Mapping[str, str]
    """The texts of the recipe's files, by their paths below ``recipes/``."""
    tags: Tags
    """The index's."""
    replace: str | None = None
    """The reason to take an immutable or a version tag from something else."""
    over_budget: str | None = None
    """The reason why an update may exceed its budget."""
    dropped: tuple[str, ...] = ()
    """Platforms that tags may lose."""

    @property
    def name(self) -> str:
        """The recipe's."""
        return self.plans[0].name


def key_of_index(plans: Sequence[Plan]) -> str:
    """The key of the index of a recipe's images: sha256 (hex) over their platforms and keys."""
    keys = [(plan.platform, plan.key) for plan in plans]  # in the recipe's order
    return hashlib.sha256(json.dumps(keys, separators=(",", ":")).encode()).hexdigest()


def image_index(images: Mapping[str, Manifest], version: str, key: str) -> Manifest:
    """The index of images by platform, in that order; the same images give the same bytes."""
    content = {
        "schemaVersion": 2,
        "mediaType": INDEX,
        "manifests": [_entry(platform, image) for platform, image in images.items()],
        "annotations": {VERSION: version, LABEL_KEY: key},
    }
    return Manifest(json.dumps(content, indent=1).encode(), INDEX)


def _entry(platform: str, image: Manifest) -> dict[str, Any]:
    system, _, architecture = platform.partition("/")
    return {
        "mediaType": image.media_type,
        "digest": image.digest,
        "size": len(image.content),
        "platform": {"architecture": architecture, "os": system},
    }


def index_release(
    plans: tuple[Plan, ...],
    recipe: Mapping[str, str],
    replace: str | None = None,
    over_budget: str | None = None,
    dropped: tuple[str, ...] = (),
    *,
    only_immutable: bool = False,
) -> IndexRelease:
    """The release of a recipe's images; ``only_immutable``: the index gets no other tag."""
    tags = tags_of_key(plans[0].recipe, key_of_index(plans))
    if only_immutable:
        tags = Tags(tags.immutable, (), ())
    return IndexRelease(plans, recipe, tags, replace, over_budget, dropped)


@dataclass(frozen=True, slots=True)
class _Source:
    """The verified image of one platform: the registry's, else the engine's."""

    plan: Plan
    manifest: Manifest
    config: Mapping[str, object]
    there: Verified | None
    """The registry's; None: it has none."""
    record: Record | None
    """This machine's; None: it has no verified image of that key."""
    local: LocalImage | None


def release_index(session: BuildSession, wanted: IndexRelease, work: Path) -> Pushed:
    """Push the image of each platform, then their index, which gets the tags.

    ``work`` is an empty directory.  Raises like ``release``; ``WorldError`` also where a platform
    has no verified image, here or in the registry.
    """
    require_signing(session.settings, work)
    repository = open_repository(wanted.plans[0].repository, session.log)
    immutable = [plan.immutable_tag for plan in wanted.plans if wanted.replace is None]
    push_once = partial(_push, session, repository, wanted)
    return push_again_where_moved(push_once, immutable, session.log, work)


def _push(
    session: BuildSession, repository: Repository, wanted: IndexRelease, work: Path
) -> Pushed:
    work.mkdir()
    known = frozenset(repository.tags())
    sources = _sources(session, repository, wanted, known, work)
    manifests: dict[str, Manifest] = {each.plan.platform: each.manifest for each in sources}
    version, key = wanted.plans[0].recipe.version, key_of_index(wanted.plans)
    index = image_index(manifests, version, key)
    order = push_tags(repository, wanted.name, wanted.tags, index.digest, known)
    order.require_free(wanted.replace)
    updates = _updates(session, order, wanted, sources)
    uploaded = sum(_push_image(session, repository, wanted, each, known, work) for each in sources)
    if index.digest not in order.before.values():
        repository.put_manifest(index.digest, index)
    trust = trust_of(session.settings, work)
    push.sign(repository, index.digest, trust, session.log)
    reason = wanted.replace or wanted.over_budget or f"push of {wanted.name} {key[:12]}"
    planned = order.plan(referrers(repository, index.digest), reason, updates, trust)
    attach_all(repository, index, [each.note.attachment for each in planned.values()])
    given = order.give(lambda: index, planned, trust)
    return Pushed(
        repository.name,
        index.digest,
        given,
        uploaded,
        order.replaced,
        tuple(each for found in updates.values() for each in found),
        {platform: manifest.digest for platform, manifest in manifests.items()},
    )


def _updates(
    session: BuildSession, order: PushTags, wanted: IndexRelease, sources: Sequence[_Source]
) -> dict[str, tuple[Update, ...]]:
    images = [PlatformImage(each.plan.platform, each.manifest, each.config) for each in sources]
    budget = wanted.plans[0].recipe.budget.update if wanted.over_budget is None else None
    return order.updates(images, budget, session.log, wanted.dropped)


def _sources(
    session: BuildSession,
    repository: Repository,
    wanted: IndexRelease,
    known: frozenset[str],
    work: Path,
) -> list[_Source]:
    """The verified image of each platform; raises ``WorldError`` where one has none."""
    found = []
    missing = []
    for plan in wanted.plans:
        folder = work / plan.platforms.target
        folder.mkdir()
        there = None
        if wanted.replace is None and plan.immutable_tag in known:
            there = find_published(session, plan, repository, folder)
        _, record = Images(session).of(plan)
        if there is None and record is None:
            missing.append(plan)
        else:
            if there is None and record is not None:
                require_built_here(record)
            found.append(_source(repository, plan, there, record, folder))
    if missing:
        raise _incomplete(wanted, missing)
    return found


def _source(
    repository: Repository,
    plan: Plan,
    there: Verified | None,
    record: Record | None,
    work: Path,
) -> _Source:
    if there is None and record is not None:
        local = local_image(record, work)
        return _Source(plan, local.manifest, local.config(), None, record, local)
    digest = there.digest if there else ""
    manifest = repository.manifest(digest)
    if manifest is None:
        raise RegistryError(f"{repository.name} no longer has {digest}", hint="push again")
    config = configuration(repository, manifest)
    return _Source(plan, manifest, config, there, record, None)


def _incomplete(wanted: IndexRelease, missing: Sequence[Plan]) -> WorldError:
    platforms = [plan.platform for plan in missing]
    name = wanted.name
    where = "\n".join(f"{plan.platform}: looked for {plan.references[0]}" for plan in missing)
    return WorldError(
        f"{name} is not pushed: there is no verified image of the current recipe for "
        f"{' and '.join(platforms)}",
        f"{where}, its record, and its tag in the registry",
        f"build it: `builder build {name} --platform {platforms[0]}`; if another machine has it, "
        f"push it from there: `builder push {name} --platform {platforms[0]}`",
    )


def _push_image(
    session: BuildSession,
    repository: Repository,
    wanted: IndexRelease,
    source: _Source,
    known: frozenset[str],
    work: Path,
) -> int:
    """Push the image of one platform under its immutable tag; how many blobs were uploaded.

    An image of the registry whose verdict a trusted key signed stays as it is.
    """
    plan = source.plan
    record = (source.there.record if source.there else None) or source.record
    if record is None:
        return 0
    folder = work / f"push-{plan.platforms.target}"
    folder.mkdir()
    tags = Tags(plan.immutable_tag, (), ())
    one = Release(plan, record, tags, wanted.recipe, wanted.replace)
    how = pushing(session, one, source.there, known, folder, source.local)
    return push.push(repository, record, tags, how).uploaded


def published_index(
    session: BuildSession, plans: tuple[Plan, ...], repository: Repository, work: Path
) -> str:
    """The digest of the index of a recipe's images that the registry has.

    Each image has to be verified, as for a push.  Raises ``RegistryError`` where the registry lacks
    one of them, or the index.
    """
    manifests: dict[str, Manifest] = {}
    for plan in plans:
        folder = work / plan.platforms.target
        folder.mkdir()
        found = find_published(session, plan, repository, folder)
        there = repository.manifest(found.digest) if found else None
        if there is not None:
            manifests[plan.platform] = there
    missing = [plan.platform for plan in plans if plan.platform not in manifests]
    key = key_of_index(plans)
    digest = image_index(manifests, plans[0].recipe.version, key).digest
    if missing or not repository.head_digest(digest):
        name = plans[0].name
        lacks = f"no image of {name} for {' and '.join(missing)}" if missing else "no index of them"
        raise RegistryError(
            f"{repository.name} has {lacks}",
            f"the recipe's platforms are {' and '.join(plan.platform for plan in plans)}",
            f"push it first: `builder push {name}`",
        )
    return digest
