"""Registries that attack, or are down: real servers on loopback."""

from __future__ import annotations

import base64
import gzip
import json
import socket
import threading
import time
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest

from builder.errors import FetchError, RegistryError, TagMovedError
from builder.publish.tags import open_repository
from builder.tools.registry import client as registry
from builder.tools.registry import transport as registry_connection
from builder.tools.registry import upload
from builder.tools.registry.auth import may_name
from builder.tools.registry.client import MANIFESTS, Manifest, Repository
from builder.tools.web import client as web_client
from builder.tools.web import retry
from support.registries import answering

BASIC = {"WWW-Authenticate": 'Basic realm="x"'}
SECRET = "s3cret"
EMPTY = "sha256:" + "0" * 64
Asked = BaseHTTPRequestHandler
Given = tuple[int, dict[str, str], bytes]


@pytest.fixture(autouse=True)
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Docker's configuration, of the test's own."""
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    for name in ("http_proxy", "HTTP_PROXY", "https_proxy", "HTTPS_PROXY", "no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path / "config.json"


def log_in(store: Path, address: str) -> None:
    auth = base64.b64encode(f"farm:{SECRET}".encode()).decode()
    store.write_text(json.dumps({"auths": {address: {"auth": auth}}}))


def authorized(asked: list[Asked]) -> list[str]:
    return [each.path for each in asked if each.headers.get("Authorization")]


@pytest.mark.parametrize("kind", ["basic", "bearer"])
def test_what_a_blob_redirects_to_gets_no_login(store: Path, kind: str) -> None:
    def other(request: Asked) -> Given:
        if "token" in request.path:
            return 200, {}, b'{"token": "x"}'
        realm = f'Bearer realm="http://{request.headers["Host"]}/token",service="x"'
        return (
            401,
            {"WWW-Authenticate": realm if kind == "bearer" else BASIC[next(iter(BASIC))]},
            b"",
        )

    with answering(other) as (elsewhere, asked_there):

        def front(request: Asked) -> Given:
            if not request.headers.get("Authorization"):
                return 401, BASIC, b""
            return 307, {"Location": f"http://{elsewhere}/blob"}, b""

        with answering(front) as (address, asked):
            log_in(store, address)
            with pytest.raises(RegistryError, match="which it names for this, responds 401"):
                Repository(f"{address}/me/x", print).blob(EMPTY)
    assert authorized(asked)
    assert [each.path for each in asked_there] == ["/blob"]
    assert authorized(asked_there) == []


def test_a_realm_without_tls_elsewhere_gets_no_login(store: Path) -> None:
    realm = {"WWW-Authenticate": 'Bearer realm="http://198.51.100.1/token",service="x"'}
    with answering(lambda _: (401, realm, b"")) as (address, _):
        log_in(store, address)
        with pytest.raises(RegistryError, match="wants the login to be sent without TLS") as caught:
            Repository(f"{address}/me/x", print).tags()
    assert "198.51.100.1" in caught.value.why


def test_a_registry_of_this_machine_names_no_realm_elsewhere(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    realm = {"WWW-Authenticate": 'Bearer realm="https://auth.example.invalid/token",service="x"'}
    with answering(lambda _: (401, realm, b"")) as (address, asked):
        log_in(store, address)
        with pytest.raises(RegistryError, match=r"is sent to auth\.example") as caught:
            Repository(f"{address}/me/x", print).tags()
        assert len(asked) == 1
        assert "BUILDER_TOKEN_HOSTS=auth.example.invalid" in caught.value.hint
        # Where the user allows it, the host is asked: there is none of that name.
        monkeypatch.setattr(retry, "ATTEMPTS", 1)
        monkeypatch.setenv("BUILDER_TOKEN_HOSTS", "other.example, auth.example.invalid")
        with pytest.raises(FetchError) as failed:
            open_repository(f"{address}/me/x", print).tags()
        assert failed.value.why == "auth.example.invalid: the host name cannot be resolved"


def test_the_host_that_fails_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retry, "ATTEMPTS", 1)
    elsewhere = {"Location": "http://blobs.example.invalid/x"}
    with (
        answering(lambda _: (307, elsewhere, b"")) as (address, _),
        pytest.raises(FetchError) as caught,
    ):
        Repository(f"{address}/me/x", print).blob(EMPTY)
    assert caught.value.why == "blobs.example.invalid: the host name cannot be resolved"


@pytest.mark.parametrize(
    ("registry", "host", "allowed"),
    [
        ("docker.io", "auth.docker.io", True),
        ("docker.io", "hub.docker.com", True),
        ("docker.io", "auth.mydocker.io", False),
        ("ghcr.io", "ghcr.io", True),
        ("ghcr.io", "quay.io", False),
        ("registry.gitlab.com", "gitlab.com", True),
        ("registry.gitlab.com", "notgitlab.com", False),
        ("registry.example.com:5000", "gitlab.example.com", True),
        ("registry.example.com", "example.com.evil.example", False),
        ("example.com", "auth.example.com", True),
        ("example.com", "evil.com", False),
        ("example.co.uk", "evil.co.uk", False),
        ("10.0.0.1:5000", "10.0.0.1", True),
        ("10.0.0.1:5000", "20.0.0.1", False),
        ("farm", "farm", True),
        ("127.0.0.1:5000", "localhost", True),
        ("registry.example.com", "localhost", False),
    ],
)
def test_which_hosts_a_registry_may_name_for_tokens(
    registry: str, host: str, *, allowed: bool
) -> None:
    assert may_name(registry, host) is allowed


def test_a_realm_that_redirects_elsewhere_gets_no_login(store: Path) -> None:
    with answering(lambda _: (200, {}, b'{"token": "x"}')) as (elsewhere, asked_there):

        def front(request: Asked) -> Given:
            if request.path.startswith("/token"):
                return 307, {"Location": f"http://{elsewhere}/token"}, b""
            realm = f'Bearer realm="http://{request.headers["Host"]}/token",service="x"'
            return 401, {"WWW-Authenticate": realm}, b""

        with answering(front) as (address, _):
            log_in(store, address)
            with pytest.raises(RegistryError, match="it redirects GET to"):
                Repository(f"{address}/me/x", print).tags()
    assert asked_there == []


def test_netrc_does_not_replace_the_login(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    netrc = tmp_path / "netrc"
    netrc.write_text("default login other password other\n")
    monkeypatch.setenv("NETRC", str(netrc))

    def front(request: Asked) -> Given:
        told = request.headers.get("Authorization", "").removeprefix("Basic ")
        if base64.b64decode(told) != f"farm:{SECRET}".encode():
            return 401, BASIC, b""
        return 200, {}, b'{"tags": ["a"]}'

    with answering(front) as (address, _):
        log_in(store, address)
        assert Repository(f"{address}/me/x", print).tags() == ["a"]


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
def test_an_answer_that_unpacks_to_gigabytes(status: int) -> None:
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

    def front(request: Asked) -> Given:
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
def test_an_answer_that_never_ends(head: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "SLOWEST_BLOB", 1.0)
    with trickling(head) as address:
        begun = time.monotonic()
        with pytest.raises(RegistryError, match="not complete after 1 seconds"):
            Repository(f"{address}/me/x", print).blob(EMPTY)
        assert time.monotonic() - begun < 5


def test_a_token_that_is_no_token_is_not_shown() -> None:
    def front(request: Asked) -> Given:
        if request.path.startswith("/token"):
            return 200, {}, json.dumps({"token": f"{SECRET}\nX: y"}).encode()
        realm = f'Bearer realm="http://{request.headers["Host"]}/token",service="x"'
        return 401, {"WWW-Authenticate": realm}, b""

    with (
        answering(front) as (address, _),
        pytest.raises(RegistryError, match=r"the token for .* is damaged") as caught,
    ):
        Repository(f"{address}/me/x", print).tags()
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize(
    ("location", "said"),
    [
        (None, "the response has none"),
        ("ftp://h/x", "not a valid"),
        ("http://[::1/x", "not a valid"),
    ],
)
def test_an_upload_without_a_usable_address(location: str | None, said: str) -> None:
    def front(request: Asked) -> Given:
        named = {"Location": location} if location else {}
        return (202, named, b"") if request.command == "POST" else (404, {}, b"")

    with (
        answering(front) as (address, _),
        pytest.raises(RegistryError, match=r"upload address of .* cannot be used") as caught,
    ):
        Repository(f"{address}/me/x", print).put_bytes(b"x")
    assert said in caught.value.why


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
    monkeypatch.setattr(retry, "ATTEMPTS", 1)
    headers = {"Retry-After": later, "Date": later}
    with (
        answering(lambda _: (503, headers, b"")) as (address, _),
        pytest.raises(FetchError, match="fails: GET tags") as caught,
    ):
        Repository(f"{address}/me/x", print).tags()
    assert caught.value.why == "503 Service Unavailable"


def test_a_list_without_end_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "MOST_PAGES", 3)

    def front(request: Asked) -> Given:
        return 200, {"Link": f'<{request.path}x>; rel="next"'}, b'{"tags": ["a"]}'

    with answering(front) as (address, asked):
        with pytest.raises(RegistryError, match="has more than 3 pages"):
            Repository(f"{address}/me/x", print).tags()
        assert len(asked) == 3


def test_a_list_of_another_host_is_refused() -> None:
    link = {"Link": '<http://198.51.100.1/v2/x>; rel="next"'}
    with (
        answering(lambda _: (200, link, b'{"tags": ["a"]}')) as (address, _),
        pytest.raises(RegistryError, match=r"next page of .* is on another host"),
    ):
        Repository(f"{address}/me/x", print).tags()


def test_a_registry_that_is_down_is_given_up_in_time() -> None:
    said: list[str] = []
    begun = time.monotonic()
    with pytest.raises(FetchError, match=r"127\.0\.0\.1:1 does not answer: GET tags") as caught:
        Repository("127.0.0.1:1/me/x", said.append).tags()
    assert 10 < time.monotonic() - begun <= retry.GIVE_UP
    assert caught.value.why == "connection refused"
    assert said[0] == "127.0.0.1:1: connection refused; trying again in 1 second"


def test_the_time_that_a_registry_asks_for_is_named() -> None:
    said: list[str] = []
    waits = ["1", "9000"]

    def front(_: Asked) -> Given:
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
    monkeypatch.setattr(retry, "ATTEMPTS", 1)
    with closing(sent) as address, pytest.raises(FetchError) as caught:
        Repository(f"{address}/me/x", print).tags()
    assert said in caught.value.why
    assert "(" not in caught.value.why


def test_no_name_and_no_certificate_in_plain_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import ssl

    import trustme

    monkeypatch.setattr(retry, "ATTEMPTS", 1)
    with pytest.raises(FetchError) as caught:
        Repository("registry.example.invalid/me/x", print).tags()
    assert caught.value.why == "the host name cannot be resolved"

    authority = trustme.CA()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    ours = tmp_path / "ca.crt"
    trustme.CA().cert_pem.write_to_path(str(ours))
    monkeypatch.setattr(registry_connection, "certificate_of", lambda _: ours)
    with answering(lambda _: (200, {}, b"{}"), context) as (address, _):
        with pytest.raises(RegistryError, match="no secure connection") as refused:
            Repository(f"{address}/me/x", print).tags()
        assert refused.value.why.startswith("the TLS certificate is not trusted (")
        authority.cert_pem.write_to_path(str(ours))
        assert Repository(f"{address}/me/x", print).tags() == []


class Store:
    """A registry that keeps blobs, at so many bytes a second."""

    def __init__(self) -> None:
        self.kept: dict[str, int] = {}

    def __call__(self, request: Asked) -> Given:
        if request.command == "HEAD":
            return (200 if request.path.rpartition("/")[2] in self.kept else 404), {}, b""
        if request.command == "POST":
            return 202, {"Location": "/v2/me/x/blobs/uploads/1"}, b""
        self.kept[request.path.rpartition("digest=")[2]] = int(request.headers["Content-Length"])
        return 201, {}, b""


def test_an_upload_says_how_far_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import hashlib

    monkeypatch.setattr(upload, "LINE_EVERY", 0.0)
    file = tmp_path / "blob"
    file.write_bytes(bytes(3_000_000))
    digest = "sha256:" + hashlib.sha256(file.read_bytes()).hexdigest()
    name = f"{digest[:19]} (3.0 MB)"
    said: list[str] = []
    sent: list[int] = []
    kept = Store()
    with answering(kept) as (address, _):
        repository = Repository(f"{address}/me/x", said.append)
        assert repository.put_blob(digest, file)
        assert not repository.put_blob(digest, file)
        assert kept.kept == {digest: 3_000_000}
        kept.kept.clear()
        assert Repository(repository.name, said.append).put_blob(digest, file, sent.append)
    assert said[0] == f"{name}: uploading"
    assert said[-1] == f"{name}: uploading"
    assert said[-2] == f"{name}: exists"
    assert all(line.endswith(" MB sent") for line in said[1:-2])
    assert len(said) > 10
    assert sent == sorted(sent)
    assert sent[-1] == 3_000_000


def test_a_registry_whose_conditions_mean_something_else() -> None:
    """Its ETags are not digests, so that no condition is met; nobody moves the tag."""
    there = Manifest(b'{"config": null}', MANIFESTS[0])
    ours = Manifest(b"{}", MANIFESTS[0])
    tags = {"latest": there.digest}

    def front(request: Asked) -> Given:
        tag = request.path.rpartition("/")[2]
        if request.command == "PUT":
            if request.headers.get("If-Match") or request.headers.get("If-None-Match"):
                return 412, {}, b""
            tags[tag] = ours.digest
            return 201, {}, b""
        digest = tags.get(tag)
        named = {"Docker-Content-Digest": digest, "ETag": 'W/"1"'} if digest else {}
        return (200 if digest else 404), named, b""

    with answering(front) as (address, asked):
        repository = Repository(f"{address}/me/x", print)
        repository.put_tag("latest", ours, there.digest)
        assert tags == {"latest": ours.digest}
        assert [each.command for each in asked] == ["HEAD", "PUT", "HEAD", "PUT"]
        repository.put_tag("new", ours, "")
        assert tags == {"latest": ours.digest, "new": ours.digest}
        with pytest.raises(TagMovedError):
            repository.put_tag("latest", there, there.digest)
