"""What a registry may answer: nothing of it makes another error than one that explains itself."""

from __future__ import annotations

import json
import time
from contextlib import suppress
from email.utils import formatdate
from typing import Any

import pytest
from requests.structures import CaseInsensitiveDict

from builder.core.errors import BuilderError, RegistryError
from builder.core.web import (
    Follow,
    Response,
    WebError,
    redirect_url,
    retry_after_seconds,
    seconds_since,
    time_span,
)
from builder.publish import transport
from builder.publish.registry import Manifest, blobs_of
from builder.publish.signing import UNSIGNED
from builder.publish.tags import MOVE, TEXT, Move, notes_in
from support.damaged import DIGEST, damaged, fuzzed

DESCRIPTOR = {
    "mediaType": transport.IMAGE_MANIFEST,
    "digest": DIGEST,
    "size": 5,
    "artifactType": "a/b",
    "annotations": {"builder.move.before": DIGEST},
    "platform": {"os": "linux", "architecture": "amd64"},
}
NOTED = {
    "repository": "me/x",
    "tag": "a",
    "digest": DIGEST,
    "before": DIGEST,
    "number": 3,
    "created": "2026-01-01T00:00:00Z",
    "by": "night",
    "reason": "x",
    "updates": {"linux/amd64": 5},
    "past": [{"number": 2, "digest": DIGEST}],
}


def noted(**odd: object) -> dict[str, Any]:
    """The descriptor of a note."""
    return {**DESCRIPTOR, "artifactType": MOVE, "annotations": {TEXT: json.dumps(NOTED | odd)}}


MANIFEST = {
    "schemaVersion": 2,
    "mediaType": transport.IMAGE_MANIFEST,
    "config": DESCRIPTOR,
    "layers": [DESCRIPTOR],
    "subject": DESCRIPTOR,
    "annotations": {"a": "b"},
}
CONFIGURATION = {"created": "2026-01-01T00:00:00Z", "config": {"Labels": {"a": "b"}}}
ERRORS = {"errors": [{"code": "DENIED", "message": "no", "detail": None}]}


def answer(content: bytes = b"", **headers: str) -> Response:
    named = CaseInsensitiveDict({k.replace("_", "-"): v for k, v in headers.items()})
    return Response("GET", "https://r.example.invalid/v2/x/tags/list", 200, "OK", named, content)


def moves_noted(content: bytes) -> list[Move]:
    entries = transport.referrers(answer(content), "x")
    return [each.move for each in notes_in(entries, DIGEST, "me/x", UNSIGNED)]


def index_digests(content: bytes) -> list[str]:
    return [each.digest for each in Manifest(content, "").body.manifests or []]


DOCUMENTS: list[tuple[Any, Any]] = [
    (MANIFEST, lambda content: list(blobs_of(Manifest(content, "")))),
    (MANIFEST, lambda content: Manifest(content, "").parsed().get("config")),
    ({"manifests": [DESCRIPTOR], "mediaType": transport.INDEX}, index_digests),
    (
        CONFIGURATION,
        lambda content: transport.checked(transport.Configuration, content, "x").config,
    ),
    ({"tags": ["a", "b"]}, lambda content: transport.response_tags(answer(content), "x")),
    ({"manifests": [DESCRIPTOR]}, lambda content: transport.referrers(answer(content), "x")),
    ({"manifests": [noted()]}, moves_noted),
    (
        {"token": "abc", "access_token": "abc"},
        lambda content: transport.token(answer(content), "x"),
    ),
    (ERRORS, transport.error_text),
]


@fuzzed
def test_no_document_of_a_registry_is_an_internal_error(seed: bytes) -> None:
    for good, read in DOCUMENTS:
        with suppress(BuilderError):
            read(damaged(good, seed))


