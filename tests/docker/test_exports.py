"""Exported files, read by the programs that they are for."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import time
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from builder.checks.server import Server, ServerClient
from builder.core.errors import RecipeError
from builder.core.files import made_once
from builder.docker.containers import Container
from builder.docker.engine import executable
from builder.engines.servers import API_FLAVORS
from builder.presets import exports, schema
from builder.presets.exports import LOST
from builder.presets.service import Mount, Service, ServiceOption, Variable
from builder.sources import apt
from support.environment import SHARED_CACHE
from support.services import BASE, HOSTILE, KEYED, SERVICES, free_port, services
from support.smoke_tests import docker

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
    arguments=tuple(ServiceOption((text, "--option"), text) for text in HOSTILE),
    environment=(Variable("A_VARIABLE", "".join(HOSTILE)),),
    mounts=(Mount('/srv/$models %n it\'s "q" \\d é', "/models/%n $a"),),
)


def composed(services: Iterable[Service], folder: Path) -> list[dict[str, Any]]:
    """Services as Docker Compose reads their files, all in one project.

    `config` prints them with doubled dollar signs.
    """
    command = [executable(), "compose"]
    for number, each in enumerate(services):
        text = exports.compose(replace(each, name=f"builder-{number}"))
        file = folder / f"{number}.yaml"
        file.write_text(text.replace("\n  server:\n", f"\n  server-{number}:\n", 1))
        command += ["--file", str(file)]
    done = subprocess.run(
        [*command, "config", "--format", "json"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"{done.stderr}\n{[*services]}"
    assert done.stderr == ""  # it warns of variables that are not set
    found: dict[str, Any] = json.loads(done.stdout.replace("$$", "$"))["services"]
    return [found[f"server-{number}"] for number in range(len(found))]


def assert_composed(found: dict[str, Any], service: Service) -> None:
    assert (found["command"] or []) == service.words
    variables = {each.name: each.value for each in service.environment}
    assert (found.get("environment") or {}) == variables
    assert found["image"] == service.image
    volumes = [(each["source"], each["target"]) for each in found.get("volumes", [])]
    cache = [("cache", service.cache)] if service.cache else []
    assert volumes == [*((mount.source, mount.target) for mount in service.mounts), *cache]


@settings(few, max_examples=5)
@given(several=st.lists(services(), min_size=5, max_size=5))
def test_any_argument_reaches_compose_as_it_is(several: list[Service], tmp_path: Path) -> None:
    for found, service in zip(composed(several, tmp_path), several, strict=True):
        assert_composed(found, service)


def test_hostile_arguments_reach_compose_as_they_are(tmp_path: Path) -> None:
    [found] = composed([ALL_HOSTILE], tmp_path)
    assert_composed(found, ALL_HOSTILE)


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """The services of the presets as Docker Compose reads them."""
    found = composed(SERVICES.values(), tmp_path_factory.mktemp("published"))
    return dict(zip(SERVICES, found, strict=True))


@pytest.mark.parametrize("name", SERVICES)
def test_compose_reads_a_published_preset(name: str, published: dict[str, dict[str, Any]]) -> None:
    service, found = SERVICES[name], published[name]
    assert_composed(found, service)
    (device,) = found["deploy"]["resources"]["reservations"]["devices"]
    assert device == {"driver": "nvidia", "count": service.cards, "capabilities": ["gpu"]}
    health = found["healthcheck"]
    assert health["test"] == ["CMD", *service.health_check]
    assert (health["start_period"], health["start_interval"]) == ("15m0s", "5s")
    assert (found["init"], found["stop_grace_period"]) == (True, "30s")
    assert ("shm_size" in found) is (service.cards > 1)
    (port,) = found["ports"]
    assert (port["host_ip"], port["published"]) == ("127.0.0.1", str(service.published))


def test_compose_reads_what_the_container_needs(tmp_path: Path) -> None:
    needs = schema.ContainerOptions(
        ipc="host", shm_size="16g", memlock=True, capabilities=["IPC_LOCK"]
    )
    [found] = composed([replace(BASE, container=needs, cards=0)], tmp_path)
    assert found["ipc"] == "host"
    assert found["shm_size"] == str(16 << 30)
    assert found["ulimits"] == {"memlock": -1}
    assert found["cap_add"] == ["IPC_LOCK"]
    assert found["cap_drop"] == ["ALL"]
    assert found["security_opt"] == ["no-new-privileges:true"]
    assert "read_only" not in found
    assert "pull_policy" not in found
    assert "deploy" not in found
    assert found["restart"] == "unless-stopped"
    several = [replace(BASE, local=True, read_only=True, restart="on-failure:3"), KEYED]
    other, keyed = composed(several, tmp_path)
    assert other["restart"] == "on-failure:3"
    assert keyed["ports"][0]["host_ip"] == "0.0.0.0"  # noqa: S104
    assert keyed["volumes"][1]["source"] == "/state/keys/1.yaml"
    assert (other["read_only"], other["tmpfs"]) == (True, ["/tmp"])
    assert other["pull_policy"] == "never"


def test_compose_takes_the_models_directory_of_a_variable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MODELS_DIR", "/other $models")
    mounts = (Mount("/srv/models", "/models"), Mount("/srv/a.gguf", "/model/a.gguf", file=True))
    [found] = composed([replace(BASE, mounts=mounts)], tmp_path)
    assert [each["source"] for each in found["volumes"]] == ["/other $models", "/srv/a.gguf"]


def unit_of(service: Service, folder: Path) -> str:
    """The unit that Podman's generator writes."""
    folder.mkdir(exist_ok=True)
    (folder / "a.container").write_text(exports.quadlet(service))
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
    return done.stdout


