"""A recipe's tags in the registry: digests, sizes, attachments, moves and nights."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from builder.core.files import workspace
from builder.core.settings import Settings
from builder.engines.layout import LABEL_RECIPE
from builder.publish import builder_sbom
from builder.publish.nights import NightlyRun, nightly_runs
from builder.publish.referrers import referrers
from builder.publish.registry import Repository
from builder.publish.remote_image import RemotePlatform, described
from builder.publish.reproductions import of_all, reproduced
from builder.publish.survey import SIGNATURES
from builder.publish.tag_history import Move, moves
from builder.publish.verdicts import trust_of, verdicts_on
from builder.recipes.schema import Recipe

DOCUMENTS = {builder_sbom.SPDX: "SPDX", builder_sbom.PROVENANCE: "SLSA provenance"}
"""The attached documents that a page names, by media type."""


@dataclass(frozen=True, slots=True)
class PublishedTag:
    """A tag of a registry, and its image."""

    tag: str
    digest: str
    created: str
    version: str
    commit: str
    platforms: Mapping[str, RemotePlatform]
    download_size: int
    update_size: int | None
    signed: bool
    reproduced: str
    documents: tuple[str, ...]
    checks: Mapping[str, int]
    moves: tuple[Move, ...]


@dataclass(frozen=True, slots=True)
class PublishedRecipe:
    """A recipe's tags in a registry, and the nights of its channel."""

    tags: tuple[PublishedTag, ...]
    nights: tuple[NightlyRun, ...]


def published(
    repository: Repository, recipe: Recipe, settings: Settings, recipes: Collection[str] = ()
) -> PublishedRecipe:
    """A recipe's tags in the registry.

    A tag is left out if the registry lacks it, or its image belongs to another one of ``recipes``:
    several may have the same moving tag.  ``settings`` name the trusted keys.  Raises
    ``RegistryError``, ``FetchError``.
    """
    names = dict.fromkeys((*recipe.image.tags, *recipe.image.moving))
    others = {*recipes} - {recipe.name}
    found = [_tag(repository, name, settings, others) for name in names]
    channel = recipe.track.channel if recipe.track else None
    nights = nightly_runs(repository, channel) if channel else []
    return PublishedRecipe(tuple(each for each in found if each is not None), tuple(nights))


def _tag(
    repository: Repository, tag: str, settings: Settings, others: Collection[str]
) -> PublishedTag | None:
    manifest = repository.manifest(tag)
    if manifest is None:
        return None
    image = described(repository, manifest)
    if image.labels.get(LABEL_RECIPE) in others:
        return None
    with workspace(settings.cache_dir) as work:
        noted = moves(repository, tag, trust_of(settings, work))
    digests = dict.fromkeys((manifest.digest, *(each.digest for each in image.platforms.values())))
    attached = {digest: referrers(repository, digest) for digest in digests}
    entries = [entry for found in attached.values() for entry in found]
    kinds = {str(entry.get("artifactType")) for entry in entries}
    images = [each.digest for each in image.platforms.values()] or [manifest.digest]
    verdicts = [each for digest in digests for each in verdicts_on(attached[digest], digest)]
    again = of_all([reproduced(attached[each], each, settings) for each in images])
    return PublishedTag(
        tag=tag,
        digest=manifest.digest,
        created=image.created,
        version=image.version,
        commit=image.revision,
        platforms=image.platforms,
        download_size=image.download_size,
        update_size=noted[0].update if noted else None,
        signed=_is_signed(repository, manifest.digest, attached[manifest.digest]),
        reproduced=again.created if again and again.key else "",
        documents=tuple(name for kind, name in DOCUMENTS.items() if kind in kinds),
        checks=next((each.checks for each in verdicts), {}),
        moves=tuple(noted),
    )


def _is_signed(
    repository: Repository, digest: str, entries: Collection[Mapping[str, object]]
) -> bool:
    if any(str(entry.get("artifactType")).startswith(SIGNATURES) for entry in entries):
        return True
    return bool(repository.head_digest(f"{digest.replace(':', '-')}.sig"))
