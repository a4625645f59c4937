"""The one client: where it may be redirected to, what it keeps, and how long it waits."""

from __future__ import annotations

import socket
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from builder.core import web
from builder.core.web import Client, Follow, Response, WebError, leads_here, redirect_url
from support import faults
from support.hostile import Hostile, answer, closing, serving


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "https_proxy", "HTTPS_PROXY", "all_proxy"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(
    ("method", "source", "target", "follow", "why"),
    [
        ("GET", "https://a/x", "/y", Follow.SAME_HOST, ""),
        ("GET", "https://a/x", "https://b/y", Follow.ANYWHERE, ""),
        ("GET", "http://a/x", "https://b/y", Follow.ANYWHERE, ""),
        ("GET", "https://a/x", "https://b/y", Follow.SAME_HOST, "redirects GET to b"),
        ("GET", "https://a/x", "https://a:444/y", Follow.SAME_HOST, "redirects GET to a"),
        ("GET", "https://a/x", "http://a/y", Follow.ANYWHERE, "to a without TLS"),
        ("PUT", "https://a/x", "/y", Follow.ANYWHERE, "redirects PUT to a"),
        ("GET", "https://a/x", "file:///etc/passwd", Follow.ANYWHERE, "not valid"),
        ("GET", "https://a/x", "http://[", Follow.ANYWHERE, "not valid"),
    ],
)
def test_where_a_redirect_may_lead(
    method: str, source: str, target: str, follow: Follow, why: str
) -> None:
    response = Response(method, source, 302, "Found", {}, b"")
    if not why:
        assert redirect_url(response, target, follow)
        return
    with pytest.raises(WebError, match=why):
        redirect_url(response, target, follow)


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> None:
    """Names that resolve to addresses elsewhere, and to this machine."""
    resolve = socket.getaddrinfo

    def resolved(host: Any, port: Any, *more: Any, **named: Any) -> Any:
        if host == "both.example":
            first = (socket.AF_INET, socket.SOCK_STREAM, 6, "", ("198.51.100.1", port))
            return [first, *resolve("127.0.0.1", port, *more, **named)]
        return resolve("127.0.0.1" if host == "inner.example" else host, port, *more, **named)

    monkeypatch.setattr(socket, "getaddrinfo", resolved)


HERE = (
    *("127.0.0.1", "localhost", "LOCALHOST", "127.1", "0.0.0.0", "0"),  # noqa: S104
    *("2130706433", "0x7f.1", "[::ffff:127.0.0.1]", "inner.example"),
)


@pytest.mark.parametrize("host", HERE)
@pytest.mark.parametrize("proxied", [False, True])
@pytest.mark.parametrize("secure", [False, True])
@pytest.mark.usefixtures("names")
def test_a_server_elsewhere_leads_nowhere_on_this_machine(
    host: str, monkeypatch: pytest.MonkeyPatch, *, proxied: bool, secure: bool
) -> None:
    """The server elsewhere is one behind a proxy; the target is asked with it or directly."""
    with serving(closing(answer("200 OK", b"secret"))) as inner:
        port = inner.address.partition(":")[2]
        target = f"http{'s' * secure}://{host}:{port}/x"
        with serving(closing(answer("302 Found", Location=target))) as proxy:
            monkeypatch.setenv("http_proxy", proxy.url)
            monkeypatch.setenv("https_proxy", proxy.url)
            monkeypatch.setenv("no_proxy", "" if proxied else host.strip("[]").lower())
            with pytest.raises(WebError, match=r"it names .*, which is this machine"):
                Client().request("GET", "http://elsewhere.example/", follow=Follow.ANYWHERE)
        assert len(proxy.heads) == 1
        assert inner.heads in ([], [""])


@pytest.mark.usefixtures("names")
def test_every_address_of_a_name_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(closing(answer("302 Found", Location="http://both.example/x"))) as proxy:
        monkeypatch.setenv("http_proxy", proxy.url)
        with pytest.raises(WebError, match=r"names both\.example, which is this machine"):
            Client().request("GET", "http://elsewhere.example/", follow=Follow.ANYWHERE)
    assert len(proxy.heads) == 1


def test_a_connection_that_is_open_is_not_used_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
    with (
        serving(lambda connection, _: [connection.sendall(kept), connection.recv(1)]) as inner,  # type: ignore[arg-type,return-value]
        serving(closing(answer("302 Found", Location=inner.url))) as proxy,
    ):
        monkeypatch.setenv("http_proxy", proxy.url)
        client = Client()
        assert client.request("GET", inner.url).content == b"ok"
        with pytest.raises(WebError, match="which is this machine"):
            client.request("GET", "http://elsewhere.example/", follow=Follow.ANYWHERE)
        assert len(inner.heads) == 1


