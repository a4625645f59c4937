"""Manifests for Kubernetes: a Deployment and a Service.

Keys follow the API reference of apps/v1 and v1; labels are "Recommended Labels".  The security
contexts follow the level "restricted" of the Pod Security Standards; vLLM's own images run as root,
and no level allows ``hostPath``.  In arguments and variables ``$(NAME)`` is replaced and ``$$``
becomes ``$`` (API reference, Container), so every ``$`` is doubled.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from builder.exports.text import rendered, scalar
from builder.presets.schema import ContainerOptions
from builder.presets.service import Service, container_needs

UNITS = {"k": "Ki", "m": "Mi", "g": "Gi"}
"""Docker's units of memory are powers of 1024 (docker run(1)); Kubernetes writes them so."""


@dataclass(frozen=True, slots=True)
class ImageParts:
    """A reference in parts; the digest is empty where no registry has it: nodes make their own."""

    repository: str
    tag: str
    digest: str

    @property
    def reference(self) -> str:
        """The parts as one."""
        return f"{self.repository}:{self.tag}" + (f"@{self.digest}" if self.digest else "")


def image_of(service: Service) -> ImageParts:
    """The image of a service, which has a tag."""
    name, _, digest = service.image.partition("@")
    repository, _, tag = name.rpartition(":")
    return ImageParts(repository, tag, "" if service.local else digest)


def document(service: Service) -> str:
    """``NAME.yaml``."""
    image = image_of(service)
    texts = {
        "name": scalar(service.name),
        "version": scalar(image.tag),
        "image": scalar(image.reference),
        "port": str(service.published),
    }
    return rendered("kubernetes.yaml.j2", **facts(service), **texts)


def facts(service: Service) -> dict[str, Any]:
    """The variables of both objects' templates, without the texts that a chart has as values."""
    size = service.container.shm_size
    return {
        "service": service,
        "parts": image_of(service),
        "size": f"{size[:-1]}{UNITS[size[-1]]}" if size else None,
        "needs": dict.fromkeys(ContainerOptions.model_fields, "")
        | {key: why for key, _, why in container_needs(service.container)},
        "gpumem": gpumem(service),
        "value": _value,
        "plain": scalar,
        "period": 10,
    }


def gpumem(service: Service) -> int | None:
    """MiB of each card that the run took, as HAMi counts ``nvidia.com/gpumem``; None: not known.

    HAMi, docs/gpu-memory-factor.md: without a factor, one unit is 1 MiB.
    """
    if not service.memory or not service.cards:
        return None
    return -(-service.memory // (service.cards << 20))


def _value(text: str) -> str:
    return scalar(text.replace("$", "$$"))
