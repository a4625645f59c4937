"""Registries that are down, slow, or send too much: real servers on loopback."""

from __future__ import annotations

import gzip
import json
import socket
import threading
import time
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from builder.core import web
from builder.core import web as web_client
from builder.core.errors import FetchError, RegistryError
from builder.publish import registry, transport
from builder.publish.registry import Repository
from support.registries import NO_BLOB, Reply, Request, answering

pytestmark = pytest.mark.usefixtures("docker_config")


def test_the_host_that_fails_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(web, "ATTEMPTS", 1)
    elsewhere = {"Location": "http://blobs.example.invalid/x"}
    with (
        answering(lambda _: (307, elsewhere, b"")) as (address, _),
        pytest.raises(FetchError) as caught,
    ):
        Repository(f"{address}/me/x", print).blob(NO_BLOB)
    assert caught.value.why.startswith("blobs.example.invalid: the host name cannot be resolved")


def test_a_proxy_is_used_but_not_for_loopback(monkeypatch: pytest.MonkeyPatch) -> None:
    page = json.dumps({"tags": ["a"]}).encode()
    with (
        answering(lambda _: (502, {"Retry-After": "999"}, b"")) as (proxy, asked_of_proxy),
        answering(lambda _: (200, {}, page)) as (address, _),
    ):
        for name in ("http_proxy", "https_proxy"):
            monkeypatch.setenv(name, f"http://{proxy}")
        assert Repository(f"{address}/me/x", print).tags() == ["a"]
        assert asked_of_proxy == []
        with pytest.raises(web_client.WebError):
            web_client.Client().request("GET", "https://registry.example.invalid/")
        web_client.Client().request("GET", "http://registry.example.invalid/")
        assert [each.path for each in asked_of_proxy] == ["http://registry.example.invalid/"]


@pytest.mark.parametrize("status", [200, 500])
def test_a_response_that_unpacks_to_gigabytes(status: int) -> None:
    content = gzip.compress(b" " * (1 << 26), 9)
    assert len(content) < 100_000
    headers = {"Content-Encoding": "gzip", "Retry-After": "999"}
    with (
        answering(lambda _: (status, headers, content)) as (address, _),
        pytest.raises((RegistryError, FetchError)) as caught,
    ):
        Repository(f"{address}/me/x", print).manifest("a")
    if status == 200:
        assert caught.value.why == "its response is larger than 4.2 MB"


def test_a_redirect_that_unpacks_to_gigabytes() -> None:
    content = gzip.compress(b" " * (1 << 26), 9)

    def front(request: Request) -> Reply:
        if request.path != "/there":
            return 307, {"Content-Encoding": "gzip", "Location": "/there"}, content
        return 200, {}, b'{"tags": ["a"]}'

    with answering(front) as (address, _):
        tracemalloc.start()
        try:
            assert Repository(f"{address}/me/x", print).tags() == ["a"]
            assert tracemalloc.get_traced_memory()[1] < 1 << 25
        finally:
            tracemalloc.stop()


@contextmanager
def trickling(head: bytes) -> Iterator[str]:
    """A server that sends ``head`` and then a byte at a time, for ever."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        ended = threading.Event()

        def serve() -> None:
            try:
                connection, _ = server.accept()
                with connection:
                    connection.recv(1 << 16)
                    connection.sendall(head)
                    while not ended.wait(0.05):
                        connection.sendall(b" ")
            except OSError:
                pass

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield f"127.0.0.1:{server.getsockname()[1]}"
        ended.set()
        thread.join(5)


@pytest.mark.parametrize(
    "head",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nfffff\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nX-Slow: ",
        b"HTTP/1.1 ",
    ],
    ids=["body", "chunk", "size of a chunk", "header", "status"],
)
def test_a_response_that_never_ends(head: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "SLOWEST_BLOB", 1.0)
    with trickling(head) as address:
        begun = time.monotonic()
        with pytest.raises(RegistryError, match="not complete after 1 seconds"):
            Repository(f"{address}/me/x", print).blob(NO_BLOB)
        assert time.monotonic() - begun < 5


@pytest.mark.parametrize("location", ["http://[", "//[x/", "http://a:99999/", "http://%zz/"])
def test_a_redirect_to_no_address(location: str) -> None:
    with (
        answering(lambda _: (307, {"Location": location}, b"")) as (address, _),
        pytest.raises(RegistryError, match="refuses: GET tags") as caught,
    ):
        Repository(f"{address}/me/x", print).tags()
    assert "not valid" in caught.value.why


@pytest.mark.parametrize("later", ["\u00b2", "-5", "soon", "Mon, 01 Jan 9999 00:00:00 +9999999"])
def test_a_date_or_a_wait_that_is_none(later: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(web, "ATTEMPTS", 1)
    headers = {"Retry-After": later, "Date": later}
    with (
        answering(lambda _: (503, headers, b"")) as (address, _),
        pytest.raises(FetchError, match="fails: GET tags") as caught,
    ):
        Repository(f"{address}/me/x", print).tags()
    assert caught.value.why == "503 Service Unavailable"


def test_a_registry_that_is_down_is_given_up_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    waits: list[float] = []
    monkeypatch.setattr("builder.core.web.time.sleep", waits.append)
    with pytest.raises(FetchError, match=r"127\.0\.0\.1:1 does not answer: GET tags") as caught:
        Repository("127.0.0.1:1/me/x", said.append).tags()
    assert sum(waits) > 10
    assert caught.value.why == "connection refused"
    assert said[0] == "127.0.0.1:1: connection refused; trying again in 1 second"


def test_the_time_that_a_registry_asks_for_is_named() -> None:
    said: list[str] = []
    waits = ["1", "9000"]

    def front(_: Request) -> Reply:
        return 429, {"Retry-After": waits.pop(0)}, b""

    with (
        answering(front) as (address, asked),
        pytest.raises(FetchError, match="asks to wait: GET tags") as caught,
    ):
        Repository(f"{address}/me/x", said.append).tags()
    assert len(asked) == 2
    assert said == [f"{address}: 429 Too Many Requests; it asks to wait 1 second"]
    assert caught.value.why == "429 Too Many Requests; it asks to wait 2 hours"


@contextmanager
def closing(sent: bytes) -> Iterator[str]:
    """A server that closes the connection after a request, and after it sent that."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                with connection:
                    connection.recv(1 << 16)
                    connection.sendall(sent)

        threading.Thread(target=serve, daemon=True).start()
        yield f"127.0.0.1:{server.getsockname()[1]}"


