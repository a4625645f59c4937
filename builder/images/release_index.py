"""Publishes the images of a recipe's platforms, and one index of them, which gets the tags.

Nothing is uploaded before each platform has a verified image, here or in the registry, and before
the updates of all are within their budget.  The images come first, each with its attachments and
its immutable tag; then the index, signed, and its tags.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from builder.errors import RegistryError, TagMovedError, WorldError
from builder.images.check import find_verified
from builder.images.names import find_image
from builder.images.release import Release, pushing
from builder.images.session import BuildSession
from builder.images.verified import Verified, find_published
from builder.plan.rendered import EngineImage
from builder.publish import push
from builder.publish.image_index import image_index, index_key
from builder.publish.push import Published
from builder.publish.push_tags import PushTags, push_tags
from builder.publish.remote_image import PlatformImage, configuration
from builder.publish.tags import Tags, open_repository, tags_of_key
from builder.publish.update_size import Update
from builder.publish.upload import LocalImage, local_image
from builder.publish.verdicts import require_signing, trust_of
from builder.records.record import Record
from builder.tools.registry.client import Manifest, Repository


@dataclass(frozen=True, slots=True)
class IndexRelease:
    """The images of a recipe to publish, one for each of its platforms."""

    images: tuple[EngineImage, ...]
    recipe: Mapping[str, str]
    """The texts of the recipe's files, by their paths below ``recipes/``."""
    tags: Tags
    """Those of the index."""
    replace: str | None = None
    """The reason to take an immutable or a version tag from something else."""
    over_budget: str | None = None
    """The reason why an update may exceed its budget."""

    @property
    def name(self) -> str:
        """The recipe's."""
        return self.images[0].plan.name


def key_of_index(images: Sequence[EngineImage]) -> str:
    """The key of the index of a recipe's images; sha256 (hex)."""
    return index_key({image.platform: image.key for image in images})


def index_release(
    images: tuple[EngineImage, ...],
    recipe: Mapping[str, str],
    replace: str | None = None,
    over_budget: str | None = None,
    *,
    only_immutable: bool = False,
) -> IndexRelease:
    """The release of a recipe's images; ``only_immutable``: the index gets no other tag."""
    tags = tags_of_key(images[0].plan.recipe, key_of_index(images))
    if only_immutable:
        tags = Tags(tags.immutable, (), ())
    return IndexRelease(images, recipe, tags, replace, over_budget)


@dataclass(frozen=True, slots=True)
class _Source:
    """The verified image of one platform: the registry's, else the engine's."""

    image: EngineImage
    manifest: Manifest
    config: Mapping[str, object]
    there: Verified | None
    """The registry's; None: it has none."""
    record: Record | None
    """This machine's; None: it has no verified image of that key."""
    local: LocalImage | None


def release_index(session: BuildSession, wanted: IndexRelease, work: Path) -> Published:
    """Push the image of each platform, then their index, which gets the tags.

    ``work`` is an empty directory.  Raises like ``release``; ``WorldError`` also where a platform
    has no verified image, here or in the registry.
    """
    require_signing(session.settings, work)
    repository = open_repository(wanted.images[0].repository, session.log)
    try:
        return _push(session, repository, wanted, work / "first")
    except TagMovedError as error:
        tags = [image.immutable_tag for image in wanted.images]
        if wanted.replace is not None or not any(f":{tag} " in error.what for tag in tags):
            raise
        session.log(f"{error.what}: trying again with the image that it points to")
        return _push(session, repository, wanted, work / "second")


def _push(
    session: BuildSession, repository: Repository, wanted: IndexRelease, work: Path
) -> Published:
    work.mkdir()
    known = frozenset(repository.tags())
    sources = _sources(session, repository, wanted, known, work)
    manifests: dict[str, Manifest] = {each.image.platform: each.manifest for each in sources}
    version, key = wanted.images[0].plan.recipe.version, key_of_index(wanted.images)
    index = image_index(manifests, version, key)
    order = push_tags(repository, wanted.name, wanted.tags, index.digest, known)
    order.require_free(wanted.replace)
    updates = _updates(session, order, wanted, sources)
    uploaded = sum(_push_image(session, repository, wanted, each, known, work) for each in sources)
    if index.digest not in order.before.values():
        repository.put_manifest(index.digest, index)
    push.sign(repository, index.digest, trust_of(session.settings, work), session.log)
    reason = wanted.replace or wanted.over_budget or f"push of {wanted.name} {key[:12]}"
    given = order.give(lambda: index, reason, updates)
    return Published(
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
    images = [PlatformImage(each.image.platform, each.manifest, each.config) for each in sources]
    budget = wanted.images[0].plan.recipe.budget.update if wanted.over_budget is None else None
    return order.updates(images, budget, session.log)


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
    for image in wanted.images:
        folder = work / image.plan.platforms.target
        folder.mkdir()
        there = None
        if wanted.replace is None and image.immutable_tag in known:
            there = find_published(session, image, repository, folder)
        record = find_verified(image, find_image(image), session.settings)
        if there is None and record is None:
            missing.append(image)
        else:
            found.append(_source(repository, image, there, record, folder))
    if missing:
        raise _incomplete(wanted, missing)
    return found


def _source(
    repository: Repository,
    image: EngineImage,
    there: Verified | None,
    record: Record | None,
    work: Path,
) -> _Source:
    if there is None and record is not None:
        local = local_image(record, work)
        return _Source(image, local.manifest, local.config(), None, record, local)
    digest = there.digest if there else ""
    manifest = repository.manifest(digest)
    if manifest is None:
        raise RegistryError(f"{repository.name} no longer has {digest}", hint="push again")
    config = configuration(repository, manifest)
    return _Source(image, manifest, config, there, record, None)


def _incomplete(wanted: IndexRelease, missing: Sequence[EngineImage]) -> WorldError:
    platforms = [image.platform for image in missing]
    name = wanted.name
    where = "\n".join(f"{image.platform}: looked for {image.references[0]}" for image in missing)
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
    image = source.image
    record = (source.there.record if source.there else None) or source.record
    if record is None:
        return 0
    folder = work / f"push-{image.plan.platforms.target}"
    folder.mkdir()
    tags = Tags(image.immutable_tag, (), ())
    one = Release(image, record, tags, wanted.recipe, wanted.replace)
    how = pushing(session, one, source.there, known, folder, source.local)
    return push.push(repository, record, tags, how).uploaded


def published_index(
    session: BuildSession, images: tuple[EngineImage, ...], repository: Repository, work: Path
) -> str:
    """The digest of the index of a recipe's images that the registry has.

    Each image has to be verified, as for a push.  Raises ``RegistryError`` where the registry lacks
    one of them, or the index.
    """
    manifests: dict[str, Manifest] = {}
    for image in images:
        folder = work / image.plan.platforms.target
        folder.mkdir()
        found = find_published(session, image, repository, folder)
        there = repository.manifest(found.digest) if found else None
        if there is not None:
            manifests[image.platform] = there
    missing = [image.platform for image in images if image.platform not in manifests]
    key = key_of_index(images)
    digest = image_index(manifests, images[0].plan.recipe.version, key).digest
    if missing or not repository.head_digest(digest):
        name = images[0].plan.name
        lacks = f"no image of {name} for {' and '.join(missing)}" if missing else "no index of them"
        raise RegistryError(
            f"{repository.name} has {lacks}",
            f"the recipe's platforms are {' and '.join(image.platform for image in images)}",
            f"push it first: `builder push {name}`",
        )
    return digest
