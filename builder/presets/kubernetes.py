"""Manifests for Kubernetes: a Deployment and a Service.

Keys follow the API reference of apps/v1 and v1; labels are "Recommended Labels".  The security
contexts follow the level "restricted" of the Pod Security Standards; vLLM's own images run as root,
and no level allows ``hostPath``.  In arguments and variables ``$(NAME)`` is replaced and ``$$``
becomes ``$`` (API reference, Container), so every ``$`` is doubled.
"""

from __future__ import annotations

from typing import Any

from builder.presets.exports import rendered, scalar
from builder.presets.schema import ContainerOptions
from builder.presets.service import Service, container_needs

UNITS = {"k": "Ki", "m": "Mi", "g": "Gi"}
"""Docker's units of memory are powers of 1024 (docker run(1)); Kubernetes writes them so."""


def image_of(service: Service) -> dict[str, str]:
    """The reference of a service's image, and its repository, tag and digest.

    The digest is empty where no registry has it: nodes make their own.
    """
    name, _, digest = service.image.partition("@")
    repository, _, tag = name.rpartition(":")
    reference = name if service.local or not digest else service.image
    digest = "" if service.local else digest
    return {"reference": reference, "repository": repository, "tag": tag, "digest": digest}


def document(service: Service) -> str:
    """``NAME.yaml``."""
    image = image_of(service)
    texts = {
        "name": scalar(service.name),
        "version": scalar(image["tag"]),
        "image": scalar(image["reference"]),
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
        # MiB of each card that the run took, as HAMi counts it (docs/gpu-memory-factor.md).
        "gpumem": -(-service.memory // (service.cards << 20)) if service.cards else 0,
        "value": _value,
        "plain": scalar,
        "period": 10,
    }


def _value(text: str) -> str:
    return scalar(text.replace("$", "$$"))
