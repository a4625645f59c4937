"""The two ways to a server in a container without a network: its network, and bash in it."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import requests

from builder.core.errors import UntriedError
from builder.docker import containers as proxies
from builder.docker.containers import Container, network_of, proxy, started
from support.smoke_tests import docker

pytestmark = [pytest.mark.docker, pytest.mark.xdist_group("overlaid")]

PORT = 8123
SERVER = f"""
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body[::-1])

ThreadingHTTPServer(("127.0.0.1", {PORT}), Handler).serve_forever()
"""


@contextmanager
def serving(image: str) -> Iterator[Container]:
    """A container in which the server starts; ``image`` has Python."""
    with started(image, ["-c", SERVER]) as container:
        yield container


@pytest.fixture
def served(python: str, made: set[str]) -> str:
    """A small image whose entrypoint is Python; it has no bash."""
    return entered(python, made)


def entered(image: str, made: set[str]) -> str:
    name = f"builder-test/entered:{image.replace('/', '-').replace(':', '-')}"
    made.add(name)
    output = f"--output=type=image,name={name}"
    text = f'FROM {image}\nENTRYPOINT ["python3"]\n'
    docker("buildx", "build", "--provenance=false", output, "-", text=text)
    return name


@pytest.fixture
def elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if the engine were on another machine, or this user not root."""

    @contextmanager
    def none(_: Container) -> Iterator[None]:
        yield None

    monkeypatch.setattr(proxies, "network_of", none)


def answer(url: str, body: bytes) -> bytes:
    """What the server makes of a body, as soon as it listens."""
    for _ in range(200):
        try:
            return requests.post(url, data=body, headers={"Connection": "close"}, timeout=9).content
        except requests.ConnectionError:
            continue
    raise AssertionError("the server does not answer")


def executions(container: Container) -> int:
    """How many programs run in a container beside its own."""
    return len(json.loads(docker("inspect", "--format={{json .ExecIDs}}", container.name)) or [])


def exchange(container: Container) -> int:
    """Send data in both directions; the number of programs that a connection takes."""
    body = os.urandom(300_000)
    with proxy(container, PORT) as url, requests.Session() as session:
        assert answer(url, b"begin") == b"nigeb"
        assert answer(url, body) == body[::-1]
        assert session.post(url, data=b"ab", timeout=9).content == b"ba"
        return executions(container)


def test_root_connects_inside_the_network_of_the_container(served: str) -> None:
    with serving(served) as container:
        assert exchange(container) == 0


@pytest.mark.usefixtures("elsewhere")
def test_a_connection_is_a_program_where_the_network_is_out_of_reach(
    images: dict[str, str], made: set[str]
) -> None:
    with serving(entered(images["devel"], made)) as container:
        assert exchange(container) == 1


@pytest.mark.usefixtures("elsewhere")
def test_without_bash_such_a_server_cannot_be_reached(served: str) -> None:
    with (
        serving(served) as container,
        pytest.raises(UntriedError, match="the image has no bash"),
        proxy(container, PORT),
    ):
        pass


def test_a_container_that_ended_has_no_network(served: str) -> None:
    with serving(served) as container:
        with network_of(container) as network:
            assert network is not None
        docker("kill", container.name)
        with network_of(container) as network:
            assert network is None


def test_the_network_of_another_process_is_not_entered(
    served: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An engine of another machine names a process that here is somebody else's."""
    with serving(served) as container:
        identity, _ = container.identity()
        monkeypatch.setattr(Container, "identity", lambda _: (identity, os.getpid()))
        with network_of(container) as network:
            assert network is None
