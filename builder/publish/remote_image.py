"""An image of a registry: its digest, its age and its labels."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from builder.errors import RegistryError
from builder.tools.docker import engine as docker
from builder.tools.registry import responses
from builder.tools.registry.client import Manifest, Repository
from builder.tools.registry.responses import Anything, Configuration, Descriptor

CREATED = "org.opencontainers.image.created"
REVISION = "org.opencontainers.image.revision"
VERSION = "org.opencontainers.image.version"
PLATFORM = ("linux", "amd64")
DEEPEST = 4  # indexes within each other


@dataclass(frozen=True, slots=True)
class RemoteImage:
    """An image of a registry."""

    digest: str
    created: str
    """RFC 3339; empty where the image has no date."""
    labels: Mapping[str, str] = field(default_factory=dict)

    @property
    def revision(self) -> str:
        """The commit that it was built from, by its label."""
        return self.labels.get(REVISION, "")

    @property
    def version(self) -> str:
        """Its version, by its label."""
        return self.labels.get(VERSION, "")


def remote_image(repository: Repository, reference: str) -> RemoteImage | None:
    """The image that a tag or a digest points to, or None; of an index, that for linux/amd64.

    Raises ``RegistryError`` where it is not an image, ``FetchError``.
    """
    found = repository.manifest(reference)
    if found is None:
        return None
    return described(repository, found, configuration(repository, found))


def described(repository: Repository, manifest: Manifest, config: dict[str, Any]) -> RemoteImage:
    """The image of a manifest and its ``configuration``.  Raises ``RegistryError``."""
    what = f"the configuration of {repository.name}@{manifest.digest}"
    known = responses.checked(Configuration, config, what)
    labels = (known.config.Labels if known.config else None) or {}
    return RemoteImage(manifest.digest, labels.get(CREATED) or known.created or "", labels)


def configuration(repository: Repository, manifest: Manifest) -> dict[str, Any]:
    """The configuration of an image, unchecked (OCI image specification, "Image Configuration").

    Of an index, that of the image for linux/amd64; empty where there is none.  Raises
    ``RegistryError`` where it cannot be read.
    """
    inner: Manifest | None = manifest
    for _ in range(DEEPEST):
        if inner is None:
            return {}
        body = inner.body
        wanted = next(filter(_fits, body.manifests or ()), None)
        if wanted is None:
            if body.config is None:
                return {}
            what = f"the configuration of {repository.name}@{inner.digest}"
            content = repository.blob(body.config.digest)
            return responses.json_object(content, Anything, what)
        inner = repository.manifest(wanted.digest)
    raise RegistryError(
        f"{repository.name}@{manifest.digest} cannot be read as an image",
        f"it is an index of an index, {DEEPEST} times",
        "push it again",
    )


def _fits(entry: Descriptor) -> bool:
    found = entry.platform
    return found is not None and (found.os, found.architecture) == PLATFORM


@contextmanager
def pulled(reference: str) -> Iterator[None]:
    """Keep an image of a registry in the engine; one that was not there is removed afterwards.

    Raises ``FetchError`` where it cannot be pulled.
    """
    was_there = docker.image(reference) is not None
    if not was_there:
        docker.pull(reference, "/".join(PLATFORM))
    try:
        yield
    finally:
        if not was_there:
            docker.untag(reference)
