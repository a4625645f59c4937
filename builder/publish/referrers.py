"""Artifacts that are attached to an image, and the list of them: the image's referrers.

OCI image specification 1.1, "Guidelines for Artifact Usage".  For a registry without the referrers
API a tag keeps the list (distribution specification 1.1, "Referrers Tag Schema").
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from builder.tools.registry.client import MANIFESTS, Manifest, Repository

TITLE = "org.opencontainers.image.title"
EMPTY = b"{}"
EMPTY_TYPE = "application/vnd.oci.empty.v1+json"


@dataclass(frozen=True, slots=True)
class AttachedFile:
    """One file of an artifact: its name, its media type, its bytes."""

    name: str
    media_type: str
    content: bytes


@dataclass(frozen=True, slots=True)
class Attachment:
    """An artifact to attach to an image: its type, its files and its annotations."""

    kind: str
    files: tuple[AttachedFile, ...] = ()
    annotations: Mapping[str, str] = field(default_factory=dict)


def attach(
    repository: Repository,
    subject: Manifest,
    kind: str,
    annotations: Mapping[str, str],
    files: Sequence[AttachedFile] = (),
) -> str:
    """Attach an artifact of the type ``kind`` to an image; the artifact's digest.

    An identical artifact is not attached again.  Raises ``RegistryError``,
    ``FetchError``.
    """
    artifact = _put(repository, kind, annotations, files, subject)
    if not repository.put_manifest(artifact.digest, artifact):
        _list_by_tag(repository, subject.digest, artifact)
    return artifact.digest


def attach_all(
    repository: Repository,
    subject: Manifest,
    attachments: Sequence[Attachment],
    *,
    new: bool = False,
    unlisted: bool = False,
) -> None:
    """Attach several artifacts to an image.  Raises like ``attach``.

    ``new``: the registry probably lacks their files.  Where a tag keeps the list of referrers, it
    is read and written once; ``unlisted``: nobody has attached anything, so it is only written.
    """
    left = []
    for each in attachments:
        artifact = _put(repository, each.kind, each.annotations, each.files, subject, new=new)
        if not repository.put_manifest(artifact.digest, artifact):
            left.append(artifact)
    if left:
        _list_by_tag(repository, subject.digest, *left, unlisted=unlisted)


def store(
    repository: Repository,
    tag: str,
    kind: str,
    files: Sequence[AttachedFile],
    annotations: Mapping[str, str] = {},
) -> None:
    """Put an artifact without an image under a tag.  Raises like ``attach``."""
    repository.put_manifest(tag, _put(repository, kind, annotations, files, None))


def files_of(repository: Repository, artifact: Manifest) -> list[AttachedFile]:
    """The files of an artifact.  Raises ``RegistryError``, ``FetchError``."""
    return [
        AttachedFile(
            (layer.annotations or {}).get(TITLE, ""),
            layer.mediaType,
            repository.blob(layer.digest),
        )
        for layer in artifact.body.layers or ()
        if layer.mediaType != EMPTY_TYPE
    ]


def _put(
    repository: Repository,
    kind: str,
    annotations: Mapping[str, str],
    files: Sequence[AttachedFile],
    subject: Manifest | None,
    *,
    new: bool = False,
) -> Manifest:
    """Upload the parts of an artifact; its manifest, which is not uploaded yet."""
    empty = _descriptor(EMPTY_TYPE, EMPTY)
    layers = [_descriptor(file.media_type, file.content, file.name) for file in files] or [empty]
    for content in (EMPTY, *(file.content for file in files)):
        repository.put_bytes(content, new=new)
    parts: dict[str, Any] = {
        "schemaVersion": 2,
        "mediaType": MANIFESTS[0],
        "artifactType": kind,
        "config": empty,
        "layers": layers,
        "annotations": dict(annotations),
    }
    if subject is not None:
        parts["subject"] = _descriptor(subject.media_type, subject.content)
    return Manifest(json.dumps(parts, indent=1).encode(), MANIFESTS[0])


def _descriptor(media_type: str, content: bytes, title: str = "") -> dict[str, Any]:
    """OCI image specification 1.1, "Content Descriptors"; the title is where ORAS keeps names."""
    found = {
        "mediaType": media_type,
        "digest": Manifest(content, media_type).digest,
        "size": len(content),
    }
    return found | {"annotations": {TITLE: title}} if title else found


def _referrers_tag(digest: str) -> str:
    return digest.replace(":", "-", 1)


def _list_by_tag(
    repository: Repository, subject: str, *artifacts: Manifest, unlisted: bool = False
) -> None:
    """Add artifacts to the list of an image's referrers that a tag keeps.

    An entry that another machine adds at the same moment is lost: the specification has no remedy.
    """
    tag = _referrers_tag(subject)
    known = [] if unlisted else _listed(repository, tag)
    there = {entry["digest"] for entry in known}
    more = [_entry(artifact) for artifact in artifacts if artifact.digest not in there]
    if not more:
        return
    index = {"schemaVersion": 2, "mediaType": MANIFESTS[1], "manifests": [*known, *more]}
    repository.put_manifest(tag, Manifest(json.dumps(index).encode(), MANIFESTS[1]))


def _entry(artifact: Manifest) -> dict[str, Any]:
    parsed = artifact.parsed()
    entry = _descriptor(artifact.media_type, artifact.content)
    return entry | {"artifactType": parsed["artifactType"], "annotations": parsed["annotations"]}


def _listed(repository: Repository, tag: str) -> list[dict[str, Any]]:
    there = repository.manifest(tag)
    return list(there.parsed().get("manifests") or []) if there else []


def referrers(
    repository: Repository, digest: str, tags: Collection[str] = ()
) -> list[dict[str, Any]]:
    """The descriptors of an image's referrers, from the API or from the tag that keeps them.

    Where that tag is among ``tags``, the registry has no such API, and is not asked.
    """
    if _referrers_tag(digest) in tags:
        return _listed(repository, _referrers_tag(digest))
    listed = repository.referrers(digest)
    return _listed(repository, _referrers_tag(digest)) if listed is None else listed


def annotations_of(entries: Iterable[Mapping[str, Any]], kind: str) -> Iterator[Mapping[str, str]]:
    """The annotations of artifacts of the type ``kind`` among the descriptors of referrers."""
    for entry in entries:
        found = entry.get("annotations") or {}
        if entry.get("artifactType") == kind and isinstance(found, dict):
            yield found
