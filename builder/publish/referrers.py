"""Artifacts that are attached to an image, and the list of them: the image's referrers.

OCI image specification 1.1, "Guidelines for Artifact Usage".  For a registry without the referrers
API a tag keeps the list (distribution specification 1.1, "Referrers Tag Schema").
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from builder.publish.registry import MANIFESTS, Manifest, Repository

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

    An identical artifact is not attached again.
    """
    wanted = Attachment(kind, tuple(files), annotations)
    return attach_all(repository, subject, [wanted])[0]


def attach_all(
    repository: Repository, subject: Manifest, attachments: Sequence[Attachment]
) -> list[str]:
    """Attach several artifacts to an image; their digests.

    Where a tag keeps the list of referrers, it is read and written once.
    """
    made = [_put_parts(repository, each, subject) for each in attachments]
    left = [each for each in made if not repository.put_manifest(each.digest, each)]
    tag = referrers_tag(subject.digest)
    known = _listed(repository, tag) if left else []
    there = {entry["digest"] for entry in known}
    more = [_entry(each) for each in left if each.digest not in there]
    if more:  # an entry that another machine adds right now is lost: there is no remedy
        index = {"schemaVersion": 2, "mediaType": MANIFESTS[1], "manifests": [*known, *more]}
        repository.put_manifest(tag, Manifest(json.dumps(index).encode(), MANIFESTS[1]))
    return [each.digest for each in made]


def store(repository: Repository, tag: str, kind: str, files: Sequence[AttachedFile]) -> None:
    """Put an artifact without an image under a tag."""
    repository.put_manifest(tag, _put_parts(repository, Attachment(kind, tuple(files)), None))


def files_of(repository: Repository, artifact: Manifest) -> list[AttachedFile]:
    """The files of an artifact."""
    return [
        AttachedFile(
            (layer.annotations or {}).get(TITLE, ""),
            layer.mediaType,
            repository.blob(layer.digest),
        )
        for layer in artifact.body.layers or ()
        if layer.mediaType != EMPTY_TYPE
    ]


def _put_parts(repository: Repository, wanted: Attachment, subject: Manifest | None) -> Manifest:
    """Upload the parts of an artifact; its manifest, which is not uploaded yet."""
    for content in (EMPTY, *(file.content for file in wanted.files)):
        repository.put_bytes(content)
    empty = _descriptor(EMPTY_TYPE, EMPTY)
    # ORAS keeps the names of files in their titles, too.
    layers = [
        _descriptor(file.media_type, file.content)
        | ({"annotations": {TITLE: file.name}} if file.name else {})
        for file in wanted.files
    ]
    parts: dict[str, Any] = {
        "schemaVersion": 2,
        "mediaType": MANIFESTS[0],
        "artifactType": wanted.kind,
        "config": empty,
        "layers": layers or [empty],
        "annotations": dict(wanted.annotations),
    }
    if subject is not None:
        parts["subject"] = _descriptor(subject.media_type, subject.content)
    return Manifest(json.dumps(parts, indent=1).encode(), MANIFESTS[0])


def _descriptor(media_type: str, content: bytes) -> dict[str, Any]:
    """OCI image specification 1.1, "Content Descriptors"."""
    digest = Manifest(content, media_type).digest
    return {"mediaType": media_type, "digest": digest, "size": len(content)}


def _entry(artifact: Manifest) -> dict[str, Any]:
    parsed = artifact.parsed()
    entry = _descriptor(artifact.media_type, artifact.content)
    return entry | {"artifactType": parsed["artifactType"], "annotations": parsed["annotations"]}


def referrers_tag(digest: str) -> str:
    """The tag that keeps the list of a manifest's referrers where the registry has no API for it.

    OCI distribution specification 1.1, "Unavailable Referrers API".
    """
    return digest.replace(":", "-", 1)


def entries_of(manifest: Manifest) -> list[dict[str, Any]]:
    """The descriptors that an index lists; for any other manifest none."""
    return list(manifest.parsed().get("manifests") or [])


def _listed(repository: Repository, tag: str) -> list[dict[str, Any]]:
    there = repository.manifest(tag)
    return entries_of(there) if there else []


def referrers(
    repository: Repository, digest: str, tags: Collection[str] = ()
) -> list[dict[str, Any]]:
    """The descriptors of an image's referrers, from the API or from the tag that keeps them.

    Where that tag is among ``tags``, the registry has no such API, and is not asked.
    """
    tag = referrers_tag(digest)
    listed = None if tag in tags else repository.referrers(digest)
    return _listed(repository, tag) if listed is None else listed


def annotations_of(entries: Iterable[Mapping[str, Any]], kind: str) -> Iterator[Mapping[str, str]]:
    """The annotations of artifacts of the type ``kind`` among the descriptors of referrers."""
    for entry in entries:
        found = entry.get("annotations") or {}
        if entry.get("artifactType") == kind and isinstance(found, dict):
            yield found
