"""`doctor`."""

from __future__ import annotations

import json

from support.commands import Builder


def test_doctor_looks_at_everything(builder: Builder) -> None:
    found = {item["what"]: item for item in json.loads(builder("doctor", "--json").stdout)}
    assert {"buildx", "memory", "cores", "disk of the cache", "mmdebstrap"} <= found.keys()
    for item in found.values():
        assert item["state"] == "has" or item["advice"], item