HEADERS = [
    *("5", "\u00b2", "9" * 400, str(time.time() + 60), formatdate(time.time() + 60, usegmt=True)),
    *(
        "Mon, 01 Jan 0001 00:00:00 +9999",
        "Mon, 01 Jan 9999 23:59:59 -9999",
        "</v2/x?n=1>; rel=next",
    ),
    *(
        "https://[::1",
        "//h:99999/x",
        "http://h/x",
        "file:///x",
        'Bearer realm="https://h",service="x"',
    ),
    *("application/json; charset=utf-8", DIGEST, "Bearer realm=", "\x00", "Mon, 32 Foo 2026"),
]


@fuzzed
def test_no_header_of_a_registry_is_an_internal_error(seed: bytes) -> None:
    good, at = HEADERS[seed[0] % len(HEADERS)], seed[1] % 40
    value = good[:at] + seed[3 : 3 + seed[2] % 4].decode("latin-1") + good[at + seed[2] % 2 :]
    told = answer(b"", Location=value, Link=f"<{value}>; rel=next", Content_Type=value)
    for read in (transport.upload_address, transport.next_page):
        with suppress(RegistryError):
            read(told, "x")
    with suppress(WebError):
        redirect_url(told, value, Follow.ANYWHERE)
    asked = retry_after_seconds(value)
    assert asked is None or asked >= 0
    assert time_span(asked or 0.0)
    assert isinstance(seconds_since(value), float | None)
    transport.challenge(value)
    assert transport.media_type(told.headers).isprintable()
    assert transport.response_digest(CaseInsensitiveDict({"Docker-Content-Digest": value})) in {
        "",
        value,
    }


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("number", odd) for odd in (10**40, 10**13, "5", "\u0663", -1, 0, 1.5, None, True)),
        *(("before", odd) for odd in ("latest", "sha256:5", "../x", f"{DIGEST}\n")),
        *(("past", odd) for odd in ([{"number": 1}], [NOTED["past"]] * 2, [{}] * 41, {})),
        ("updates", {"linux/amd64": 10**16}),
        ("tag", "a b"),
        ("repository", "me/y"),
        ("digest", f"sha256:{'1' * 64}"),
    ],
)
def test_what_is_no_note_of_a_move_is_left_out(name: str, value: object) -> None:
    (good,) = moves_noted(json.dumps({"manifests": [noted()]}).encode())
    assert (good.number, good.before, good.by) == (3, DIGEST, "night")
    assert moves_noted(json.dumps({"manifests": [noted(**{name: value})]}).encode()) == []


@pytest.mark.parametrize("nested", [b"[", b'{"config":', b'{"a":[', b'{"manifests":['])
def test_what_is_nested_too_deep_is_damaged(nested: bytes) -> None:
    for _, read in DOCUMENTS[:-1]:
        with pytest.raises(RegistryError, match="is damaged"):
            read(nested * 200_000)
    assert transport.error_text(nested * 200_000) == ""


@pytest.mark.parametrize(
    "content",
    [
        *(b"[]", b"[null]", b'{"manifests":[null]}', b'{"manifests":[{"size":5}]}'),
        b'{"manifests":[{"digest":"%s","annotations":{"before":5}}]}' % DIGEST.encode(),
    ],
)
def test_a_damaged_list_of_referrers(content: bytes) -> None:
    with pytest.raises(RegistryError, match="list of referrers of me/x is damaged") as caught:
        transport.referrers(answer(content), "me/x")
    assert caught.value.why
    assert caught.value.hint


@pytest.mark.parametrize(
    "given", ["s3cret\nSet-Cookie: x", "s3cret\x00", "s3cret\u202e", "s3 cret"]
)
def test_a_token_that_is_no_token_is_not_shown(given: str) -> None:
    from json import dumps

    with pytest.raises(RegistryError, match="the token for x is damaged") as caught:
        transport.token(answer(dumps({"token": given}).encode()), "x")
    assert "s3" not in str(caught.value)
    assert "s3" not in repr(caught.value.__context__)
