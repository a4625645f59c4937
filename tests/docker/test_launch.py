"""Services started in the engine: hello-sm120 on the CPU, as a GPU cannot be had."""

from __future__ import annotations

import re
import signal
import socket
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import pytest

from builder.checks.server import ModelList, ServerClient
from builder.core.errors import BusyError, Interrupted, UntriedError
from builder.docker import containers, engine
from builder.engines.servers import API_FLAVORS
from builder.presets import servers as launch_start
from builder.presets.servers import existing, identity, start_service, wait_until_healthy
from builder.presets.service import Mount, Service, ServiceOption, Variable
from support.commands import Builder
from support.runs import RUNS, recipe_of
from support.services import BASE, free_port
from support.smoke_tests import docker

pytestmark = [pytest.mark.docker, pytest.mark.xdist_group("smoke")]
NAME = "builder-test-launch"
HELLO = API_FLAVORS["hello"]


@pytest.fixture
def service(hello: dict[str, Any], tmp_path: Path) -> Iterator[Service]:
    (model := tmp_path / 'a:b, "c" $d.gguf').touch()
    yield replace(
        BASE,
        name=NAME,
        image=hello["references"][0],
        arguments=(ServiceOption(("--device", "cpu")),),
        environment=(Variable("BUILDER_CPU", "1"),),
        mounts=(Mount(str(model), "/model/a.gguf"),),
        published=free_port(),
        cards=0,
    )
    containers.remove(NAME)


def with_options(service: Service, *words: str) -> Service:
    return replace(service, arguments=(*service.arguments, ServiceOption(words)))


def test_a_server_is_followed_until_it_answers_and_runs_on(service: Service) -> None:
    lines: list[str] = []
    assert 0 < start_service(service, HELLO, 30, lines.append) < 30
    assert any("listening" in line for line in lines), lines
    assert ServerClient(service.url).get("/v1/models", ModelList, 10).data
    found = existing(NAME)
    assert found is not None
    assert found.running
    assert found.run == identity(service) != identity(with_options(service, "--sampling", "random"))
    assert found.port == service.published
    again: list[str] = []
    wait_until_healthy(service, HELLO, 30, again.append, lines="0")
    assert again == []
    with pytest.raises(BusyError, match=f"builder stop {NAME}"):
        start_service(service, HELLO, 30, lines.append)
    after = existing(NAME)
    assert after is not None
    assert (after.container, after.running) == (found.container, True)  # it runs on


