"""Exported files, read by the programs that they are for."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings

from builder.errors import RecipeError
from builder.exports import compose, quadlet
from builder.exports.quadlet import LOST
from builder.presets import schema
from builder.presets.service import Mount, Option, Service, Variable
from builder.servers.api_flavor import API_FLAVORS
from builder.servers.client import Client
from builder.servers.server import Server
from builder.tools.docker.containers import Container
from builder.tools.docker.engine import executable
from support.services import BASE, HOSTILE, SERVICES, free_port, services

pytestmark = pytest.mark.docker
QUADLET = f"/usr/libexec/podman:/usr/local/libexec/podman:{os.environ['PATH']}"
WORD = re.compile(r'"(?:[^"\\]|\\.)*"|[^ "]+')
ESCAPE = re.compile(r"\\(x[0-9a-f]{2}|u[0-9a-f]{4}|U[0-9a-f]{8}|.)")
UNESCAPED = {'"': '"', "\\": "\\", "n": "\n", "t": "\t", "s": " ", "'": "'"}
few = settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
ALL_HOSTILE = replace(
    BASE,
    arguments=tuple(Option((text, "--option"), text) for text in HOSTILE),
    environment=(Variable("A_VARIABLE", "".join(HOSTILE)),),
    mounts=(Mount('/srv/$models %n it\'s "q" \\d é', "/models/%n $a"),),
)


def composed(text: str, folder: Path) -> dict[str, Any]:
    """The service as Docker Compose reads it: `config` prints it with doubled dollar signs."""
    (folder / "compose.yaml").write_text(text)
    command = [executable(), "compose", "--file", str(folder / "compose.yaml")]
    done = subprocess.run(
        [*command, "config", "--format", "json"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"{done.stderr}\n{text}"
    assert done.stderr == ""  # it warns of variables that are not set
    found: dict[str, Any] = json.loads(done.stdout.replace("$$", "$"))["services"]["server"]
    return found


def assert_composed(found: dict[str, Any], service: Service) -> None:
    assert (found["command"] or []) == service.words
    variables = {each.name: each.value for each in service.environment}
    assert (found.get("environment") or {}) == variables
    assert found["image"] == service.image
    assert [(each["source"], each["target"]) for each in found.get("volumes", [])] == [
        (mount.source, mount.target) for mount in service.mounts
    ]


@few
@given(service=services())
def test_any_argument_reaches_compose_as_it_is(service: Service, tmp_path: Path) -> None:
    assert_composed(composed(compose.document(service), tmp_path), service)


def test_hostile_arguments_reach_compose_as_they_are(tmp_path: Path) -> None:
    assert_composed(composed(compose.document(ALL_HOSTILE), tmp_path), ALL_HOSTILE)


@pytest.mark.parametrize("name", SERVICES)
def test_compose_reads_a_published_preset(name: str, tmp_path: Path) -> None:
    service = SERVICES[name]
    found = composed(compose.document(service), tmp_path)
    assert_composed(found, service)
    (device,) = found["deploy"]["resources"]["reservations"]["devices"]
    assert device == {"driver": "nvidia", "count": service.cards, "capabilities": ["gpu"]}
    assert found["healthcheck"]["test"] == ["CMD", *service.health_check]
    (port,) = found["ports"]
    assert (port["host_ip"], port["published"]) == ("127.0.0.1", str(service.published))


def test_compose_reads_what_the_container_needs(tmp_path: Path) -> None:
    needs = schema.Container(
        ipc="host", shm_size="16g", memlock=True, capabilities=["IPC_LOCK", "NICE"]
    )
    found = composed(compose.document(replace(BASE, container=needs, cards=0)), tmp_path)
    assert found["ipc"] == "host"
    assert found["shm_size"] == str(16 << 30)
    assert found["ulimits"] == {"memlock": -1}
    assert found["cap_add"] == ["IPC_LOCK", "NICE"]
    assert "deploy" not in found
    assert found["restart"] == "unless-stopped"


def generated(service: Service, folder: Path) -> list[str]:
    """The words of the ExecStart= that Podman's generator writes, as systemd reads them."""
    folder.mkdir(exist_ok=True)
    (folder / "a.container").write_text(quadlet.document(service))
    program = shutil.which("quadlet", path=QUADLET)
    assert program is not None, "./farm test installs Podman's quadlet"
    done = subprocess.run(
        [program, "--dryrun"],
        env={"QUADLET_UNIT_DIRS": str(folder)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    (command,) = (
        line for line in done.stdout.split("\n") if line.startswith("ExecStart=/usr/bin/podman")
    )
    return [unquoted(word) for word in WORD.findall(command.removeprefix("ExecStart="))]


def unquoted(word: str) -> str:
    """systemd.syntax(7), "Quoting"; then the specifier %% and the variable $$."""
    if word.startswith('"'):
        word = word[1:-1]
    plain = ESCAPE.sub(lambda found: UNESCAPED.get(found[1]) or chr(int(found[1][1:], 16)), word)
    own = re.sub("%%|%t|%N", "", plain)  # the generator itself writes %t and %N
    assert "%" not in own, word
    assert "$" not in plain.replace("$$", ""), word
    return plain.replace("%%", "%").replace("$$", "$")


@few
@given(service=services())
def test_any_argument_reaches_podman_as_it_is(service: Service, tmp_path: Path) -> None:
    if LOST.keys() & {*service.words}:
        with pytest.raises(RecipeError, match="Quadlet cannot pass"):
            quadlet.document(service)
        return
    assert_generated(service, tmp_path)


def assert_generated(service: Service, tmp_path: Path) -> None:
    words = generated(service, tmp_path)
    place = words.index(f"docker.io/{service.image}")
    assert words[place + 1 :] == service.words
    given = {words[place + 1] for place, word in enumerate(words[:place]) if word == "--env"}
    assert given == {f"{each.name}={each.value}" for each in service.environment}
    mounted = [words[place + 1] for place, word in enumerate(words[:place]) if word == "-v"]
    assert mounted == [f"{each.source}:{each.target}:ro" for each in service.mounts]


@pytest.mark.parametrize("path", ["/srv/a:b", "/srv/a\nExec=b", "/srv/a\x7f"])
def test_a_path_that_podman_cannot_mount(path: str) -> None:
    with pytest.raises(RecipeError, match="Quadlet cannot mount"):
        quadlet.document(replace(BASE, mounts=(Mount(path, "/model"),)))


def test_hostile_arguments_reach_podman_as_they_are(tmp_path: Path) -> None:
    kept = tuple(each for each in ALL_HOSTILE.arguments if not LOST.keys() & {*each.words})
    assert_generated(replace(ALL_HOSTILE, arguments=kept), tmp_path)


@pytest.mark.parametrize("lost", LOST)
def test_podman_still_loses_what_is_refused(
    lost: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(quadlet, "LOST", {})
    words = generated(replace(BASE, arguments=(Option(("a", lost, "b")),)), tmp_path)
    bare = {"": ["a"], ";": ["a", ";", "b"]}  # a bare ; is systemd's
    assert words[words.index(f"docker.io/{BASE.image}") + 1 :] == bare[lost]


@pytest.mark.parametrize("name", SERVICES)
def test_quadlet_reads_a_published_preset(name: str, tmp_path: Path) -> None:
    service = SERVICES[name]
    assert_generated(service, tmp_path)
    words = generated(service, tmp_path)
    assert words.count("--device") == service.cards
    assert words[words.index("-v") + 1] == "/srv/models:/models:ro"
    assert words[words.index("--health-cmd") + 1] == " ".join(service.health_check)


def test_quadlet_reads_what_the_container_needs(tmp_path: Path) -> None:
    needs = schema.Container(ipc="host", shm_size="16g", memlock=True, capabilities=["IPC_LOCK"])
    words = generated(replace(BASE, container=needs, cards=0), tmp_path)
    assert "--ipc=host" in words
    assert words[words.index("--shm-size") + 1] == "16g"
    assert words[words.index("--ulimit") + 1] == "memlock=-1:-1"
    assert words[words.index("--cap-add") + 1] == "ipc_lock"
    assert "--device" not in words


def test_compose_starts_the_server(hello: dict[str, Any], tmp_path: Path) -> None:
    """hello-sm120 on the CPU: a real GPU is not reserved."""
    service = replace(
        BASE,
        name="builder-test-compose",
        image=hello["references"][0],
        arguments=(Option(("--device", "cpu"), "there is no GPU"),),
        environment=(Variable("BUILDER_CPU", "1"),),
        published=free_port(),
        cards=0,
    )
    (tmp_path / "compose.yaml").write_text(compose.document(service))
    command = [executable(), "compose", "--file", str(tmp_path / "compose.yaml")]
    try:
        subprocess.run([*command, "up", "--detach"], check=True, capture_output=True)
        container = Container(service.name)
        server = Server(container, Client(service.url), API_FLAVORS["hello"])
        server.wait(30)
        health = container.execute(service.health_check, 30)
        assert health.status == 0, health.output
    finally:
        subprocess.run([*command, "down"], check=True, capture_output=True)
