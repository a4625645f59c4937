"""An image of a registry: its digest, its age, its labels and its layers."""

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
BASE_NAME = "org.opencontainers.image.base.name"
BASE_DIGEST = "org.opencontainers.image.base.digest"
PLATFORM = ("linux", "amd64")
DEEPEST = 4  # indexes within each other


@dataclass(frozen=True, slots=True)
class RemoteImage:
    """An image of a registry."""

    digest: str
    created: str
    """RFC 3339; empty where the image has no date."""
    labels: Mapping[str, str] = field(default_factory=dict)
    download_size: int = 0
    """Bytes of the compressed layers, each once; 0: not known."""

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
    image = image_manifest(repository, found)
    return described(repository, found, _configuration(repository, image), image)


def described(
    repository: Repository,
    manifest: Manifest,
    config: dict[str, Any],
    image: Manifest | None = None,
) -> RemoteImage:
    """The image of a manifest and its ``configuration``; ``image`` is its ``image_manifest``.

    Raises ``RegistryError``.
    """
    what = f"the configuration of {repository.name}@{manifest.digest}"
    known = responses.checked(Configuration, config, what)
    labels = (known.config.Labels if known.config else None) or {}
    created = labels.get(CREATED) or known.created or ""
    return RemoteImage(manifest.digest, created, labels, sum(layer_sizes(image).values()))


def configuration(repository: Repository, manifest: Manifest) -> dict[str, Any]:
    """The configuration of an image, unchecked (OCI image specification, "Image Configuration").

    Of an index, that of the image for linux/amd64; empty where there is none.  Raises
    ``RegistryError`` where it cannot be read.
    """
    return _configuration(repository, image_manifest(repository, manifest))


def _configuration(repository: Repository, image: Manifest | None) -> dict[str, Any]:
    body = image.body if image is not None else None
    if image is None or body is None or body.config is None:
        return {}
    what = f"the configuration of {repository.name}@{image.digest}"
    return responses.json_object(repository.blob(body.config.digest), Anything, what)


def image_manifest(repository: Repository, manifest: Manifest) -> Manifest | None:
    """The manifest of an image; of an index, that of the image for linux/amd64.

    None where the registry lacks it.  Raises ``RegistryError`` where it cannot be read.
    """
    inner: Manifest | None = manifest
    for _ in range(DEEPEST):
        if inner is None:
            return None
        wanted = next(filter(_fits, inner.body.manifests or ()), None)
        if wanted is None:
            return inner
        inner = repository.manifest(wanted.digest)
    raise RegistryError(
        f"{repository.name}@{manifest.digest} cannot be read as an image",
        f"it is an index of an index, {DEEPEST} times",
        "push it again",
    )


def layer_sizes(image: Manifest | None) -> dict[str, int]:
    """Bytes of an image's layers by digest, the lowest first; none where there is no image.

    A layer that an image has twice is downloaded once.
    """
    return {each.digest: each.size for each in image.body.layers or ()} if image else {}


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