@pytest.mark.parametrize(
    ("sent", "said"),
    [
        (b"", "the server closed the connection without a response"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{", "within its response"),
        (b"SSH-2.0-OpenSSH_9\r\n", "the response is not HTTP"),
    ],
    ids=["nothing", "half", "another protocol"],
)
def test_the_cause_is_in_plain_words(
    sent: bytes, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(web, "ATTEMPTS", 1)
    with closing(sent) as address, pytest.raises(FetchError) as caught:
        Repository(f"{address}/me/x", print).tags()
    assert said in caught.value.why
    assert "(" not in caught.value.why


def test_no_name_and_no_certificate_in_plain_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import ssl

    import trustme

    monkeypatch.setattr(web, "ATTEMPTS", 1)
    with pytest.raises(FetchError) as caught:
        Repository("registry.example.invalid/me/x", print).tags()
    assert caught.value.why.startswith("the host name cannot be resolved")

    authority = trustme.CA()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    ours = tmp_path / "ca.crt"
    trustme.CA().cert_pem.write_to_path(str(ours))
    monkeypatch.setattr(transport, "certificate_of", lambda _: ours)
    with answering(lambda _: (200, {}, b"{}"), context) as (address, _):
        with pytest.raises(RegistryError, match="no secure connection") as refused:
            Repository(f"{address}/me/x", print).tags()
        assert refused.value.why.startswith("the TLS certificate is not trusted (")
        authority.cert_pem.write_to_path(str(ours))
        assert Repository(f"{address}/me/x", print).tags() == []


def test_an_error_shows_no_signed_url(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(web, "ATTEMPTS", 1)
    signed = "http://127.0.0.1:9/bucket/x?X-Amz-Signature=SECRET&X-Amz-Token=SECRET"
    with (
        answering(lambda _: (307, {"Location": signed}, b"")) as (address, _),
        pytest.raises(FetchError) as caught,
    ):
        Repository(f"{address}/me/x", print).blob(NO_BLOB)
    assert "SECRET" not in str(caught.value)
    assert "connection refused" in str(caught.value)


def test_a_registry_that_was_given_up_gets_one_attempt() -> None:
    status = 503

    def front(_: Request) -> Reply:
        return status, {"Retry-After": "0"}, b"{}"

    with answering(front) as (address, requests):
        with pytest.raises(FetchError, match="fails: GET tags"):
            Repository(f"{address}/me/x", print).tags()
        assert len(requests) == web.ATTEMPTS
        with pytest.raises(FetchError):
            Repository(f"{address}/me/x", print).tags()
        assert len(requests) == web.ATTEMPTS + 1
        status = 200
        assert Repository(f"{address}/me/x", print).tags() == []
        status = 503
        with pytest.raises(FetchError):
            Repository(f"{address}/me/x", print).tags()
        assert len(requests) == 2 * web.ATTEMPTS + 2


def test_a_port_that_no_host_has_is_no_address() -> None:
    with pytest.raises(RegistryError, match=r"127\.0\.0\.1:99999 is no address"):
        Repository("127.0.0.1:99999/me/x", print)
