"""The workflows as GitHub would run them: nights, a release, a pull request and an update, each
from its event to what it leaves behind.  Only with --act: `./farm` sets itself up in each job.

Not run: actions and programs that need GitHub (tests/data/actions has stand-ins), what only
GitHub's own runners do (.github/scripts/prepare_runner.py), `.ci/run` and `.ci/cross`, which are
lanes themselves, and the workflow that runs these tests.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from shutil import copyfile, copytree

import pytest

from support import upstreams
from support.environment import REPOSITORY
from support.nightly_world import BETTER, OPS, PARTS
from support.overlaid import PACKAGE, SITE, StandIn, write_catalog
from support.publishing import PUSHED, digest_of, tags, verified
from support.smoke_tests import docker, images_at
from support.workflows import Checkout

pytestmark = [
    *(pytest.mark.act, pytest.mark.docker, pytest.mark.network),
    pytest.mark.xdist_group("workflows"),
]
PLAN = "recipes with a channel"
NIGHT = {PLAN, "overlaid-1", "age of the channels", "site", "GitHub Pages"}


@pytest.fixture
def upstream(tmp_path: Path) -> upstreams.Upstream:
    """A repository with the tag b1, an hour old."""
    folder = tmp_path / "github" / "upstream"
    made = upstreams.Upstream(folder, clock=int(time.time()) - 3600)
    for path, text in PACKAGE.items():
        made.write(path, text)
    made.record("one")
    made.git("tag", "b1")
    return made


@pytest.fixture
def farm(
    checkout: Checkout,
    upstream: upstreams.Upstream,
    registry: str,
    published: StandIn,
    key_pair: Path,
    made: set[str],
) -> Iterator[Checkout]:
    """A checkout whose only recipe follows ``upstream``, and whose images go to ``registry``.

    It puts a pull request of ``upstream`` over the package.
    """
    base = upstream.head()
    source = f'[source]\ngit = "{upstream.url}"\nref = "b1"\ncommit = "{base}"'
    head = upstream.pull(1, {OPS: BETTER})
    parts = PARTS.format(track='tag     = "b*"', base=base, head=head, site=SITE)
    image = published.build()
    digest = docker("image", "inspect", "--format={{.Id}}", image)
    pin = f'digest = "{digest}"'
    more = 'moving = ["nightly"]'
    write_catalog(checkout.path, parts, image, source=source, pin=pin, more=more)
    checkout.commit("a farm")
    checkout.variables = {"BUILDER_NAMESPACE": f"{registry}/me", "BUILDER_PAGES": "true"}
    checkout.secrets = {
        "COSIGN_KEY": (key_pair / "cosign.key").read_text(),
        "COSIGN_PASSWORD": "p4ss",
        "GITHUB_TOKEN": "none",
    }
    yield checkout
    made.update(images_at(registry))


def release(upstream: upstreams.Upstream, tag: str, path: str, text: str) -> None:
    upstream.write(path, text)
    upstream.record(f"release {tag}")
    upstream.git("tag", tag)


def add(farm: Checkout, version: str) -> Path:
    """Write a recipe of that version, without a channel."""
    text = (farm.path / "recipes" / "overlaid-1.toml").read_text()
    for line in ('channel = "nightly"\n', 'moving = ["nightly"]\n'):
        text = text.replace(line, "")
    file = farm.path / "recipes" / f"overlaid-{version}.toml"
    file.write_text(text.replace('= "1"', f'= "{version}"').replace('["1"]', f'["{version}"]'))
    return file


def change(file: Path) -> None:
    """Change a recipe's summary, which its image has as a label."""
    file.write_text(file.read_text().replace('summary = "', 'summary = "Another: '))