def test_a_server_that_answers_before_its_log_is_followed_shows_its_log(
    service: Service, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (late := tmp_path / "docker").write_text(
        f'#!/bin/sh\n[ "$2" != --follow ] || exec sleep 60\nexec {engine.executable()} "$@"\n'
    )
    late.chmod(0o755)
    monkeypatch.setattr(engine, "executable", lambda: str(late))
    lines: list[str] = []
    start_service(service, HELLO, 30, lines.append)
    assert len([line for line in lines if "listening" in line]) == 1, lines


def test_the_container_of_another_process_is_not_removed(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    docker("create", f"--name={NAME}", service.image)
    made = existing(NAME)
    assert made is not None
    with pytest.raises(BusyError, match=f"docker rm --force {NAME}"):
        start_service(service, HELLO, 30, lambda _: None)
    # It came after this process looked.
    monkeypatch.setattr(launch_start, "existing", lambda _: None)
    with pytest.raises(UntriedError) as caught:
        start_service(service, HELLO, 30, lambda _: None)
    assert "started it at the same time" in caught.value.hint
    assert existing(NAME) == made
    monkeypatch.undo()
    docker("start", NAME)
    docker("wait", NAME)
    with pytest.raises(BusyError, match=f"docker rm --force {NAME}"):
        start_service(service, HELLO, 30, lambda _: None)
    ended = existing(NAME)
    assert ended is not None
    assert (ended.container, ended.status) == (made.container, "exited")


def test_a_port_that_is_taken_meanwhile_is_named(service: Service) -> None:
    with (
        socket.create_server(("127.0.0.1", service.published)),
        pytest.raises(UntriedError) as caught,
    ):
        start_service(service, HELLO, 30, lambda _: None)
    assert caught.value.hint == "choose another one: --port N"
    assert existing(NAME) is None


def test_a_file_that_is_gone_is_told_and_not_made(service: Service, tmp_path: Path) -> None:
    gone = replace(service, mounts=(Mount(str(tmp_path / "gone"), "/models"),))
    with pytest.raises(UntriedError) as caught:
        start_service(gone, HELLO, 30, lambda _: None)
    assert f"bind source path does not exist: {tmp_path}/gone" in caught.value.why
    assert "docker run --help" not in caught.value.why
    assert not (tmp_path / "gone").exists()


def test_a_server_that_ends_is_told_with_its_log_and_removed(service: Service) -> None:
    with pytest.raises(UntriedError) as caught:
        start_service(with_options(service, "--no-such"), HELLO, 30, lambda _: None)
    assert "unknown --no-such" in caught.value.why
    assert existing(NAME) is None


def test_a_server_that_answers_without_its_key_is_removed(service: Service) -> None:
    with pytest.raises(UntriedError, match="does not ask for its key") as caught:
        start_service(replace(service, key_file="/key"), HELLO, 30, lambda _: None)
    assert "/v1/chat/completions answers 4" in caught.value.why
    assert existing(NAME) is None


def test_a_key_that_the_server_logs_is_not_shown(service: Service) -> None:
    lines: list[str] = []
    with pytest.raises(UntriedError) as caught:
        start_service(with_options(service, "--secret"), HELLO, 30, lines.append, key="secret")
    assert "unknown --***" in caught.value.why
    assert "secret" not in caught.value.why + "".join(lines)


def test_a_server_that_never_answers_is_removed(service: Service) -> None:
    with pytest.raises(UntriedError) as caught:
        start_service(with_options(service, "--port", "9"), HELLO, 2, lambda _: None)
    assert "not healthy after 2 s" in caught.value.why
    assert existing(NAME) is None


def test_an_interrupt_removes_it(service: Service) -> None:
    def interrupt(*_: object) -> NoReturn:
        raise Interrupted

    before = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, 2)
    try:
        with pytest.raises(Interrupted):
            start_service(with_options(service, "--port", "9"), HELLO, 60, lambda _: None)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert existing(NAME) is None


def test_a_gpu_that_the_engine_does_not_have(service: Service) -> None:
    with pytest.raises(UntriedError) as caught:
        start_service(replace(service, cards=1), HELLO, 30, lambda _: None)
    assert caught.value.hint == containers.TOOLKIT
    assert existing(NAME) is None


def _remove_images(repository: str) -> None:
    tags = docker("image", "ls", "--format={{.Repository}}:{{.Tag}}", repository).split()
    if tags:
        docker("image", "rm", "--force", *tags)


def test_run_builds_the_image_and_starts_its_server(
    builder: Builder, catalog: Path, hello: dict[str, Any]
) -> None:
    assert hello  # its layers are in the engine
    repository = "builder-test/run-all-the-way"
    name = recipe_of(catalog, repository)
    port = str(free_port())
    command = ("run", name, "--cpu", "--port", port, "--catalog", catalog)
    _remove_images(repository)  # of a run that was killed
    try:
        refused = builder(*command)
        assert refused.returncode == 4
        assert f"no image {repository}:0.1.0" in refused.stderr
        assert "no NVIDIA GPU" not in refused.stderr
        done = builder(*command, "--yes")
        assert done.returncode == 0, done.stderr
        (asked,) = [line for line in done.stderr.splitlines() if line.startswith("  build ")]
        assert asked.startswith(f"  build {repository}:0.1.0, which takes about ")
        assert ": 9 compile steps; there is no image" in asked
        assert done.stdout.splitlines()[0] == f"http://127.0.0.1:{port}/v1"
        assert ServerClient(f"http://127.0.0.1:{port}").get("/v1/models", ModelList, 10).data
        again = builder(*command)
        assert again.returncode == 0
        assert "runs already" in again.stderr
        containers.remove(RUNS)
        _remove_images(repository)
        # The record of the build says how long it took.
        (asked,) = [
            line
            for line in builder(*command, "--yes").stderr.splitlines()
            if line.startswith("  build ")
        ]
        assert re.match(rf"  build {repository}:0.1.0, which took [\d. a-z]+ last time;", asked)
    finally:
        containers.remove(RUNS)
        _remove_images(repository)
