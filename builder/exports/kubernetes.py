"""Manifests for Kubernetes: a Deployment and a Service.

Keys are those of the API reference of apps/v1 and v1.  In arguments and variables ``$(NAME)``
is replaced and ``$$`` becomes ``$`` (API reference, Container), so every ``$`` is doubled.
"""

from __future__ import annotations

from typing import Any

from builder.exports.text import rendered, scalar
from builder.presets.schema import Container
from builder.presets.service import Service, container_needs

UNITS = {"k": "Ki", "m": "Mi", "g": "Gi"}
"""Docker's units of memory are powers of 1024 (docker run(1)); Kubernetes writes them so."""


def document(service: Service) -> str:
    """``NAME.yaml``."""
    texts = {
        "name": scalar(service.name),
        "image": scalar(service.image),
        "port": str(service.published),
    }
    return rendered("kubernetes.yaml.j2", **facts(service), **texts)


def facts(service: Service) -> dict[str, Any]:
    """What the templates of both objects need, but for the texts that a chart has as values."""
    size = service.container.shm_size
    return {
        "service": service,
        "size": f"{size[:-1]}{UNITS[size[-1]]}" if size else None,
        "needs": dict.fromkeys(Container.model_fields, "")
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
