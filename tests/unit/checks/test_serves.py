"""What a tested server answers, as it stands in a verdict."""

from __future__ import annotations

import gzip
import json
import re
import struct
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pydantic import ValidationError

from builder.checks import serves
from builder.checks.server import Server, ServerClient
from builder.engines.servers import API_FLAVORS, flavor_of
from builder.recipes.probes import Serve
from support.hostile import answer, closing, serving
from support.loopback import Quiet, serving_with

EVIL = "\u202e\x1b[31mevil\nPASS"


@pytest.mark.parametrize(
    ("answered", "passed"),
    [
        (answer("200 OK", json.dumps({"data": [{"id": EVIL + "x" * 2_000_000}]}).encode()), True),
        (answer("200 OK", json.dumps({"data": [{"id": EVIL}] * 100_000}).encode()), False),
        (answer("500 Error", (EVIL * 1000).encode()), False),
        (answer("200 OK", EVIL.encode()), False),
    ],
    ids=("a long name", "many names", "an error", "no JSON"),
)
def test_what_a_server_answers_is_short_and_printable(answered: bytes, passed: bool) -> None:
    with serving(closing(answered)) as hostile:
        running: Any = SimpleNamespace(state=lambda: SimpleNamespace(running=True, out_of_memory=0))
        server = Server(running, ServerClient(hostile.url), API_FLAVORS["openai"])
        request = ("lists its model", "one", lambda: serves._models(server))
        check = serves.answered(server, request)
    assert check.passed is passed
    assert check.found.isprintable()
    assert len(check.found) < 600


PAGE = """<html><head><link rel="icon" href="favicon.ico"><link href="./b.css" rel="stylesheet">
<link rel="modulepreload" href="./_app/b.js"></head><body><script>
import("./_app/b.js").then((app) => app.start()); import('/_app/late.js');
worker = "import('${url}')"</script></body></html>"""
WHOLE = {
    "/": ("text/html; charset=utf-8", PAGE),
    "/b.css": ("text/css", "p {}"),
    "/_app/b.js": ("application/javascript", "0"),
    "/_app/late.js": ("text/javascript; charset=utf-8", "0"),
}


class Site(Quiet):
    """A server that has packed pages alone, as llama.cpp's."""

    pages: dict[str, tuple[str, str]]

    def do_GET(self) -> None:
        kind, text = self.pages.get(self.path, ("text/plain", ""))
        packs = "gzip" in self.headers.get("Accept-Encoding", "")
        self.send_response(404 if self.path not in self.pages else 200 if packs else 415)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Encoding", "gzip")
        self.end_headers()
        self.wfile.write(gzip.compress(text.encode()))


@pytest.mark.parametrize(
    ("pages", "passed", "found"),
    [
        (WHOLE, True, "3 scripts and styles"),
        ({"/": ("text/html", "<title>a page</title><script>0</script>")}, True, "'a page', 0"),
        (
            {"/": ("text/html", '<script src="https://x.invalid/x.js">')},
            True,
            "0 scripts and styles",
        ),
        ({"/": ("text/html", "<![x><title>a page</title><script>0</script>")}, True, "'a page', 0"),
        ({}, False, "status 404"),
        ({"/": ("text/plain", PAGE)}, False, "but text/plain"),
        ({"/": ("text/html", "<p>disabled</p>")}, False, "no page with a script"),
        ({**WHOLE, "/b.css": ("text/html", PAGE)}, False, "GET /b.css"),
        ({**WHOLE, "/_app/b.js": ("application/javascript", "")}, False, "GET /_app/b.js: 0 bytes"),
        ({key: WHOLE[key] for key in WHOLE if "late" not in key}, False, "GET /_app/late.js"),
    ],
)
def test_a_web_page_is_there_with_all_that_it_names(
    pages: dict[str, tuple[str, str]], passed: bool, found: str
) -> None:
    with serving_with(type("Own", (Site,), {"pages": pages})) as address:
        running: Any = SimpleNamespace(state=lambda: SimpleNamespace(running=True, out_of_memory=0))
        server = Server(running, ServerClient(f"http://{address}"), API_FLAVORS["llama-server"])
        check = serves.answered(server, ("shows", "a page", lambda: serves.shows_page(server)))
    assert check.passed is passed, check.found
    assert found in check.found


# A server whose API is not known