def generated(service: Service, folder: Path) -> list[str]:
    """The words of the ExecStart= that Podman's generator writes, as systemd reads them."""
    lines = unit_of(service, folder).split("\n")
    (command,) = (line for line in lines if line.startswith("ExecStart=/usr/bin/podman"))
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
            exports.quadlet(service)
        return
    assert_generated(service, tmp_path)


def assert_generated(service: Service, tmp_path: Path) -> None:
    words = generated(service, tmp_path)
    place = words.index(f"docker.io/{service.image}")
    assert words[place + 1 :] == service.words
    given = {words[place + 1] for place, word in enumerate(words[:place]) if word == "--env"}
    assert given == {f"{each.name}={each.value}" for each in service.environment}
    mounted = [words[place + 1] for place, word in enumerate(words[:place]) if word == "-v"]
    cache = [f"{service.name}-cache:{service.cache}"] if service.cache else []
    assert mounted == [*(f"{each.source}:{each.target}:ro,z" for each in service.mounts), *cache]


@pytest.mark.parametrize("path", ["/srv/a:b", "/srv/a\nExec=b", "/srv/a\x7f"])
def test_a_path_that_podman_cannot_mount(path: str) -> None:
    with pytest.raises(RecipeError, match="Quadlet cannot mount"):
        exports.quadlet(replace(BASE, mounts=(Mount(path, "/model"),)))


def test_hostile_arguments_reach_podman_as_they_are(tmp_path: Path) -> None:
    kept = tuple(each for each in ALL_HOSTILE.arguments if not LOST.keys() & {*each.words})
    assert_generated(replace(ALL_HOSTILE, arguments=kept), tmp_path)


@pytest.mark.parametrize("lost", LOST)
def test_podman_still_loses_what_is_refused(
    lost: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exports, "LOST", {})
    words = generated(replace(BASE, arguments=(ServiceOption(("a", lost, "b")),)), tmp_path)
    bare = {"": ["a"], ";": ["a", ";", "b"]}  # a bare ; is systemd's
    assert words[words.index(f"docker.io/{BASE.image}") + 1 :] == bare[lost]


@pytest.mark.parametrize("name", SERVICES)
def test_quadlet_reads_a_published_preset(name: str, tmp_path: Path) -> None:
    service = SERVICES[name]
    assert_generated(service, tmp_path)
    words = generated(service, tmp_path)
    assert words.count("--device") == service.cards
    assert words[words.index("-v") + 1] == "/srv/models:/models:ro,z"
    assert {"--init", "--cap-drop", "--sdnotify=healthy"} <= {*words}
    assert ("--read-only" in words) is service.read_only
    assert words[words.index("--health-cmd") + 1] == " ".join(service.health_check)


def test_quadlet_reads_what_the_container_needs(tmp_path: Path) -> None:
    needs = schema.ContainerOptions(
        ipc="host", shm_size="16g", memlock=True, capabilities=["IPC_LOCK"]
    )
    words = generated(replace(BASE, container=needs, cards=0), tmp_path)
    assert "--ipc=host" in words
    assert words[words.index("--shm-size") + 1] == "16g"
    assert words[words.index("--ulimit") + 1] == "memlock=-1:-1"
    assert words[words.index("--cap-add") + 1] == "ipc_lock"
    assert "--device" not in words


