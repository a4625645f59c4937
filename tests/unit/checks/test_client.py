"""The client of servers: a proxy of the environment is not asked for this machine's own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from builder.checks.server import ServerClient, UnansweredError
from support.hostile import answer, closing, serving
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
