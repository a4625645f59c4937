"""Fetching by digest, from an index of our own that misbehaves."""

from __future__ import annotations

import base64
import hashlib
import time
from collections.abc import Callable, Iterator
from email.utils import formatdate
from http.server import ThreadingHTTPServer
from pathlib import Path

import pytest

from builder.core import web
from builder.core.errors import FetchError
from builder.recipes.locks import PinnedFile
from builder.sources import pypi
from support.loopback import Quiet, listening
from support.registries import Reply, Request, answering

BODY = b"a wheel, for all that anyone checks" * 1000
FILE = PinnedFile("thing", "1.0", hashlib.sha256(BODY).hexdigest())
WHEEL = "thing-1.0-py3-none-any.whl"
PAGE = f'<!DOCTYPE html><a href="/files/{WHEEL}#sha256={FILE.sha256}">{WHEEL}</a>'


class Index(ThreadingHTTPServer):
    """An index (PEP 503) that answers as ``answers`` says: a fault a request, then the truth."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.requests: list[str] = []
        self.faults: dict[str, list[str]] = {}
        self.body = BODY


class Handler(Quiet):
    server: Index

    def do_GET(self) -> None:
        self.server.requests.append(self.path)
        kind = "page" if self.path.startswith("/simple/") else "file"
        faults = self.server.faults.get(kind, [])
        fault = faults.pop(0) if faults else ""
        if fault[:3].isdigit():
            self.answer(int(fault[:3]), b"no", later=fault[4:])
        elif self.path == "/simple/thing/":
            self.answer(200, PAGE.encode())
        elif self.path.startswith("/files/"):
            self.answer(200, self.server.body, cut=fault == "cut")
        else:
            self.answer(404, b"no")

    def answer(self, status: int, body: bytes, cut: bool = False, later: str = "") -> None:
        self.send_response(status)
        if later:
            self.send_header("Retry-After", later)
        self.send_header("Content-Type", "text/html")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body[: len(body) // 2] if cut else body)


@pytest.fixture
def index(monkeypatch: pytest.MonkeyPatch) -> Iterator[Index]:
    server = Index()
    with listening(server) as address:
        monkeypatch.setenv("PIP_INDEX_URL", f"http://{address}/simple")
        yield server


@pytest.fixture
def fetch(tmp_path: Path) -> Callable[[PinnedFile], list[Path]]:
    return lambda file: pypi.fetch([file], tmp_path / "cache", lambda _: None)


def kept(tmp_path: Path) -> list[str]:
    return [path.name for path in (tmp_path / "cache").rglob("*") if path.is_file()]


def test_a_file_is_fetched_once(index: Index, fetch: Callable[[PinnedFile], list[Path]]) -> None:
    (path,) = fetch(FILE)
    assert path.read_bytes() == BODY
    assert path.name == "thing-1.0-py3-none-any.whl"
    asked = len(index.requests)
    assert fetch(FILE) == [path]
    assert len(index.requests) == asked


@pytest.mark.parametrize("faults", [{"page": ["503"]}, {"file": ["cut"]}, {"file": ["500", "429"]}])
def test_what_passes_is_tried_again(
    index: Index, fetch: Callable[[PinnedFile], list[Path]], faults: dict[str, list[str]]
) -> None:
    index.faults = faults
    (path,) = fetch(FILE)
    assert path.read_bytes() == BODY


@pytest.mark.parametrize("kind", ["page", "file"])
def test_a_date_to_ask_again_at_is_waited_for(
    index: Index, fetch: Callable[[PinnedFile], list[Path]], kind: str
) -> None:
    then = formatdate(time.time() + 3, usegmt=True)
    index.faults = {kind: [f"503 {then}"]}
    begun = time.monotonic()
    fetch(FILE)
    assert time.monotonic() - begun > 1.5
    assert len([path for path in index.requests if path.startswith("/files/")]) < 3


def test_a_date_too_far_away_is_named(
    index: Index, fetch: Callable[[PinnedFile], list[Path]]
) -> None:
    then = formatdate(time.time() + 3 * 3600, usegmt=True)
    index.faults = {"page": [f"429 {then}"]}
    with pytest.raises(FetchError) as caught:
        fetch(FILE)
    assert caught.value.why == "429 Too Many Requests; it asks to wait 3 hours"
    assert index.requests == ["/simple/thing/"]


def test_what_does_not_pass_is_not(
    index: Index, fetch: Callable[[PinnedFile], list[Path]], tmp_path: Path
) -> None:
    with pytest.raises(FetchError, match="has no project nothing"):
        fetch(PinnedFile("nothing", "1.0", "0" * 64))
    assert index.requests == ["/simple/nothing/"]
    index.faults = {"file": ["403"]}
    with pytest.raises(FetchError, match=r"cannot fetch thing 1\.0") as caught:
        fetch(FILE)
    assert caught.value.why == "403 Forbidden"
    assert len([path for path in index.requests if path.startswith("/files/")]) == 1
    assert kept(tmp_path) == []


@pytest.mark.usefixtures("index")
def test_a_file_that_the_index_does_not_have_is_named_with_what_it_has(
    fetch: Callable[[PinnedFile], list[Path]],
) -> None:
    with pytest.raises(FetchError) as error:
        fetch(PinnedFile("thing", "1.0", "1" * 64))
    assert "thing-1.0-py3-none-any.whl" in str(error.value)


def test_other_bytes_than_were_pinned_are_refused(
    index: Index, fetch: Callable[[PinnedFile], list[Path]], tmp_path: Path
) -> None:
    index.body = BODY.replace(b"wheel", b"steal")
    with pytest.raises(FetchError, match="does not have the pinned digest"):
        fetch(FILE)
    assert kept(tmp_path) == []


def test_an_index_that_is_away_is_told(
    fetch: Callable[[PinnedFile], list[Path]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(web, "ATTEMPTS", 1)
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:1/simple")
    with pytest.raises(FetchError, match=r"cannot fetch thing 1\.0") as caught:
        fetch(FILE)
    assert caught.value.why == "connection refused"


def test_the_login_of_an_index_is_for_its_files_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    login = f"Basic {base64.b64encode(b'me:secret').decode()}"
    elsewhere = False

    def front(request: Request) -> Reply:
        if request.headers.get("Authorization") != login:
            return 401, {}, b""
        if request.path.startswith("/files/"):
            return 200, {}, BODY
        host = other if elsewhere else address
        page = PAGE.replace("/files/", f"http://{host}/files/").encode()
        return 200, {"Content-Type": "text/html"}, page

    def public(_: Request) -> Reply:
        return 200, {}, BODY

    with answering(front) as (address, asked), answering(public) as (other, asked_of_other):
        monkeypatch.setenv("PIP_INDEX_URL", f"http://me:secret@{address}/simple")
        for elsewhere in (False, True):
            (file,) = pypi.fetch([FILE], tmp_path / str(elsewhere), lambda _: None)
            assert file.read_bytes() == BODY
    assert len(asked) == 3
    assert [each.headers.get("Authorization") for each in asked_of_other] == [None]
