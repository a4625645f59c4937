"""A file for Docker Compose.

The keys are those of the Compose Specification (docs.docker.com, "Compose file reference"); a
dollar sign is doubled, because Compose replaces variables in every value ("Interpolation").
"""

from __future__ import annotations

from builder.exports.text import rendered, scalar
from builder.presets.service import HOST, Service, container_needs

NEEDS = {
    "ipc": "ipc: {}",
    "shm_size": "shm_size: {}",
    "memlock": "ulimits: {{memlock: {}}}",
    "capabilities": "cap_add: [{}]",
}
"""The keys of a preset's [container], with the values that its schema allows."""


def document(service: Service) -> str:
    """``compose.yaml``."""
    needs = [
        (NEEDS[key].format(value), why) for key, value, why in container_needs(service.container)
    ]
    return rendered("compose.yaml.j2", service=service, host=HOST, needs=needs, value=_value)


def _value(text: str) -> str:
    return scalar(text.replace("$", "$$"))