def test_a_server_without_a_known_api_is_asked_its_own_request() -> None:
    body = json.dumps({"text": " hello hello" + EVIL}).encode()
    serve = Serve.model_validate(
        {
            "api_flavor": "none",
            "health": "up",
            "request": {"path": "inference", "contains": ['"text"', "hello"]},
        }
    )
    flavor = flavor_of(serve)
    assert (flavor.health, flavor.generates) == ("/up", False)
    with serving(closing(answer("200 OK", body))) as there:
        running: Any = SimpleNamespace(state=lambda: SimpleNamespace(running=True, out_of_memory=0))
        server = Server(running, ServerClient(there.url), flavor)
        (request,) = serves.requests_of(server)
        check = serves.answered(server, request)
    assert check.passed
    assert (check.subject, check.expected) == ("answers /inference", 'contains "text", hello')
    assert check.found.isprintable()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"api_flavor": "none"}, "needs either request or refuses"),
        ({"api_flavor": "openai", "refuses": "x"}, "and else neither"),
        ({"api_flavor": "none", "refuses": "x", "arguments": ["{model}"]}, "without {model}"),
        ({"api_flavor": "none", "refuses": "x", "gpu": ["{model}"]}, "without {model}"),
        ({"api_flavor": "openai", "model": "whisper"}, "no use without a request"),
        ({"api_flavor": "none", "request": {"path": "a", "contains": []}}, "at least 1 item"),
        (
            {
                "api_flavor": "none",
                "request": {"path": "a", "contains": ["b"], "body": "{}", "form": {"a": "b"}},
            },
            "either body or form",
        ),
        (
            {"api_flavor": "none", "request": {"path": "a", "contains": ["b"], "body": "{"}},
            "body is not JSON",
        ),
        (
            {
                "api_flavor": "none",
                "request": {"path": "a", "contains": ["b"], "form": {"file": "@/etc/passwd"}},
            },
            "no file that the check makes",
        ),
    ],
)
def test_what_a_recipe_says_of_its_server_is_checked(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=re.escape(message)):
        Serve.model_validate(given)


@pytest.mark.parametrize(
    ("log", "running", "passed"),
    [
        ("loading\nno model: bye\n", False, True),
        ("Segmentation fault\n", False, False),
        ("", True, False),
    ],
    ids=("it says so", "it says something else", "it goes on"),
)
def test_a_server_without_a_model_says_so_and_ends(log: str, running: bool, passed: bool) -> None:
    container: Any = SimpleNamespace(
        state=lambda: SimpleNamespace(running=running, out_of_memory=False, status=1),
        log=lambda: log,
        end_of_log=lambda: log,
    )
    flavor = flavor_of(Serve(api_flavor="none", refuses="no model: bye"))
    server = Server(container, ServerClient("http://server.invalid"), flavor)
    started, asked = serves.refuses(server, 0.1, "device")
    assert started.passed is passed
    assert asked.state == "skipped"
    assert "are not known" in asked.found


def test_the_model_of_whisper_has_each_tensor_once(tmp_path: Path) -> None:
    """As whisper_model_load reads it: it refuses a file with more, or with fewer."""
    serve = Serve.model_validate(
        {
            "api_flavor": "none",
            "model": "whisper",
            "request": {"path": "inference", "contains": ["x"]},
        }
    )
    file = serves.test_model(serve, tmp_path)
    assert file is not None
    data = file.read_bytes()
    magic, vocabulary, audio, width, heads, layers, *_ = struct.unpack_from("<12i", data)
    assert (magic, vocabulary, audio, heads, layers) == (0x67676D6C, 51_864, 1500, 1, 4)
    at = 48
    mels, frequencies = struct.unpack_from("<2i", data, at)
    at += 8 + 4 * mels * frequencies
    (words,) = struct.unpack_from("<i", data, at)
    assert data[at + 8 :].startswith(serves.WHISPER_WORD.encode()), "a card that computes nothing"
    at += 4 + 5 + (words - 1) * (4 + len(serves.WHISPER_WORD))
    assert data[at - 5 : at] == struct.pack("<i", 1) + b" "
    found: dict[str, tuple[int, ...]] = {}
    while at < len(data):
        dimensions, length, kind = struct.unpack_from("<3i", data, at)
        shape = struct.unpack_from(f"<{dimensions}i", data, at + 12)
        at += 12 + 4 * dimensions
        found[data[at : at + length].decode()] = shape
        size = 1
        for each in shape:
            size *= each
        at += length + size * (2 if kind else 4)
    assert at == len(data)
    assert len(found) == 7 + 4 + layers * 15 + layers * 24
    assert found["encoder.conv1.weight"] == (3, mels, width)
    assert found["decoder.token_embedding.weight"] == (width, vocabulary)