def podman_root(made: Path, work: Path) -> None:
    """Write a root with Podman 5, which bookworm and Ubuntu 24.04 do not have."""
    made.mkdir()
    known = work / "trixie.sources"
    known.write_text(apt.deb822(apt.debian_sources("trixie")))  # else mmdebstrap has its own
    options = ["--variant=essential", '--aptopt=APT::Install-Recommends "false"']
    packages = "--include=podman,catatonit,nftables"
    command = ["mmdebstrap", "--quiet", *options, packages, "trixie", str(made / "root.tar")]
    command += [str(known)] if known.stat().st_size else []
    subprocess.run(command, check=True)


@pytest.fixture
def podman() -> Iterator[str]:
    """A container with Podman."""
    image = "builder-test/podman:5"
    month = time.strftime("%Y-%m")  # a newer one replaces it
    root = made_once(SHARED_CACHE, "podman-of-the-tests", month, print, podman_root)
    docker("import", str(root / "root.tar"), image)
    storage = ["--network=none", "--privileged", "--tmpfs=/run", "--volume=/var/lib/containers"]
    container = docker("run", "--detach", *storage, image, "sleep", "infinity")
    yield container
    docker("rm", "--force", "--volumes", container)
    docker("rmi", image)


def test_podman_starts_an_image_that_no_registry_has(
    hello: dict[str, Any], podman: str, tmp_path: Path
) -> None:
    """On the CPU, from the unit's own words; systemd's part is to run the health check."""
    service = replace(
        BASE,
        image=hello["references"][0],
        arguments=(ServiceOption(("--device", "cpu")),),
        environment=(Variable("BUILDER_CPU", "1"),),
        cards=0,
        local=True,
        read_only=True,
    )
    (load,) = re.findall(r"#   (docker save .* \| podman load\n)", exports.quadlet(service))
    command = load.replace("podman", f"docker exec --interactive {podman} podman")
    subprocess.run(["sh", "-ec", command], check=True, capture_output=True)
    words = [word.replace("%t/%N", "/run/a") for word in generated(service, tmp_path / "unit")]
    inside = [executable(), "exec", podman]
    start = subprocess.Popen([*inside, *words], stderr=subprocess.PIPE, text=True)
    deadline, check = time.monotonic() + 60, ["podman", "healthcheck", "run", service.name]
    while subprocess.run([*inside, *check], check=False, capture_output=True).returncode:
        assert start.poll() is None, start.communicate()[1]
        assert time.monotonic() < deadline
    assert start.wait(60) == 0, "the unit is active once it is healthy"
    form = "--format={{.State.Health.Status}}"
    assert docker("exec", podman, "podman", "inspect", form, service.name) == "healthy"


@pytest.mark.parametrize(
    ("image", "local", "name"),
    [
        ("a:1@sha256:0", True, "docker.io/library/a:1"),
        ("me/a:1", True, "docker.io/me/a:1"),
        ("127.0.0.1:5000/ci/a:1@sha256:0", True, "127.0.0.1:5000/ci/a:1"),
        ("ghcr.io/me/a:1@sha256:0", False, "ghcr.io/me/a:1@sha256:0"),
        ("me/a:1@sha256:0", False, "docker.io/me/a:1@sha256:0"),
    ],
)
def test_an_image_has_its_registry(image: str, local: bool, name: str, tmp_path: Path) -> None:
    service = replace(BASE, image=image, local=local)
    words = generated(service, tmp_path)
    assert name in words
    assert (words[words.index("--pull") + 1] == "never" if "--pull" in words else False) is local
    load = f"docker save {image.partition('@')[0]} | podman load\n"
    assert (load in exports.quadlet(service)) is local


def test_systemd_does_not_restart_without_a_gpu(tmp_path: Path) -> None:
    unit = unit_of(BASE, tmp_path).splitlines()
    assert "RestartPreventExitStatus=78" in unit
    assert "Restart=always" in unit
    assert "StartLimitBurst=3" in unit
    for policy, restart, most in (("on-failure:5", "on-failure", 5), ("no", "no", 3)):
        text = unit_of(replace(BASE, restart=policy), tmp_path)
        assert f"\nRestart={restart}\n" in text
        assert f"\nStartLimitBurst={most}\n" in text
        assert ("[Install]" in text) is (policy != "no")