def test_nights(
    farm: Checkout, upstream: upstreams.Upstream, registry: str, key_pair: Path
) -> None:
    """A good night moves the channel, a bad one leaves it, and the next one finds the caches."""
    release(upstream, "b2", "vllm/worker.py", "def work():\n    return 'fast'\n")
    night = farm.run("schedule", "nightly")
    assert night.jobs == dict.fromkeys(NIGHT, "succeeded")
    first = digest_of(registry, "nightly")
    assert verified(f"{registry}/{PUSHED}@{first}", key_pair / "cosign.pub")
    assert first in (farm.artifact("github-pages") / "index.json").read_text()
    assert "no cache is found" in night.text
    assert "restored from" not in night.text

    release(upstream, "b3", OPS, "CAPABILITY = 10\n")  # the patch does not apply
    night = farm.run("schedule", "nightly")
    assert night.jobs == {**dict.fromkeys(NIGHT, "succeeded"), "overlaid-1": "failed"}
    assert digest_of(registry, "nightly") == first
    assert "conflicts" in night.text
    assert list(farm.artifact("logs-overlaid-1").rglob("*.log"))

    begun = time.time()
    release(upstream, "b4", OPS, PACKAGE[OPS])
    night = farm.run("schedule", "nightly", "--job=night")
    assert night.jobs == dict.fromkeys([PLAN, "overlaid-1"], "succeeded")
    assert digest_of(registry, "nightly") not in {"", first}
    assert "restored from mirrors@overlaid@" in night.text
    mirrors = farm.folder / "home" / ".cache" / "builder" / "git"
    (head,) = mirrors.glob("*upstream*/pins.git/HEAD")
    assert head.stat().st_mtime < begun, "the mirror was cloned anew"


def test_a_release(farm: Checkout, registry: str, key_pair: Path) -> None:
    """A recipe that a push to main changed is built, pushed and signed; the others are not."""
    add(farm, "2")
    file = add(farm, "1")
    before = farm.commit("two versions")
    change(file)
    farm.commit("another summary")
    run = farm.run("push", "release", payload={"before": before, "ref": "refs/heads/main"})
    assert run.jobs == dict.fromkeys({"changed recipes", "overlaid-1"}, "succeeded")
    assert verified(f"{registry}/{PUSHED}:1", key_pair / "cosign.pub")
    assert "2" not in tags(registry)
    assert "saved as mirrors@overlaid@" in run.text


def test_a_pull_request_builds_what_it_changes(farm: Checkout, registry: str) -> None:
    """Only the changed recipe is built, and nothing is pushed."""
    add(farm, "2")
    farm.commit("two")
    change(farm.path / "recipes" / "overlaid-1.toml")
    farm.commit("another summary")
    event = {"pull_request": {"number": 1, "head": {"ref": "change"}, "base": {"ref": "main"}}}
    run = farm.run("pull_request", "pull-request", "--job=build", payload=event)
    assert run.jobs == dict.fromkeys({"changed recipes", "overlaid-1"}, "succeeded")
    assert "built and verified" in run.text
    assert not tags(registry)


def test_an_update_becomes_a_pull_request(farm: Checkout, upstream: upstreams.Upstream) -> None:
    """The new recipe and its Dockerfile are on a branch, and the old recipe is kept."""
    add(farm, "b1")
    recipes = farm.path / "recipes"
    (recipes / "overlaid-1.toml").unlink()
    copytree(REPOSITORY / "recipes" / "bases", recipes / "bases", dirs_exist_ok=True)
    for file in (REPOSITORY / "recipes").glob("**/hello-sm120-0.1.0.*"):  # which the tests read
        copy = recipes / file.relative_to(REPOSITORY / "recipes")
        copy.parent.mkdir(exist_ok=True)
        copyfile(file, copy)
    head = farm.commit("a version")
    origin = farm.folder / "origin"
    farm.git("init", "--quiet", "--bare", str(origin))
    farm.git("remote", "add", "origin", str(origin))
    farm.git("push", "--quiet", "origin", "main")
    release(upstream, "b2", "vllm/worker.py", "def work():\n    return 'fast'\n")
    event = {"repository": {"default_branch": "main"}}
    run = farm.run("schedule", "update", payload=event)
    jobs = {"engines behind upstream", "overlaid-b1", "pull requests"}
    assert run.jobs == dict.fromkeys(jobs, "succeeded")
    farm.git("fetch", "--quiet", "origin")
    changed = farm.git("diff", "--name-only", head, "origin/update/overlaid-b1").splitlines()
    both = {"recipes/overlaid-b1.toml", "recipes/overlaid-b2.toml"}
    assert both | {"tests/data/golden/overlaid-b2.Dockerfile"} <= {*changed}
    assert both == {name for name in changed if not name.startswith("tests/data/golden/")}
    assert upstream.head() in farm.git("show", "origin/update/overlaid-b1:recipes/overlaid-b2.toml")
    request = (farm.folder / "pull-requests").read_text()
    assert request.startswith("pr create --head update/overlaid-b1 --base main")
    assert "farm: creating" not in request
