"""Manifests for Kubernetes: a Deployment and a Service.

Keys are those of the API reference of apps/v1 and v1.  In arguments and variables ``$(NAME)``
is replaced and ``$$`` becomes ``$`` (API reference, Container), so every ``$`` is doubled.
"""

from __future__ import annotations

from collections.abc import Iterator

from builder.exports.text import rendered, scalar
from builder.presets.schema import Container
from builder.presets.service import Service, container_needs

UNITS = {"k": "Ki", "m": "Mi", "g": "Gi"}
"""Docker's units of memory are powers of 1024 (docker run(1)); Kubernetes writes them so."""


def document(service: Service) -> str:
    """``NAME.yaml``."""
    size = service.container.shm_size
    return rendered(
        "kubernetes.yaml.j2",
        service=service,
        size=f"{size[:-1]}{UNITS[size[-1]]}" if size else None,
        needs=dict.fromkeys(Container.model_fields, "")
        | {key: why for key, _, why in container_needs(service.container)},
        volumes=list(_volumes(service)),
        value=_value,
        plain=scalar,
        period=10,
    )


def _volumes(service: Service) -> Iterator[tuple[str, str, str]]:
    """Name, path on the node and path in the container of each mount."""
    for number, mount in enumerate(service.mounts):
        yield f"models-{number}", mount.source, mount.target


def _value(text: str) -> str:
    return scalar(text.replace("$", "$$"))
