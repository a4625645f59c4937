"""Base family ``debian-root``: the Debian system below every base of our own."""

from __future__ import annotations

from builder.families.family import BaseFamily

FAMILY = BaseFamily(
    name="debian-root",
    summary="a minimal Debian system, from a registry or made by mmdebstrap",
    template="debian-root.Dockerfile.j2",
    stages={"root": "gzip"},
    required_tables={"root": "a [root] table"},
)
