"""The client of servers: a proxy of the environment is not asked for this machine's own."""

from __future__ import annotations

import json
import math
import wave
from collections.abc import Iterator
from email import message_from_bytes, policy
from email.message import EmailMessage
from io import BytesIO
from typing import cast

import pytest

from builder.checks.server import (
    Continued,
    Server,
    ServerClient,
    UnansweredError,
    continued,
    difference,
)
from builder.docker.containers import Container
from builder.engines.servers import API_FLAVORS
from builder.recipes.probes import Request
from support.hostile import answer, closing, serving
from support.loopback import Quiet, serving_with
from support.registries import answering


@pytest.fixture
def port(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    for name in ("HTTP_PROXY", "http_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    with answering(lambda _: (200, {}, b"{}")) as (address, _):
        yield int(address.partition(":")[2])


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_a_server_of_this_machine_is_asked_without_the_proxy(host: str, port: int) -> None:
    client = ServerClient(f"http://{host}:{port}")
    assert client.text("/", 10) == "{}"
    assert client.status("/", 10) == 200


@pytest.mark.usefixtures("port")
def test_another_server_is_asked_through_the_proxy() -> None:
    with pytest.raises(UnansweredError, match="the proxy: connection refused"):
        ServerClient("http://server.invalid").text("/", 10)


def test_the_events_of_a_stream_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("builder.checks.server.MOST_EVENTS", 1000)
    with serving(closing(answer("200 OK", b"data:{}\n" * 1000))) as server:
        assert len(ServerClient(server.url).stream("/", {}, 10).events) == 1000
    with (
        serving(closing(answer("200 OK", b"data:{}\n" * 1001))) as server,
        pytest.raises(UnansweredError, match="more than 1,000 events"),
    ):
        ServerClient(server.url).stream("/", {}, 10)


# The request that a recipe names


class Hears(Quiet):
    """Says what it was asked."""

    def answer(self) -> None:
        content = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        kind = self.headers.get("Content-Type") or ""
        said: dict[str, object] = {"asked": f"{self.command} {self.path}", "kind": kind}
        if kind.startswith("multipart/form-data"):
            form = message_from_bytes(
                f"Content-Type: {kind}\r\n\r\n".encode() + content, policy=policy.HTTP
            )
            for part in cast(EmailMessage, form).iter_parts():
                name = part.get_param("name", header="Content-Disposition")
                value = part.get_payload(decode=True)
                assert isinstance(value, bytes)
                if part.get_filename():
                    with wave.open(BytesIO(value)) as tone:
                        seconds = tone.getnframes() / tone.getframerate()
                        said[str(name)] = [part.get_filename(), tone.getnchannels(), seconds]
                else:
                    said[str(name)] = value.decode()
        elif content:
            said["json"] = json.loads(content)
        text = json.dumps(said).encode()
        self.send_response(404 if self.path == "/gone" else 200)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    do_GET = do_POST = answer


@pytest.fixture
def hears() -> Iterator[ServerClient]:
    with serving_with(Hears) as address:
        yield ServerClient(f"http://{address}")


@pytest.mark.parametrize(
    ("request_", "said"),
    [
        (Request(path="v1/models", contains=["GET /v1/models"]), {"kind": ""}),
        (
            Request(path="a", body='{"n": [1]}', contains=["POST /a", '"n"']),
            {"json": {"n": [1]}, "kind": "application/json"},
        ),
        (
            Request(path="a", form={"file": "@tone.wav", "x": "\u00e4 b"}, contains=["tone.wav"]),
            {"file": ["tone.wav", 1, 1.0], "x": "\u00e4 b"},
        ),
    ],
    ids=("a page", "JSON", "a form"),
)
def test_a_request_of_a_recipe_is_sent_as_it_says(
    hears: ServerClient, request_: Request, said: dict[str, object]
) -> None:
    answered = json.loads(hears.ask(request_))
    assert {name: answered[name] for name in said} == said


def test_an_answer_that_is_not_right_is_an_error(hears: ServerClient) -> None:
    with pytest.raises(UnansweredError, match="no 'hello' in the answer") as caught:
        hears.ask(Request(path="a", contains=["GET /a", "hello"]))
    assert '"asked": "GET /a"' in str(caught.value)
    with pytest.raises(UnansweredError, match="status 404"):
        hears.ask(Request(path="gone", contains=["GET"]))


def test_a_probability_that_is_no_number_is_far_from_any_number() -> None:
    def answered(logarithm: float | None) -> Continued:
        token = {"id": 1, "logprob": logarithm}
        likely = [token, {"id": 2, "logprob": logarithm}]
        said = {"content": "x", "completion_probabilities": [token | {"top_logprobs": likely}]}
        with answering(lambda _: (200, {}, json.dumps(said).encode())) as (address, _):
            client = ServerClient(f"http://{address}")
            server = Server(cast(Container, None), client, API_FLAVORS["llama-server"])
            return continued(server, "a prompt", 1)

    good, bad = answered(-0.7), answered(None)
    assert difference(good, good).within(0.0)
    assert difference(good, bad).greatest == difference(bad, bad).greatest == math.inf
    assert not difference(good, bad).within(1.0)
