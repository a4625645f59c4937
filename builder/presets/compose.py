"""A file for Docker Compose.

The keys follow the Compose Specification (docs.docker.com, "Compose file reference"); a
dollar sign is doubled, because Compose replaces variables in every value ("Interpolation").
``start_interval`` needs Compose 2.20.2 (its specification, "healthcheck") and Engine 25 (Engine
API 1.44, "StartInterval").
"""

from __future__ import annotations

import re

from builder.presets.exports import rendered, scalar
from builder.presets.model_files import DIRECTORY
from builder.presets.service import Mount, Service, container_needs

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
    return rendered("compose.yaml.j2", service=service, needs=needs, value=_value, source=_source)


def _source(mount: Mount) -> str:
    """The path on the host; a variable, or a line of ``.env``, replaces the models directory."""
    if mount.target == DIRECTORY and re.fullmatch(r"[^${}]+", mount.source):
        return scalar(f"${{MODELS_DIR:-{mount.source}}}")
    return _value(mount.source)


def _value(text: str) -> str:
    return scalar(text.replace("$", "$$"))
