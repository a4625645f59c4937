"""Base family ``debian-root``: a minimal Debian system, the lowest base."""

from __future__ import annotations

from builder.families.family import BaseFamily

FAMILY = BaseFamily(
    name="debian-root",
    summary="a minimal Debian system, from a registry or made by mmdebstrap",
    template="debian-root.Dockerfile.j2",
    scripts=("reproducible",),
    stages={"root": "gzip"},
    required_tables={"root": "a [root] table"},
)
