"""The life of a server after its start: listed, read, stopped, updated, removed; two checkouts."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from builder.checks.server import ModelList, ServerClient
from builder.docker import containers
from support.commands import Builder
from support.runs import RUNS, VERSION, image_of, key_of, recipe_of
from support.services import free_port
from support.smoke_tests import docker

pytestmark = [pytest.mark.docker, pytest.mark.xdist_group("smoke")]
IMAGE = "hello-of-the-servers"
TAG = f"{IMAGE}:0.1.0"
LAN = "0.0.0.0"  # noqa: S104


class Checkout:
    """A checkout with a recipe of hello-sm120, whose image nobody compiles."""

    def __init__(self, builder: Builder, root: Path, start: str) -> None:
        self.builder, self.root, self.start = builder, root, start
        self.name = recipe_of(root, IMAGE)

    def image(self) -> None:
        image_of(self.start, TAG, self.name, key_of(self.root, self.name))

    def __call__(self, *words: str, expect: int = 0) -> str:
        done = self.builder(words[0], "--catalog", self.root, *words[1:])
        assert done.returncode == expect, done.stderr
        return done.stdout + done.stderr

    def servers(self) -> list[dict[str, str]]:
        done = self.builder("ps", "--json", "--catalog", self.root)
        return [each for each in json.loads(done.stdout) if each["server"] == self.name]


@pytest.fixture
def farm(builder: Builder, catalog: Path, hello: dict[str, Any]) -> Iterator[Checkout]:
    _clear()
    made = Checkout(builder, catalog, hello["references"][0])
    made.image()
    yield made
    _clear()


def _clear() -> None:
    listed = docker("ps", "--all", "--quiet", f"--filter=name=^{RUNS}").split()
    containers.remove(*listed)
    for digest in docker("image", "ls", "--quiet", "--no-trunc", IMAGE).split():
        docker("image", "rm", "--force", digest)


def test_a_server_from_its_start_to_its_end(farm: Checkout) -> None:
    port = free_port()
    lan = ("--listen", LAN, "--api-key-file", "none", "--port", str(port))
    command = ("run", farm.name, "--cpu", *lan, "--restart", "on-failure:5")
    assert "--api-key-file none" in farm("run", farm.name, "--cpu", "--listen", LAN, expect=2)
    told = farm(*command, "--", "--sampling", "random")
    assert f"http://127.0.0.1:{port}/v1\n" in told
    assert "this engine has no web page" in told
    assert f" logs {farm.name}\n" in told
    assert ServerClient(f"http://127.0.0.1:{port}").get("/v1/models", ModelList, 10).data
    policy = docker("inspect", "--format={{json .HostConfig.RestartPolicy}}", RUNS)
    assert json.loads(policy) == {"Name": "on-failure", "MaximumRetryCount": 5}
    (row,) = farm.servers()
    assert row["address"] == f"{LAN}:{port}"
    assert row["state"] in {"starting", "healthy"}
    assert row["note"] == ""
    assert f"listening on {LAN} port 8080" in farm("logs", farm.name)
    assert farm("logs", farm.name, "--tail", "0") == ""
    assert "up to date" in farm("update", farm.name)
    # Another server on this port is refused before anything is built.
    recipe = farm.root / "recipes" / f"{farm.name}.toml"
    text = recipe.read_text().replace(VERSION, f"{VERSION}-2").replace(IMAGE, f"{IMAGE}-2")
    recipe.with_name(f"{farm.name}-2.toml").write_text(text)
    other = farm("run", f"{farm.name}-2", "--cpu", "--port", str(port), "--yes", expect=4)
    assert f"port {port} of 127.0.0.1 cannot be used: {RUNS} has it" in other
    assert "building" not in other
    recipe.with_name(f"{farm.name}-2.toml").unlink()
    assert "stopped" in farm("stop", farm.name)
    (row,) = farm.servers()
    assert row["state"] == "exited (0)"
    # What has ended is started anew, with its log gone.
    assert "healthy after" in farm(*command)
    assert "removed" in farm("rm", farm.name)
    assert farm.servers() == []
    assert "no server is named" in farm("stop", farm.name, expect=2)
    assert "name servers, or give --all" in farm("stop", expect=2)


def test_an_update_builds_first_and_keeps_all_options(farm: Checkout) -> None:
    port = free_port()
    lan = ("--listen", LAN, "--api-key-file", "none", "--port", str(port))
    farm("run", farm.name, "--cpu", *lan, "--", "--sampling", "random")
    before = docker("inspect", "--format={{.Id}}", RUNS)
    file = farm.root / "recipes" / f"{farm.name}.toml"
    text = file.read_text()
    file.write_text(text.replace("HELLO_BUILD_NUMBER = 1", "HELLO_BUILD_NUMBER = 2"))
    assert file.read_text() != text
    (row,) = farm.servers()
    assert row["note"] == "its image is older than its recipe"
    told = farm("update", farm.name, "--dry-run")
    assert f"build {TAG}" in told
    assert "start it anew" in told
    assert "nobody can be asked here" in farm("update", farm.name, expect=4)
    assert docker("inspect", "--format={{.Id}}", RUNS) == before
    # A new server that fails leaves the old one.
    entry = 'ENTRYPOINT ["/opt/engine/bin/hello-server", "--no-such"]'
    broken = f"{IMAGE}:broken"
    output = f"--output=type=image,name={broken}"
    docker("buildx", "build", output, "-", text=f"FROM {farm.start}\n{entry}\n")
    image_of(broken, TAG, farm.name, key_of(farm.root, farm.name))
    assert "unknown --no-such" in farm("update", farm.name, "--yes", expect=8)
    assert docker("inspect", "--format={{.Id}} {{.State.Running}}", RUNS).split() == [
        before.strip(),
        "true",
    ]
    farm.image()
    told = farm("update", "--yes")
    assert f"{farm.name}: its image is older than its recipe: start it anew" in told
    assert f"http://127.0.0.1:{port}/v1" in told
    found = json.loads(docker("inspect", RUNS))[0]
    assert found["Id"] != before.strip()
    assert found["Args"][-2:] == ["--sampling", "random"]
    assert found["HostConfig"]["RestartPolicy"]["Name"] == "unless-stopped"
    (row,) = farm.servers()
    assert (row["address"], row["note"]) == (f"{LAN}:{port}", "")
    assert docker("ps", "--all", "--quiet", f"--filter=name=^{RUNS}").split() == [found["Id"][:12]]


def test_two_checkouts_have_a_server_each(farm: Checkout, tmp_path: Path) -> None:
    shutil.copytree(farm.root, tmp_path / "other", symlinks=True)
    other = Checkout(farm.builder, tmp_path / "other", farm.start)
    ports = [str(free_port()) for _ in range(2)]
    farm("run", farm.name, "--cpu", "--port", ports[0])
    told = other("run", farm.name, "--cpu", "--port", ports[1])
    assert "healthy after" in told
    assert "runs already" in other("run", farm.name, "--cpu", "--port", ports[1])
    assert "runs already" in farm("run", farm.name, "--cpu", "--port", ports[0])
    notes = {each["address"]: each["note"] for each in other.servers()}
    assert notes == {
        f"127.0.0.1:{ports[0]}": f"of {farm.root.resolve()}",
        f"127.0.0.1:{ports[1]}": "",
    }
    other("stop", farm.name)
    assert [each["state"] for each in other.servers()].count("exited (0)") == 1
    other("rm", "--all")
    assert len(farm.servers()) == 1
