"""``docker run``: the shell gives docker exactly the words of the service."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings

from builder.presets import exports
from builder.presets.schema import ContainerOptions
from builder.presets.service import Service
from support.services import BASE, KEYED, SERVICES, services

PROGRAM = """#!/bin/sh
printf "%s\\0" "$#" "$@" >>"$0.calls"
"""


@pytest.fixture(scope="module")
def docker(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A ``docker`` that writes down its words."""
    program = tmp_path_factory.mktemp("bin") / "docker"
    program.write_text(PROGRAM)
    program.chmod(0o755)
    return program


def calls(script: str, docker: Path) -> list[list[str]]:
    """The words of each call of ``docker`` in a script, as a shell reads them."""
    (found := docker.with_name("docker.calls")).write_text("")
    path = f"{docker.parent}:/usr/bin:/bin"
    subprocess.run(["sh", "-c", script], env={"PATH": path}, check=True)
    words = iter(found.read_text().split("\0")[:-1])
    return [[next(words) for _ in range(int(count))] for count in words]


@settings(max_examples=60, deadline=None)
@given(services())
def test_any_argument_reaches_docker_as_it_is(docker: Path, service: Service) -> None:
    earlier, started = calls(exports.docker_run(service), docker)
    assert started == exports.words(service)
    # Its name is free for a second start.
    assert earlier == ["rm", "--force", service.name]


@pytest.mark.parametrize("name", SERVICES)
def test_a_published_preset(name: str, docker: Path) -> None:
    found = SERVICES[name]
    _, words = calls(exports.docker_run(found), docker)
    place = words.index(found.image)
    assert words[place + 1 :] == found.words
    assert words[:2] == ["run", "--detach"]
    assert f"--gpus={found.cards}" in words[:place]
    assert "--mount=type=bind,source=/srv/models,target=/models,readonly" in words[:place]


def test_what_the_container_needs() -> None:
    needs = ContainerOptions(ipc="host", shm_size="16g", memlock=True, capabilities=["IPC_LOCK"])
    words = exports.words(replace(BASE, container=needs))
    assert words[-6:] == [
        "--publish=127.0.0.1:8081:8080",
        "--ipc=host",
        "--shm-size=16g",
        "--ulimit=memlock=-1",
        "--cap-add=IPC_LOCK",
        BASE.image,
    ]
    text = exports.docker_run(replace(BASE, container=needs))
    assert "# --ulimit=memlock=-1: the engine locks the model in memory\n" in text


def test_without_gpu_and_restart() -> None:
    words = exports.words(replace(BASE, cards=0, restart=None))
    assert words == [
        *("run", "--detach", "--name", "builder-a", "--init", "--stop-timeout=30"),
        *("--cap-drop=ALL", "--security-opt=no-new-privileges"),
        *("--publish=127.0.0.1:8081:8080", BASE.image),
    ]


def test_the_address_and_the_key_are_the_services() -> None:
    words = exports.words(KEYED)
    assert "--publish=0.0.0.0:8081:8080" in words
    assert "--mount=type=bind,source=/state/keys/1.yaml,target=/run/api-key.yaml,readonly" in words
    assert words[-2:] == ["--api-key-file", "/run/api-key.yaml"]
    assert "--restart=unless-stopped" in words


def test_vllm_keeps_what_it_compiled_and_llama_cpp_has_a_read_only_root() -> None:
    vllm = exports.words(SERVICES["gemma-4-e4b-mtp@5090-laptop"])
    name = "builder-gemma-4-e4b-mtp-5090-laptop-cache"
    assert f"--mount=type=volume,source={name},target=/root/.cache/vllm" in vllm
    assert "--read-only" not in vllm
    llama = exports.words(SERVICES["qwen3.6-27b-dflash@5090-laptop"])
    assert {"--read-only", "--tmpfs=/tmp"} <= {*llama}
    assert not any("type=volume" in word for word in llama)
