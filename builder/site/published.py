"""What the registry has of a recipe's tags: digests, sizes, attachments, moves and nights."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from pydantic import ValidationError

from builder import sbom
from builder.families.layout import LABEL_RECIPE
from builder.nightly import history
from builder.nightly.history import NightlyRun
from builder.publish.referrers import referrers
from builder.publish.remote_image import configuration, described, image_manifest
from builder.publish.reproductions import reproduced
from builder.publish.survey import SIGNATURES
from builder.publish.tag_history import Move, moves
from builder.publish.update_size import update_of
from builder.publish.verdicts import TEXT, VERDICT, Statement
from builder.recipes.schema import Recipe
from builder.settings import Settings
from builder.tools.registry.client import Manifest, Repository

DOCUMENTS = {
    sbom.CYCLONEDX: "CycloneDX",
    sbom.SPDX: "SPDX",
    sbom.PROVENANCE: "SLSA provenance",
}
"""The attached documents that a page names, by media type."""


@dataclass(frozen=True, slots=True)
class PublishedTag:
    """A tag of a registry, and its image."""

    tag: str
    digest: str
    created: str
    """RFC 3339; empty where the image has no date."""
    version: str
    commit: str
    """The commit that it was built from; empty where it has no label."""
    platforms: tuple[str, ...]
    """``linux/amd64``, ...; empty where the image does not name them."""
    download_size: int
    """Bytes of the compressed layers, of an index those of the image for linux/amd64."""
    update_size: int | None
    """Bytes of the layers that the image before the tag's last move lacks; None: not known."""
    signed: bool
    reproduced: str
    """When the image was built again with the same digest, as a statement has it that a trusted key
    signed; RFC 3339; empty: there is none."""
    documents: tuple[str, ...]
    checks: Mapping[str, int]
    """The number of checks that passed, by kind, as the attached verdict states them."""
    moves: tuple[Move, ...]
    """The moves of the tag, newest first."""


@dataclass(frozen=True, slots=True)
class Published:
    """A recipe's tags in a registry, and the nights of its channel."""

    tags: tuple[PublishedTag, ...]
    nights: tuple[NightlyRun, ...]
    """Newest first."""


def published(
    repository: Repository, recipe: Recipe, settings: Settings, recipes: Collection[str] = ()
) -> Published:
    """What the registry has of a recipe's tags.

    A tag is left out if the registry lacks it, or its image is that of another one of ``recipes``:
    several may have the same moving tag.  ``settings`` name the trusted keys.  Raises
    ``RegistryError``, ``FetchError``.
    """
    names = dict.fromkeys((*recipe.image.tags, *recipe.image.moving))
    others = {*recipes} - {recipe.name}
    found = [_tag(repository, name, settings, others) for name in names]
    channel = recipe.track.channel if recipe.track else None
    nights = history.nightly_runs(repository, channel) if channel else []
    return Published(tuple(each for each in found if each is not None), tuple(nights))


def _tag(
    repository: Repository, tag: str, settings: Settings, others: Collection[str]
) -> PublishedTag | None:
    manifest = repository.manifest(tag)
    if manifest is None:
        return None
    config = configuration(repository, manifest)
    single = image_manifest(repository, manifest)
    image = described(repository, manifest, config, single)
    if image.labels.get(LABEL_RECIPE) in others:
        return None
    noted = moves(repository, tag)
    entries = referrers(repository, manifest.digest)
    kinds = {str(entry.get("artifactType")) for entry in entries}
    again = reproduced(entries, manifest.digest, settings)
    return PublishedTag(
        tag=tag,
        digest=manifest.digest,
        created=image.created,
        version=image.version,
        commit=image.revision,
        platforms=_platforms(manifest, config),
        download_size=image.download_size,
        update_size=_update_size(repository, manifest, noted),
        signed=_is_signed(repository, manifest.digest, kinds),
        reproduced=again.created if again and again.key else "",
        documents=tuple(name for kind, name in DOCUMENTS.items() if kind in kinds),
        checks=_checks(entries, manifest.digest),
        moves=tuple(noted),
    )


def _platforms(manifest: Manifest, config: Mapping[str, object]) -> tuple[str, ...]:
    listed = [entry.platform for entry in manifest.body.manifests or () if entry.platform]
    names = [f"{each.os}/{each.architecture}" for each in listed if each.os != "unknown"]
    if not names and config.get("os") and config.get("architecture"):
        names = [f"{config['os']}/{config['architecture']}"]
    return tuple(dict.fromkeys(names))


def _update_size(repository: Repository, manifest: Manifest, known: Collection[Move]) -> int | None:
    """The size of a tag's last update: as its note has it, else by the image before it."""
    last = next((move for move in known if move.before), None)
    if last is None or last.update is not None:
        return last.update if last else None
    found = update_of(repository, (last.tag,), last.before, manifest)
    return found.size if found else None


def _is_signed(repository: Repository, digest: str, kinds: Collection[str]) -> bool:
    """Whether a signature is attached, as a referrer or under cosign's tag."""
    if any(kind.startswith(SIGNATURES) for kind in kinds):
        return True
    return bool(repository.head_digest(f"{digest.replace(':', '-')}.sig"))


def _checks(entries: Collection[Mapping[str, object]], digest: str) -> Mapping[str, int]:
    """The checks of the newest verdict that is attached to an image."""
    found = []
    for entry in entries:
        annotations = entry.get("annotations")
        if entry.get("artifactType") != VERDICT or not isinstance(annotations, dict):
            continue
        try:
            statement = Statement.model_validate_json(annotations.get(TEXT, ""))
        except ValidationError:
            continue
        if statement.digest == digest:
            found.append(statement)
    newest = max(found, key=lambda each: each.created, default=None)
    return newest.checks if newest is not None else {}