def test_podman_publishes_for_the_lan_and_mounts_the_key(tmp_path: Path) -> None:
    words = generated(KEYED, tmp_path)
    assert words[words.index("--publish") + 1] == "0.0.0.0:8081:8080"
    assert "/state/keys/1.yaml:/run/api-key.yaml:ro,z" in words


def test_compose_starts_the_server(hello: dict[str, Any], tmp_path: Path) -> None:
    """hello-sm120 on the CPU: a real GPU is not reserved."""
    service = replace(
        BASE,
        name="builder-test-compose",
        image=hello["references"][0],
        arguments=(ServiceOption(("--device", "cpu"), "there is no GPU"),),
        environment=(Variable("BUILDER_CPU", "1"),),
        published=free_port(),
        cards=0,
        local=True,
        read_only=True,
        cache="/cache",
    )
    (tmp_path / "compose.yaml").write_text(exports.compose(service))
    command = [executable(), "compose", "--file", str(tmp_path / "compose.yaml")]
    try:
        subprocess.run([*command, "up", "--detach"], check=True, capture_output=True)
        container = Container(service.name)
        server = Server(container, ServerClient(service.url), API_FLAVORS["hello"])
        server.wait(30)
        health = container.execute(service.health_check, 30)
        assert health.status == 0, health.output
    finally:
        subprocess.run([*command, "down", "--volumes"], check=True, capture_output=True)


def test_without_a_gpu_compose_gives_up(hello: dict[str, Any], tmp_path: Path) -> None:
    """The container ends with 78, and is started again as often as it is told."""
    service = replace(
        BASE,
        name="builder-test-compose-78",
        image=hello["references"][0],
        published=free_port(),
        cards=0,
        local=True,
        read_only=True,
        restart="on-failure:3",
    )
    (tmp_path / "compose.yaml").write_text(exports.compose(service))
    command = [executable(), "compose", "--file", str(tmp_path / "compose.yaml")]
    try:
        subprocess.run([*command, "up", "--detach"], check=True, capture_output=True)
        restarts, deadline = "", time.monotonic() + 60
        while restarts != "3 exited 78":
            assert time.monotonic() < deadline, restarts
            time.sleep(0.25)
            form = "{{.RestartCount}} {{.State.Status}} {{.State.ExitCode}}"
            restarts = docker("inspect", f"--format={form}", service.name).strip()
    finally:
        subprocess.run([*command, "down"], check=True, capture_output=True)


SLOW = "trap 'sleep 4; exit 0' TERM; while :; do sleep 0.1; done"


def test_llama_swap_starts_a_model_whose_last_container_has_not_ended(
    hello: dict[str, Any],
) -> None:
    """During a slow stop, and after somebody killed the docker client alone."""
    image = "builder-test/slow-stop:1"
    created = docker("create", hello["references"][0]).strip()
    try:
        docker("commit", '--change=ENTRYPOINT ["sh"]', created, image)
    finally:
        docker("rm", created)
    service = replace(
        BASE,
        name="builder-test-llama-swap",
        image=image,
        arguments=(ServiceOption(("-c", SLOW)),),
        cards=0,
        local=True,
    )
    ((_, model),) = yaml.safe_load(exports.llama_swap(service))["models"].items()
    command = shlex.split(model["cmd"].replace("${PORT}", str(free_port())))
    clients: list[subprocess.Popen[bytes]] = []
    identities: list[str] = []

    def start() -> None:
        clients.append(subprocess.Popen(command))
        deadline = time.monotonic() + 60
        while (found := running(service.name)) in {"", *identities}:
            assert clients[-1].poll() is None, "the docker client has ended"
            assert time.monotonic() < deadline
            time.sleep(0.1)
        identities.append(found)

    try:
        start()
        stop = subprocess.Popen(shlex.split(model["cmdStop"]), stdout=subprocess.DEVNULL)
        start()  # meanwhile the server still stops
        assert stop.wait() == 0
        assert clients[0].wait() == 0, "it was killed before its requests had ended"
        clients[1].kill()
        clients[1].wait()
        assert running(service.name) == identities[1]
        start()
    finally:
        subprocess.run([executable(), "rm", "--force", service.name], check=True)
        for client in clients:
            client.wait()
        docker("rmi", image)


def running(name: str) -> str:
    """The identity of the container of that name that runs; empty where there is none."""
    return docker("ps", "--no-trunc", "--quiet", f"--filter=name=^{name}$").strip()
