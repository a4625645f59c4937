"""``docker run``: the shell gives docker exactly the words of the service."""

from __future__ import annotations

import subprocess
from dataclasses import replace

import pytest
from hypothesis import given, settings

from builder.exports import docker_run
from builder.presets.schema import Container
from builder.presets.service import Service
from support.services import BASE, SERVICES, services


def shell_words(script: str) -> list[str]:
    """The words that a shell reads in a script, whose program is replaced by one that prints."""
    program = 'printf "%s\\0"'
    done = subprocess.run(
        ["sh", "-c", script.replace("exec docker ", f"{program} docker ")],
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.split("\0")[:-1]


@settings(max_examples=60, deadline=None)
@given(services())
def test_any_argument_reaches_docker_as_it_is(service: Service) -> None:
    assert shell_words(docker_run.document(service)) == ["docker", *docker_run.words(service)]


@pytest.mark.parametrize("name", SERVICES)
def test_a_published_preset(name: str) -> None:
    found = SERVICES[name]
    words = shell_words(docker_run.document(found))
    place = words.index(found.image)
    assert words[place + 1 :] == found.words
    assert words[:3] == ["docker", "run", "--detach"]
    assert f"--gpus={found.cards}" in words[:place]
    assert "--mount=type=bind,source=/srv/models,target=/models,readonly" in words[:place]


def test_what_the_container_needs() -> None:
    needs = Container(ipc="host", shm_size="16g", memlock=True, capabilities=["IPC_LOCK"])
    words = docker_run.words(replace(BASE, container=needs))
    assert words[-6:] == [
        "--publish=127.0.0.1:8081:8080",
        "--ipc=host",
        "--shm-size=16g",
        "--ulimit=memlock=-1",
        "--cap-add=IPC_LOCK",
        BASE.image,
    ]
    text = docker_run.document(replace(BASE, container=needs))
    assert "# --ulimit=memlock -1: the engine locks the model in memory\n" in text


def test_without_gpu_and_restart() -> None:
    words = docker_run.words(replace(BASE, cards=0, restart=None))
    assert words == [
        *("run", "--detach", "--name", "builder-a", "--publish=127.0.0.1:8081:8080", BASE.image)
    ]
