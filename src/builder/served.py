"""What a registry serves under a tag: an image's digest, its age, and what its labels say."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from builder.errors import RegistryError
from builder.tools.registry import Manifest, Repository

CREATED = "org.opencontainers.image.created"
REVISION = "org.opencontainers.image.revision"
VERSION = "org.opencontainers.image.version"
PLATFORM = ("linux", "amd64")


@dataclass(frozen=True, slots=True)
class Served:
    """An image of a registry."""

    digest: str
    created: str
    """RFC 3339; empty where the image does not say."""
    labels: Mapping[str, str] = field(default_factory=dict)

    @property
    def revision(self) -> str:
        """The commit that it was made of, as its label says."""
        return self.labels.get(REVISION, "")

    @property
    def version(self) -> str:
        """Its version, as its label says."""
        return self.labels.get(VERSION, "")


def served(repository: Repository, reference: str) -> Served | None:
    """The image that a tag or a digest leads to, or None.

    Of an index it is the image for linux/amd64.  Raises ``RegistryError`` where what is there is
    none, ``FetchError``.
    """
    found = repository.manifest(reference)
    if found is None:
        return None
    config = configuration(repository, found)
    try:
        labels = dict((config.get("config") or {}).get("Labels") or {})
        created = str(labels.get(CREATED) or config.get("created") or "")
    except (AttributeError, TypeError, ValueError) as error:
        raise _odd(repository, found) from error
    return Served(found.digest, created, labels)


def configuration(repository: Repository, manifest: Manifest) -> dict[str, Any]:
    """The configuration of an image (OCI image specification, "Image Configuration").

    Of an index it is that of the image for linux/amd64; empty where there is none.  Raises
    ``RegistryError`` where it cannot be read.
    """
    parsed = manifest.parsed()
    try:
        for entry in parsed.get("manifests") or []:
            platform = entry.get("platform") or {}
            if (platform.get("os"), platform.get("architecture")) == PLATFORM:
                found = repository.manifest(entry["digest"])
                return configuration(repository, found) if found else {}
        if "config" not in parsed:
            return {}
        told = json.loads(repository.blob(parsed["config"]["digest"]))
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise _odd(repository, manifest) from error
    return told if isinstance(told, dict) else {}


def _odd(repository: Repository, manifest: Manifest) -> RegistryError:
    return RegistryError(f"{repository.name}@{manifest.digest} cannot be read as an image")
