"""A recipe with a channel, its upstream and its registry, on a chosen day; a plugin of pytest."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import requests

from builder.publish.registry import MANIFESTS
from support import upstreams
from support.commands import ForkServer
from support.overlaid import PACKAGE, SITE, StandIn, write_catalog
from support.publishing import PUSHED, digest_of
from support.registries import Proxy, proxied
from support.smoke_tests import images_at

DAY = 86400
OPS = "vllm/ops.py"
BETTER = PACKAGE[OPS].replace("CAPABILITY = 9", "CAPABILITY = 12")
PARTS = """
[track]
{track}
channel = "nightly"
limit   = 2
still   = 3650   # the days of upstream's commits are long ago

[[patch]]
pull  = 1
base  = "{base}"
head  = "{head}"
why   = "it is for older GPUs"
[patch.probe]
file = "{site}/vllm/ops.py"
has  = ["CAPABILITY = 12"]
"""


def until_noon() -> float:
    """The seconds until the next noon, UTC."""
    return DAY - (time.time() - DAY / 2) % DAY


@dataclass
class World:
    """A recipe with a channel, its upstream, and the registry, at noon on a day that can be chosen.

    Each commit is of the hour before, and of the same date whenever the tests run.
    """

    catalog: Path
    upstream: upstreams.Upstream
    proxy: Proxy
    registry: str
    stand_in: StandIn
    server: ForkServer
    lead: float = field(default_factory=until_noon)
    """Seconds from now to day 0."""
    day: int = 0

    def __post_init__(self) -> None:
        self.start = time.time() + self.lead
        self.on(self.day)

    def on(self, day: int) -> None:
        """Go to a day; what is committed from now on is of that day."""
        self.day = day
        self.proxy.ahead = self.lead + day * DAY
        self.upstream.clock = int(self.start) + day * DAY - 3600

    def release(self, tag: str, **files: str | None) -> str:
        """Commit files to upstream, and tag it."""
        told = {f"vllm/{name}.py": text for name, text in files.items()}
        for path, text in told.items():
            self.upstream.write(path, text)
        commit = self.upstream.record(f"release {tag}")
        self.upstream.git("tag", tag)
        return commit

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run the command line on that day."""
        command = [*arguments]
        if "--catalog" not in arguments:
            command += ["--catalog", str(self.catalog)]
        return self.server.run(command, at=time.time() + self.lead + self.day * DAY)

    def builder(self, *arguments: str, expect: int = 0) -> Any:
        """Run the command line on that day; its JSON."""
        done = self.run(*arguments, "--json")
        assert done.returncode == expect, done.stderr + done.stdout
        self.said = done.stderr
        return json.loads(done.stdout)

    def night(self, *, expect: int = 0) -> dict[str, Any]:
        (night,) = self.builder("nightly", expect=expect)
        return dict(night)

    def status(self, *, expect: int = 0) -> dict[str, Any]:
        (status,) = self.builder("status", expect=expect)
        return dict(status)

    def failing(self, *arguments: str, expect: int, said: str) -> None:
        """Run what must fail, and say why."""
        done = self.run(*arguments)
        assert done.returncode == expect, done.stderr
        assert said in done.stderr

    @property
    def channel(self) -> str:
        return digest_of(self.registry, "nightly")


@pytest.fixture
def world(
    registry: str,
    published: StandIn,
    fork_server: ForkServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    made: set[str],
) -> Iterator[World]:
    upstream = upstreams.Upstream(tmp_path / "upstream")
    for path, text in PACKAGE.items():
        upstream.write(path, text)
    base = upstream.record("one")
    upstream.git("tag", "b8")
    head = upstream.pull(1, {OPS: BETTER})
    catalog = tmp_path / "catalog"
    with proxied(registry) as proxy:
        monkeypatch.setenv("BUILDER_NAMESPACE", f"{proxy.address}/me")
        source = f'[source]\ngit = "{upstream.url}"\ncommit = "{base}"'
        parts = PARTS.format(track='tag     = "b*"', base=base, head=head, site=SITE)
        write_catalog(catalog, parts, published.build(), source=source, more='moving = ["nightly"]')
        found = World(catalog, upstream, proxy, registry, published, fork_server)
        yield found
        made.update(images_at(proxy.address))


def get(registry: str, reference: str) -> str:
    url = f"http://{registry}/v2/{PUSHED}/manifests/{reference}"
    return requests.get(url, headers={"Accept": MANIFESTS[0]}, timeout=10).text


def put(registry: str, reference: str, manifest: str) -> None:
    url = f"http://{registry}/v2/{PUSHED}/manifests/{reference}"
    headers = {"Content-Type": MANIFESTS[0]}
    requests.put(url, manifest, headers=headers, timeout=10).raise_for_status()