def test_each_address_of_this_machine_is_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not only loopback's: Docker's bridge has one where services for containers listen."""
    own = {str(each[4][0]) for each in socket.getaddrinfo(socket.gethostname(), None)}
    assert all(leads_here(address) for address in own)
    monkeypatch.setattr("builder.core.web.is_loopback", lambda _: False)
    assert leads_here("127.0.0.1")
    assert not leads_here("192.0.2.1")
    assert not leads_here("elsewhere.example")


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "inner.example"])
@pytest.mark.usefixtures("names")
def test_a_server_of_this_machine_may_lead_to_another(host: str) -> None:
    with serving(closing(answer("200 OK", b"ok"))) as inner:
        port = inner.address.partition(":")[2]
        found = answer("302 Found", Location=f"http://{host}:{port}/x")
        with serving(closing(found)) as server:
            url = server.url.replace("127.0.0.1", host)
            assert Client().request("GET", url, follow=Follow.ANYWHERE).content == b"ok"


def test_redirects_in_a_circle_end() -> None:
    with (
        serving(closing(answer("302 Found", Location="/again"))) as server,
        pytest.raises(WebError, match="redirects more than 5 times"),
    ):
        Client().request("GET", server.url, follow=Follow.ANYWHERE)
    assert len(server.heads) == 6


def test_no_cookie_is_kept() -> None:
    with serving(closing(answer("200 OK", Set_Cookie="a=b; Path=/", Connection="close"))) as server:
        client = Client()
        for _ in range(2):
            client.request("GET", server.url)
    assert "cookie" not in "".join(server.heads).lower()


def test_a_file_of_certificates_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(WebError, match=r"there is no file of certificates .*/absent\.pem"):
        Client(tmp_path / "absent.pem").request("GET", "https://127.0.0.1:9/")


def test_a_download_may_take_long_while_enough_comes() -> None:
    def steady(connection: socket.socket, server: Hostile) -> None:
        connection.sendall(answer("200 OK", Content_Length="300000"))
        for _ in range(30):
            time.sleep(0.05)
            connection.sendall(bytes(10_000))
            server.sent += 10_000

    with serving(steady) as server:
        bounds = {"total_timeout": 0.5, "least": 20_000}
        with Client().open("GET", server.url, **bounds) as opened:
            assert sum(map(len, opened.blocks())) == 300_000
        with (
            pytest.raises(WebError, match="not complete after"),
            Client().open("GET", server.url, total_timeout=0.5) as opened,
        ):
            list(opened.blocks())


def test_each_thread_has_its_own_deadline() -> None:
    client = Client()
    ended: dict[float, str] = {}
    go_on = threading.Event()

    def wait(connection: socket.socket, _: Hostile) -> None:
        connection.sendall(answer("200 OK", Content_Length="2"))
        go_on.wait(30)
        connection.sendall(b"{}")

    def ask(seconds: float) -> None:
        try:
            ended[seconds] = str(client.request("GET", server.url, total_timeout=seconds).status)
        except WebError as error:
            ended[seconds] = error.why

    with serving(wait) as server:
        threads = [threading.Thread(target=ask, args=(seconds,)) for seconds in (0.5, 60.0)]
        for thread in threads:
            thread.start()
        threads[0].join(30)
        assert list(ended) == [0.5]
        go_on.set()
        threads[1].join(30)
    assert "not complete" in ended[0.5]
    assert ended[60.0] == "200"


@pytest.mark.parametrize(
    ("kind", "attempts", "why"),
    [
        ("untrusted", 1, "REQUESTS_CA_BUNDLE"),
        ("407 Proxy Authentication Required", 1, "407 Proxy .*user and password"),
        ("403 Forbidden", 1, "the proxy: .*403 Forbidden"),
        ("503 Service Unavailable", web.ATTEMPTS, "the proxy: .*503 Service Unavailable"),
        ("cut", web.ATTEMPTS, "closed the connection"),
        ("no name", 1, "cannot be resolved.* HTTPS_PROXY"),
    ],
)
@pytest.mark.usefixtures("no_waiting")
def test_only_what_may_pass_is_asked_again(
    kind: str, attempts: int, why: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The real errors of a server, and of a proxy before one that needs TLS."""
    handler, authority = faults.with_tls("127.0.0.1", faults.cut)
    if kind == "cut":
        authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
        monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(tmp_path / "ca.pem"))
    if kind[0].isdigit():
        handler = faults.answering(kind)
    tried: list[int] = []
    with faults.serving(handler) as (port, _):
        host = "x.example.invalid" if kind == "no name" else f"127.0.0.1:{port}"
        if kind[0].isdigit():
            monkeypatch.setenv("HTTPS_PROXY", f"http://{host}")
            host = "x.example.invalid"

        def ask() -> Response:
            tried.append(1)
            return Client().request("GET", f"https://{host}/")

        with pytest.raises(WebError, match=why):
            web.RetryPolicy().call(ask)
    assert len(tried) == attempts
