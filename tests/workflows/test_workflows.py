"""The workflows as GitHub would run them: a night, a release and a pull request, each from its
event to what it leaves behind.  Only with --act: each runs `./farm` from nothing in each job.

Not run: actions that need GitHub (tests/data/actions has stand-ins), what only GitHub's own runners
do (.github/scripts/prepare_runner.py), the proposal of updates, which needs GitHub's API, and
`.ci/run`, which is these tests.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import requests

from support import upstreams
from support.overlaid import PACKAGE, SITE, StandIn, write_catalog
from support.publishing import PUSHED, digest_of
from support.smoke_tests import images_at
from support.workflows import Checkout

pytestmark = [pytest.mark.act, pytest.mark.docker, pytest.mark.network]
OPS = "vllm/ops.py"
PARTS = """
[track]
tag     = "b*"
channel = "nightly"
limit   = 365
still   = 3650

[[probe]]
file = "{site}/vllm/worker.py"
has  = ["def work"]
"""


@pytest.fixture
def upstream(tmp_path: Path) -> upstreams.Upstream:
    found = upstreams.Upstream(tmp_path / "github" / "upstream")
    for path, text in PACKAGE.items():
        found.write(path, text)
    found.record("one")
    found.git("tag", "b1")
    return found


@pytest.fixture
def farm(
    checkout: Checkout,
    upstream: upstreams.Upstream,
    registry: str,
    published: StandIn,
    made: set[str],
) -> Iterator[Checkout]:
    """A checkout whose only recipe follows ``upstream``, and whose images go to ``registry``."""
    source = f'[source]\ngit = "{upstream.url}"\nref = "b1"\ncommit = "{upstream.head()}"'
    parts = PARTS.format(site=SITE)
    image = published.build()
    write_catalog(checkout.path, parts, image, source=source, more='moving = ["nightly"]')
    checkout.commit("a farm")
    checkout.variables = {"BUILDER_NAMESPACE": f"{registry}/me", "BUILDER_PAGES": "true"}
    yield checkout
    made.update(images_at(registry))


def release(upstream: upstreams.Upstream, tag: str, worker: str) -> None:
    upstream.write("vllm/worker.py", worker)
    upstream.record(f"release {tag}")
    upstream.git("tag", tag)


def test_nights(farm: Checkout, upstream: upstreams.Upstream, registry: str) -> None:
    """A good night moves the channel, a bad one leaves it, and a third finds the caches."""
    release(upstream, "b2", "def work():\n    return 'fast'\n")
    told = farm.run("workflow_dispatch", "nightly")
    first = digest_of(registry, "nightly")
    assert first
    assert "no cache is found" in told
    site = farm.artifact("github-pages")
    assert first in (site / "images.json").read_text()

    release(upstream, "b3", "WORK = None\n")
    told = farm.run("workflow_dispatch", "nightly", fails=True)
    assert digest_of(registry, "nightly") == first
    assert "vllm/worker.py" in told
    assert list(farm.artifact("logs-overlaid-1").rglob("*.log"))

    release(upstream, "b4", "def work():\n    return 'better'\n")
    told = farm.run("workflow_dispatch", "nightly")
    assert digest_of(registry, "nightly") != first
    assert "restored from mirrors@overlaid@" in told


def test_a_release(farm: Checkout, registry: str) -> None:
    """A recipe that is asked for is built, pushed and described."""
    text = (farm.path / "recipes" / "overlaid-1.toml").read_text()
    text = text.replace('channel = "nightly"\n', "").replace('moving = ["nightly"]\n', "")
    (farm.path / "recipes" / "overlaid-1.toml").write_text(text)
    farm.commit("no channel")
    event = {"inputs": {"recipe": "overlaid-1"}}
    told = farm.run("workflow_dispatch", "release", "--input=recipe=overlaid-1", payload=event)
    assert digest_of(registry, "1")
    assert "saved as mirrors@overlaid@" in told
    tags = requests.get(f"http://{registry}/v2/{PUSHED}/tags/list", timeout=10).json()["tags"]
    assert "1" in tags


def test_a_pull_request_builds_what_it_changes(farm: Checkout, registry: str) -> None:
    """Only the changed recipe is built, and nothing is pushed."""
    file = farm.path / "recipes" / "overlaid-1.toml"
    file.write_text(file.read_text().replace("A package with", "A package that has"))
    farm.commit("another summary")
    event = {"pull_request": {"number": 1, "head": {"ref": "change"}, "base": {"ref": "main"}}}
    told = farm.run("pull_request", "pull-request", "--job=build", payload=event)
    assert "built and verified" in told
    answer = requests.get(f"http://{registry}/v2/_catalog", timeout=10)
    assert not json.loads(answer.text)["repositories"]
