"""The image that `run` and `export` take: the recipe's as it is now, pulled once, or named."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from builder.core import web
from builder.core.settings import Settings
from builder.docker import containers, engine
from builder.presets.images import Images
from builder.publish.registry import Repository
from support import catalogs
from support.commands import Builder
from support.registries import Fault, Proxy
from support.runs import RUNS, VERSION, image_of, key_of, recipe_of
from support.services import free_port
from support.smoke_tests import docker

pytestmark = [pytest.mark.docker, pytest.mark.xdist_group("smoke")]
IMAGE = "hello-of-the-test"
TAG = "0.1.0"
OLD = "0" * 64


class Machine:
    """A recipe, its server on the CPU, and its images in an engine and a registry."""

    def __init__(self, builder: Builder, catalog: Path, start: str, namespace: str) -> None:
        self.builder, self.catalog, self.start = builder, catalog, start
        self.repository = f"{namespace}/{IMAGE}" if namespace else IMAGE
        self.name = recipe_of(catalog, IMAGE)
        self.key = key_of(catalog, self.name)
        self.tag = f"{self.repository}:{TAG}"
        self.port = str(free_port())

    def image(self, key: str, tag: str = "") -> str:
        return image_of(self.start, tag or self.tag, self.name, key)

    def run(self, *options: str, expect: int = 0) -> str:
        command = ("run", self.name, "--cpu", "--port", self.port, *options)
        done = self.builder(*command, "--catalog", self.catalog)
        assert done.returncode == expect, done.stderr
        return done.stderr

    def export(self, *options: str, expect: int = 0) -> str:
        done = self.builder("export", self.name, *options, "--catalog", self.catalog)
        assert done.returncode == expect, done.stderr
        return done.stdout + done.stderr

    def remove_images(self) -> None:
        for digest in docker("image", "ls", "--quiet", "--no-trunc", self.repository).split():
            docker("image", "rm", "--force", digest)


def _machine(builder: Builder, catalog: Path, start: str, namespace: str) -> Iterator[Machine]:
    containers.remove(RUNS)  # of a run that was killed
    machine = Machine(builder, catalog, start, namespace)
    machine.remove_images()
    yield machine
    containers.remove(RUNS)
    machine.remove_images()


@pytest.fixture
def machine(builder: Builder, catalog: Path, hello: dict[str, Any]) -> Iterator[Machine]:
    yield from _machine(builder, catalog, hello["references"][0], "")


@pytest.fixture
def with_registry(
    builder: Builder, catalog: Path, hello: dict[str, Any], proxy: Proxy
) -> Iterator[Machine]:
    yield from _machine(builder, catalog, hello["references"][0], f"{proxy.address}/me")


def test_an_image_of_an_older_recipe_is_named_and_started_only_when_asked(machine: Machine) -> None:
    digest = machine.image(OLD)
    other = f"the image {machine.tag}@{digest} in Docker is of another state of {machine.name}"
    told = machine.run(expect=4)
    assert f"{other}, mostly an older one (its build key is 000000000000)" in told
    assert f"`builder build {machine.name}`" in told
    assert "--old" in told
    assert other in machine.export(expect=4)
    comments = machine.export("--allow-incomplete").replace("# ", "")
    assert f"Incomplete: {other}" in " ".join(comments.split())
    done = machine.builder("smoke", machine.name, "--catalog", machine.catalog)
    assert done.returncode == 4
    assert f"{machine.tag} is of another state of it" in done.stderr
    assert other in machine.run("--old")
    assert "runs already" in machine.run("--old")
    # Its container runs: nothing is built for a name that is taken.
    told = machine.run("--yes", expect=9)
    assert other in told
    assert f"builder stop {RUNS}" in told
    # The image of the recipe as it is now comes beside it, under another name.
    now = machine.image(machine.key, f"{machine.repository}:another-name")
    told = machine.run(expect=9)
    assert f"it runs the image {machine.tag}@{digest}, and not {machine.tag}@{now}" in told
    containers.remove(RUNS)
    assert f"starting {machine.tag}@{now}" in machine.run()
    assert now in machine.export()


def test_a_candidate_without_a_verdict_is_not_the_image(machine: Machine) -> None:
    machine.image(machine.key, f"{machine.repository}:unverified-{machine.key[:12]}")
    assert f"there is no image {machine.tag} in Docker" in machine.run(expect=4)


def test_what_was_pulled_is_found_again_also_without_its_registry(
    with_registry: Machine, proxy: Proxy
) -> None:
    machine = with_registry
    digest = machine.image(machine.key)
    docker("push", machine.tag)
    machine.remove_images()
    published = f"{machine.tag}@{digest}"
    told = machine.run(expect=4)
    assert f"the image {published} is published, and not in Docker" in told
    assert f"`builder run {machine.name} --yes`, or docker pull {published}" in told
    told = machine.run("--yes")
    (asked,) = [line for line in told.splitlines() if line.startswith("  pull ")]
    assert asked == f"  pull {published}: 0.0 MB"  # but for its labels, it is an image that is here
    assert "build" not in told
    containers.remove(RUNS)
    count = len(proxy.requests)
    assert f"starting {published}" in machine.run()
    assert len(proxy.requests) == count  # also without a registry
    # By digest alone, as somebody pulls it by hand: it has no tag then.
    containers.remove(RUNS)
    for name in (machine.tag, f"{machine.repository}:{VERSION}-{machine.key[:12]}"):
        docker("image", "rm", name)
    docker("pull", "--quiet", f"{machine.repository}@{digest}")
    assert not docker("image", "ls", "--quiet", machine.tag)
    assert f"starting {published}" in machine.run()


def test_a_pull_counts_the_layers_that_are_not_here(
    with_registry: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = with_registry
    machine.image(machine.key)
    text = f"FROM {machine.tag}\nCOPY --from={machine.start} /etc /copied\n"
    output = f"--output=type=image,name={machine.tag}"
    docker("buildx", "build", "--provenance=false", output, "-", text=text)
    docker("push", machine.tag)
    machine.remove_images()
    manifest = Repository(machine.repository, print).manifest(TAG)
    assert manifest is not None
    sizes = [each.size for each in manifest.body.layers or ()]
    loaded = catalogs.load(machine.catalog)
    settings = Settings(namespace=machine.repository.rpartition("/")[0])
    images = Images(loaded, loaded.engine(machine.name).recipe, settings, print)
    found = images.find()
    assert found.size == found.least == sizes[-1] < sum(sizes)
    # The classic store may fetch layers that it has by other digests.
    classic = engine.engine()._replace(containerd_store=False)
    monkeypatch.setattr(engine, "engine", lambda: classic)
    found = images.find()
    assert (found.least, found.size) == (sizes[-1], sum(sizes))


def test_a_published_image_of_an_older_recipe_is_named(with_registry: Machine) -> None:
    machine = with_registry
    digest = machine.image(OLD)
    docker("push", machine.tag)
    machine.remove_images()
    told = machine.run(expect=4)
    assert f"the published image {machine.tag}@{digest} is of another state" in told
    assert f"starting {machine.tag}@{digest}" in machine.run("--old", "--yes")


@pytest.mark.parametrize(
    ("answer", "what", "next_step", "builds"),
    [
        (404, "and it is not published", "build it", True),
        (401, "authentication failed without a login", "docker login", True),
        (403, "has no permission", "permissions of the token", True),
        (503, "fails: ", "try again later", False),
        (429, "fails: ", "try again later", False),
        ("cut", "does not answer: ", "try again later", False),
    ],
)
def test_each_answer_of_a_registry_has_its_own_next_step(
    answer: int | str,
    what: str,
    next_step: str,
    builds: bool,
    with_registry: Machine,
    proxy: Proxy,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    machine = with_registry
    monkeypatch.setattr(web, "GIVEN_UP", {proxy.address})  # one attempt
    proxy.faults.append(Fault("/manifests/", answer, times=99))
    settings = Settings(namespace=f"{proxy.address}/me")
    loaded = catalogs.load(machine.catalog)
    images = Images(loaded, loaded.engine(machine.name).recipe, settings, print)
    found = images.find()
    assert what in found.what
    assert ("is not known" in found.what) == (answer != 404)
    assert next_step in found.hint
    assert found.builds == builds
    # An image that is here is started all the same; an older one is not called the newest.
    machine.image(OLD)
    assert what in images.find().what
    machine.image(machine.key)
    assert not images.find().what


def test_a_channel_follows_its_registry_and_starts_without_it(
    with_registry: Machine, proxy: Proxy
) -> None:
    machine = with_registry
    file = machine.catalog / "recipes" / f"{machine.name}.toml"
    text = file.read_text().replace("\n[image]\n", f'\n[image]\nmoving = ["{TAG}"]\n')
    file.write_text(f'{text}\n[track]\nbranch = "main"\nchannel = "{TAG}"\n')
    for night in "12":
        digest = machine.image(night * 64)
        docker("push", machine.tag)
        if night == "2":  # the engine has the image of the night before
            docker("image", "rm", "--force", digest)
        assert f"starting {machine.tag}@{digest}" in machine.run("--yes")
        containers.remove(RUNS)
    # Nobody waits for the registry to start an image that is here.
    fault = Fault("/v2/", 429, times=999, headers={"Retry-After": "1"})
    proxy.faults.append(fault)
    told = machine.run()
    assert fault.times == 998
    assert f"starting {machine.tag}@{digest}" in told
    assert f"whether {TAG} has moved" in told


def test_all_that_prevents_a_start_is_named_before_anything_is_built(machine: Machine) -> None:
    with socket.create_server(("127.0.0.1", int(machine.port))):
        told = machine.run("--yes", expect=4)
        assert f"port {machine.port} of 127.0.0.1 cannot be used" in told
        assert f"there is no image {machine.tag}" in told
        assert "building" not in told
    docker("create", f"--name={RUNS}", machine.start)
    told = machine.run("--yes", expect=9)
    assert "it is created" in told
    assert "building" not in told
    file = machine.catalog / "recipes" / f"{machine.name}.toml"
    text = file.read_text()
    file.write_text(re.sub(r"(?m)^disk .*$", "disk = 2000.0", text))
    assert "disk = 2000.0" in file.read_text()
    told = machine.run("--yes", expect=4)
    assert "needs 2000.0 GiB of free disk space" in told
    assert "it is created" in told
    containers.remove(RUNS)
    told = machine.run("--yes", expect=10)
    assert "needs 2000.0 GiB of free disk space" in told
    assert "building" not in told
