"""Uploads, lists and tags of registries that break the rules: real servers on loopback."""

from __future__ import annotations

import gzip
import http.client
from pathlib import Path

import pytest

from builder.core.errors import RegistryError, plain
from builder.publish import registry, transport
from builder.publish.registry import MANIFESTS, Manifest, Repository
from support.registries import NO_BLOB, Fault, Reply, Request, answering, proxied, put_image

pytestmark = pytest.mark.usefixtures("docker_config")


@pytest.mark.parametrize(
    ("location", "said"),
    [
        (None, "the response has none"),
        ("ftp://h/x", "not a valid"),
        ("http://[::1/x", "not a valid"),
    ],
)
def test_an_upload_without_a_usable_address(location: str | None, said: str) -> None:
    def front(request: Request) -> Reply:
        named = {"Location": location} if location else {}
        return (202, named, b"") if request.command == "POST" else (404, {}, b"")

    with (
        answering(front) as (address, _),
        pytest.raises(RegistryError, match=r"upload address of .* cannot be used") as caught,
    ):
        Repository(f"{address}/me/x", print).put_bytes(b"x")
    assert said in caught.value.why


def test_a_list_without_end_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "MOST_PAGES", 3)

    def front(request: Request) -> Reply:
        return 200, {"Link": f'<{request.path}x>; rel="next"'}, b'{"tags": ["a"]}'

    with answering(front) as (address, asked):
        with pytest.raises(RegistryError, match="has more than 3 pages"):
            Repository(f"{address}/me/x", print).tags()
        assert len(asked) == 3


def test_a_page_that_names_itself_as_the_next() -> None:
    again = {"Link": '</v2/me/x/tags/list?last=a>; rel="next"'}
    with answering(lambda _: (200, again, b'{"tags": ["a"]}')) as (address, requests):
        assert Repository(f"{address}/me/x", print).tags() == ["a"]
        assert len(requests) == 2


def test_a_list_of_another_host_is_refused() -> None:
    link = {"Link": '<http://198.51.100.1/v2/x>; rel="next"'}
    with (
        answering(lambda _: (200, link, b'{"tags": ["a"]}')) as (address, _),
        pytest.raises(RegistryError, match=r"next page of .* is on another host"),
    ):
        Repository(f"{address}/me/x", print).tags()


class Store:
    """A registry that keeps blobs, at so many bytes a second."""

    def __init__(self) -> None:
        self.kept: dict[str, int] = {}

    def __call__(self, request: Request) -> Reply:
        if request.command == "HEAD":
            return (200 if request.path.rpartition("/")[2] in self.kept else 404), {}, b""
        if request.command == "POST":
            return 202, {"Location": "/v2/me/x/blobs/uploads/1"}, b""
        self.kept[request.path.rpartition("digest=")[2]] = int(request.headers["Content-Length"])
        return 201, {}, b""


def test_an_upload_says_how_far_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import hashlib

    monkeypatch.setattr(transport, "LINE_EVERY", 0.0)
    file = tmp_path / "blob"
    file.write_bytes(bytes(3_000_000))
    digest = "sha256:" + hashlib.sha256(file.read_bytes()).hexdigest()
    name = f"{digest[:19]} (3.0 MB)"
    said: list[str] = []
    kept = Store()
    with answering(kept) as (address, _):
        repository = Repository(f"{address}/me/x", said.append)
        assert repository.put_blob(digest, file)
        assert not repository.put_blob(digest, file)
        assert kept.kept == {digest: 3_000_000}
    assert said[0] == f"{name}: uploading"
    assert said[-1] == f"{name}: exists"
    assert all(line.endswith(" MB sent") for line in said[1:-1])
    assert len(said) > 10


def test_a_registry_whose_conditions_mean_something_else() -> None:
    """Its ETags are not digests, so that no condition is met; nobody moves the tag."""
    there = Manifest(b'{"config": null}', MANIFESTS[0])
    ours = Manifest(b"{}", MANIFESTS[0])
    tags = {"latest": there.digest}

    def front(request: Request) -> Reply:
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
        with pytest.raises(RegistryError, match="was moved by another client"):
            repository.put_tag("latest", there, there.digest)


def test_a_deletion_whose_response_was_lost_is_no_error(registry: str) -> None:
    image = put_image(Repository(f"{registry}/me/x", print), "a")

    def done() -> None:
        path = f"/v2/me/x/manifests/{image.digest}"
        connection = http.client.HTTPConnection(registry)
        connection.request("DELETE", path)
        assert connection.getresponse().status == 202
        connection.close()

    with proxied(registry) as proxy:
        repository = Repository(f"{proxy.address}/me/x", print)
        proxy.faults = [Fault("DELETE", "cut", first=done)]
        repository.delete(image.digest)
        assert repository.manifest(image.digest) is None
        proxy.faults = [Fault("DELETE", 429, headers={"Retry-After": "0"})]
        repository.delete(image.digest)


STATUSES = {
    "GET a manifest": (lambda each: each.manifest("a"), "GET", (201, 202, 204, 206)),
    "GET a blob": (lambda each: each.blob(NO_BLOB), "GET", (201, 204, 206)),
    "HEAD a manifest": (lambda each: each.head_digest("a"), "HEAD", (202, 204, 206)),
    "list tags": (lambda each: each.tags(), "GET", (202, 206)),
    "begin an upload": (lambda each: each.require_push(), "POST", (200, 201, 204)),
    "put a blob": (lambda each: each.put_bytes(b"x"), "PUT", (200, 202, 204)),
    "put a manifest": (lambda each: each.put_manifest("a", MANIFEST), "PUT", (200, 202, 204)),
    "put a tag": (lambda each: each.put_tag("a", MANIFEST, ""), "PUT", (200, 202, 204)),
    "delete": (lambda each: each.delete(NO_BLOB), "DELETE", (200, 201, 204)),
}
MANIFEST = Manifest(b"{}", MANIFESTS[0])


@pytest.mark.parametrize("kind", STATUSES)
def test_a_status_that_is_not_that_of_the_specification(kind: str) -> None:
    ask, method, statuses = STATUSES[kind]
    for status in statuses:

        def front(request: Request, status: int = status) -> Reply:
            if request.command == method:
                return status, {"Location": "/v2/me/x/blobs/uploads/1"}, b"{}"
            if request.command == "POST":
                return 202, {"Location": "/v2/me/x/blobs/uploads/1"}, b""
            return 404, {}, b""

        with (
            answering(front) as (address, _),
            pytest.raises(RegistryError, match="refuses") as caught,
        ):
            ask(Repository(f"{address}/me/x", print))
        assert str(status) in caught.value.why


@pytest.mark.parametrize("coding", ["br", "zstd", "gzip, br", "x\x1b[2J"])
def test_a_content_coding_that_nobody_asked_for_is_named(coding: str) -> None:
    with (
        answering(lambda _: (200, {"Content-Encoding": coding}, b"{}")) as (address, _),
        pytest.raises(RegistryError, match="refuses") as caught,
    ):
        Repository(f"{address}/me/x", print).manifest("a")
    assert plain(coding).lower() in caught.value.why


def test_a_packed_response_is_unpacked() -> None:
    content = gzip.compress(b'{"tags": ["a"]}')
    with answering(lambda _: (200, {"Content-Encoding": "gzip"}, content)) as (address, _):
        assert Repository(f"{address}/me/x", print).tags() == ["a"]
