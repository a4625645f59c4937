"""Whoever asks a hostile server gets an error of builder, and nothing else happens.

Each request of builder's is made to real servers on loopback that break HTTP, JSON, or trust.
"""

from __future__ import annotations

import gzip
import hashlib
import tracemalloc
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import pytest

from builder.checks.server import Answer, ModelList, ServerClient, UnansweredError
from builder.core import web
from builder.core import web as web_client
from builder.core.errors import BuilderError
from builder.presets import models
from builder.presets.models import Fetch, Location, download, on_the_hub
from builder.publish.hub import Hub
from builder.publish.registry import Repository
from builder.recipes.locks import PinnedFile
from builder.sources import apt, pypi
from builder.sources.apt import PackageArchive
from support import model_hub
from support.hostile import Hostile, answer, closing, serving, trickling

pytestmark = pytest.mark.usefixtures("docker_config")
SHA256 = hashlib.sha256(b"x").hexdigest()
ENOUGH = 0.5  # seconds for a server that answers at once
DEEP = b"[" * 300_000
Use = Callable[[str, Path, pytest.MonkeyPatch], object]


@dataclass(frozen=True)
class Deb:
    path: str = "debian/pool/main/a/a/a_1_all.deb"
    sha256: str = SHA256


def _engine_json(url: str, *_: object) -> object:
    return ServerClient(url).get("/v1/models", ModelList, ENOUGH)


def _engine_answer(url: str, *_: object) -> object:
    return ServerClient(url).post("/v1/completions", {}, Answer, ENOUGH)


def _engine_text(url: str, *_: object) -> object:
    return ServerClient(url).text("/metrics", ENOUGH)


def _engine_stream(url: str, *_: object) -> object:
    return ServerClient(url).stream("/v1/completions", {}, ENOUGH)


def _engine_status(url: str, *_: object) -> object:
    return ServerClient(url).status("/health", ENOUGH)


def _package_index(url: str, folder: Path, patch: pytest.MonkeyPatch) -> object:
    patch.setenv("PIP_INDEX_URL", f"{url}/simple")
    return pypi.fetch([PinnedFile("thing", "1.0", SHA256)], folder, print)


def _debian(url: str, folder: Path, *_: object) -> object:
    return apt.fetch([Deb()], datetime.now(UTC), PackageArchive((), url), folder, print)


def _model_list(url: str, _: Path, patch: pytest.MonkeyPatch) -> object:
    model_hub.use(patch, HF_ENDPOINT=url)
    return models.hub_files("me/A")


def _model_download(url: str, folder: Path, patch: pytest.MonkeyPatch) -> object:
    model_hub.use(patch, HF_ENDPOINT=url)
    fetch = Fetch(on_the_hub("me/A", "a.gguf"), "a.gguf", folder / "a.gguf", 1, SHA256)
    return download([fetch], folder, lambda *_: None)


def _model_header(url: str, *_: object) -> object:
    with Location(f"{url}/a.gguf", "a.gguf").opened() as (stream, _):
        return stream.read(1)


def _registry(url: str, *_: object) -> object:
    found = Repository(f"{url.removeprefix('http://')}/me/x", print).manifest("a")
    return found and found.body


def _registry_tags(url: str, *_: object) -> object:
    return Repository(f"{url.removeprefix('http://')}/me/x", print).tags()


def _docker_hub(url: str, _: Path, patch: pytest.MonkeyPatch) -> object:
    patch.setenv("DOCKERHUB_USERNAME", "me")
    patch.setenv("DOCKERHUB_TOKEN", "secret")
    return Hub(url, print).tags("me/x")


