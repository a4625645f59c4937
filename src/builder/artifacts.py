"""Artifacts that refer to an image: attached to it, and found by it.

OCI image specification 1.1, "Guidelines for Artifact Usage"; a registry without the referrers API
is told by the tag that the distribution specification has for it ("Referrers Tag Schema").
"""

from __future__ import annotations

import json
from typing import Any

from builder.tools.registry import MANIFESTS, Manifest, Repository

EMPTY = b"{}"
EMPTY_TYPE = "application/vnd.oci.empty.v1+json"


def attach(
    repository: Repository, subject: Manifest, kind: str, annotations: dict[str, str]
) -> str:
    """Attach a note of the artifact type ``kind`` to an image; the note's digest.

    Raises ``RegistryError``, ``FetchError``.
    """
    empty = Manifest(EMPTY, EMPTY_TYPE)
    repository.put_bytes(EMPTY)
    descriptor = {"mediaType": EMPTY_TYPE, "digest": empty.digest, "size": len(EMPTY)}
    content = {
        "schemaVersion": 2,
        "mediaType": MANIFESTS[0],
        "artifactType": kind,
        "config": descriptor,
        "layers": [descriptor],
        "subject": {
            "mediaType": subject.media_type,
            "digest": subject.digest,
            "size": len(subject.content),
        },
        "annotations": annotations,
    }
    note = Manifest(json.dumps(content, indent=1).encode(), MANIFESTS[0])
    if not repository.put_manifest(note.digest, note):
        _list_by_tag(repository, subject.digest, note, content)
    return note.digest


def _referrers_tag(digest: str) -> str:
    return digest.replace(":", "-", 1)


def _list_by_tag(
    repository: Repository, subject: str, note: Manifest, content: dict[str, Any]
) -> None:
    tag = _referrers_tag(subject)
    there = repository.manifest(tag)
    known = there.parsed().get("manifests", []) if there else []
    entry = {
        "mediaType": note.media_type,
        "digest": note.digest,
        "size": len(note.content),
        "artifactType": content["artifactType"],
        "annotations": content["annotations"],
    }
    index = {"schemaVersion": 2, "mediaType": MANIFESTS[1], "manifests": [*known, entry]}
    repository.put_manifest(tag, Manifest(json.dumps(index).encode(), MANIFESTS[1]))


def referrers(repository: Repository, digest: str) -> list[dict[str, Any]]:
    """The descriptors of what refers to an image, by the API or by its tag."""
    listed = repository.referrers(digest)
    if listed is None:
        listed = repository.manifest(_referrers_tag(digest))
    return list(listed.parsed().get("manifests", [])) if listed else []
