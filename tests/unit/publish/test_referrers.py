"""What is attached to an image, as a registry lists it: a real server on loopback."""

from __future__ import annotations

import json

from builder.publish.registry import MANIFESTS, Repository
from builder.publish.verdicts import referrers
from support.registries import NO_BLOB, Reply, Request, answering


def test_referrers_of_every_page() -> None:
    def front(request: Request) -> Reply:
        first = "page" not in request.path
        headers = {"Content-Type": MANIFESTS[1]}
        if first:
            headers["Link"] = f"<{request.path}?page=2>; rel=next"
        entry = {"digest": "sha256:" + ("1" if first else "2") * 64}
        return 200, headers, json.dumps({"manifests": [entry]}).encode()

    with answering(front) as (address, _):
        found = referrers(Repository(f"{address}/me/x", print), NO_BLOB)
    assert [entry["digest"] for entry in found] == ["sha256:" + each * 64 for each in "12"]