USES: dict[str, Use] = {
    each.__name__.strip("_"): each
    for each in (
        *(_engine_json, _engine_answer, _engine_text, _engine_stream, _engine_status),
        *(_package_index, _debian),
        *(_model_list, _model_download, _model_header),
        *(_registry, _registry_tags, _docker_hub),
    )
}
JSON = "application/json"
CHUNKED = {"Content_Length": "", "Transfer_Encoding": "chunked"}
BROKEN = {
    "no address": answer("302 Found", Location="http://["),
    "no port": answer("302 Found", Location="http://127.0.0.1:99999/"),
    "spaces in an address": answer("302 Found", Location="http://a b\tc/"),
    "negative chunk": answer("200 OK", b"-5\r\nhello\r\n0\r\n\r\n", **CHUNKED),
    "chunk to the end": answer("200 OK", b"-1\r\nhello", **CHUNKED),
    "no chunk": answer("200 OK", b"zz\r\nhello", **CHUNKED),
    "endless chunk size": answer("200 OK", b"f" * 100_000, **CHUNKED),
    "absurd length": answer("200 OK", b"{}", Content_Length="9" * 30),
    "length of 5000 digits": answer("200 OK", b"\xff", Content_Length="9" * 5000),
    "two lengths": answer("200 OK", b"{}", Content_Length="1, 2"),
    "many headers": answer("200 OK", b"{}", **{f"X_{n}": "a" for n in range(500)}),
    "long header": answer("200 OK", b"{}", X="a" * 100_000),
    "status of letters": b"HTTP/1.1 abc OK\r\n\r\n",
    "negative status": b"HTTP/1.1 -200 OK\r\n\r\n",
    "status of many digits": b"HTTP/1.1 20000000000000000 OK\r\n\r\n",
    "nothing": b"",
    "no http": b"\x00\xff" * 100,
    "unknown coding": answer("200 OK", b"{}", Content_Encoding="br"),
    "cut gzip": answer("200 OK", gzip.compress(b"{}" * 999)[:20], Content_Encoding="gzip"),
    "no gzip": answer("200 OK", b"{}", Content_Encoding="gzip"),
    "header that is no text": b"HTTP/1.1 302 \xff\r\nLocation: http://\xff\xfe/\r\n\r\n",
}
JSONS = {
    "deep json": DEEP,
    "deep objects": b'{"a":' * 100_000,
    "no utf-8": b'{"a": "\xff\xfe"}',
    "long number": b"[" + b"9" * 100_000 + b"]",
    "surrogate": rb'["\ud800"]',
    "a number": b"1",
    "empty": b"",
}
HARMLESS = {
    *(("engine_text", kind) for kind in JSONS),
    *(("engine_stream", kind) for kind in JSONS),
    *(("engine_status", kind) for kind in (*BROKEN, *JSONS)),
    ("engine_text", "length of 5000 digits"),
    ("engine_text", "cut gzip"),
    ("engine_stream", "length of 5000 digits"),
}
"""What may be answered: who asks needs no more than the status, or takes any text."""


@pytest.fixture(autouse=True)
def one_attempt(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(web, "ATTEMPTS", 1)


def refused(use: str, server: Hostile, tmp_path: Path, patch: pytest.MonkeyPatch) -> str:
    """What the error says."""
    with pytest.raises((BuilderError, UnansweredError)) as caught:
        USES[use](server.url, tmp_path / "into", patch)
    assert server.heads
    kept = [path for path in (tmp_path / "into").rglob("*") if path.is_file()]
    assert not kept, "something half-done stays behind"
    return str(caught.value)


def harmless(use: str, server: Hostile, tmp_path: Path, patch: pytest.MonkeyPatch) -> None:
    """Whatever comes of it, nothing else is raised than an error of builder."""
    with suppress(BuilderError, UnansweredError):
        USES[use](server.url, tmp_path / "into", patch)
    assert server.heads


@pytest.mark.parametrize("kind", BROKEN)
@pytest.mark.parametrize("use", USES)
def test_broken_http(use: str, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(closing(BROKEN[kind])) as server:
        if (use, kind) in HARMLESS:
            harmless(use, server, tmp_path, monkeypatch)
            return
        refused(use, server, tmp_path, monkeypatch)


@pytest.mark.parametrize("kind", JSONS)
@pytest.mark.parametrize("use", USES)
def test_json_that_breaks_parsers(
    use: str, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving(closing(answer("200 OK", JSONS[kind], Content_Type=JSON))) as server:
        if (use, kind) in HARMLESS:
            harmless(use, server, tmp_path, monkeypatch)
            return
        refused(use, server, tmp_path, monkeypatch)


@pytest.mark.parametrize("data", [DEEP, b"1", b'"a"', b"\xff", rb'{"a": "\ud800"}'])
def test_an_event_that_breaks_parsers(data: bytes) -> None:
    content = b"data: " + data + b"\n\n"
    with (
        serving(closing(answer("200 OK", content))) as server,
        pytest.raises(UnansweredError) as caught,
    ):
        ServerClient(server.url).stream("/", {}, 5)
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize("use", USES)
def test_a_response_that_drips(use: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(web_client, "TOTAL_TIMEOUT", 0.5)
    monkeypatch.setattr(pypi, "PAGE_TIMEOUT", 0.5)
    begun = use == "engine_status"  # it needs no more than a head
    head = b"HTTP/1.1 " if begun else answer("200 OK", Content_Length="100000")
    with serving(trickling(head)) as server:
        refused(use, server, tmp_path, monkeypatch)
        assert server.sent < 200


@pytest.mark.parametrize("use", USES)
def test_no_login_of_netrc_is_sent(
    use: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    netrc = tmp_path / "netrc"
    netrc.write_text("machine 127.0.0.1 login me password secret\n")
    monkeypatch.setenv("NETRC", str(netrc))
    with serving(closing(answer("404 Not Found"))) as server:
        harmless(use, server, tmp_path, monkeypatch)
        assert not [head for head in server.heads if "authorization: basic" in head.lower()]


@pytest.mark.parametrize("use", [use for use in USES if use.startswith("engine")])
def test_a_tested_server_makes_the_host_ask_nobody_else(
    use: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (
        serving(closing(answer("200 OK", b"{}"))) as other,
        serving(closing(answer("302 Found", Location=f"{other.url}/secret"))) as server,
    ):
        if use == "engine_status":
            assert USES[use](server.url, tmp_path, monkeypatch) == 302
        else:
            assert "302" in refused(use, server, tmp_path, monkeypatch)
        assert other.heads == []


@pytest.mark.parametrize("use", [use for use in USES if not use.startswith("engine")])
def test_the_body_of_a_redirect_is_not_read(
    use: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    size = 64 << 20
    with (
        serving(closing(answer("404 Not Found"))) as other,
        serving(closing(answer("302 Found", bytes(size), Location=f"{other.url}/there"))) as server,
    ):
        tracemalloc.start()
        try:
            before = tracemalloc.get_traced_memory()[0]
            harmless(use, server, tmp_path, monkeypatch)
            assert tracemalloc.get_traced_memory()[1] - before < size / 4
        finally:
            tracemalloc.stop()
        assert server.sent < size / 4


@pytest.mark.parametrize(
    "use", ["package_index", "debian", "model_list", "model_download", "model_header"]
)
def test_a_server_elsewhere_leads_to_no_server_of_this_machine(
    use: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (
        serving(closing(answer("200 OK", b"secret"))) as inner,
        serving(closing(answer("302 Found", Location=f"{inner.url}/there"))) as proxy,
    ):
        monkeypatch.setenv("http_proxy", proxy.url)
        monkeypatch.delenv("no_proxy", raising=False)
        monkeypatch.delenv("NO_PROXY", raising=False)
        with pytest.raises(BuilderError, match=r"it names 127\.0\.0\.1, which is this machine"):
            USES[use]("http://elsewhere.example", tmp_path / "into", monkeypatch)
        assert proxy.heads
        assert inner.heads in ([], [""])


@pytest.mark.parametrize("packed", [False, True])
def test_a_list_of_files_is_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, packed: bool
) -> None:
    monkeypatch.setattr(models, "LARGEST_LIST", 1 << 20)
    content = b'{"siblings": []' + b" " * (64 << 20) + b"}"
    headers = {"Content_Encoding": "gzip"} if packed else {}
    content = gzip.compress(content) if packed else content
    with serving(closing(answer("200 OK", content, Content_Type=JSON, **headers))) as server:
        assert "larger than 1.0 MB" in refused("model_list", server, tmp_path, monkeypatch)
        assert server.sent < 32 << 20


@pytest.mark.parametrize("use", ["model_list", "model_download"])
def test_a_token_stays_with_its_host(
    use: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    with (
        serving(closing(answer("404 Not Found"))) as other,
        serving(closing(answer("302 Found", Location=f"{other.url}/there"))) as server,
    ):
        refused(use, server, tmp_path, monkeypatch)
        assert "Bearer hf_secret" in server.heads[0]
        assert other.heads
        assert "hf_secret" not in "".join(other.heads)
