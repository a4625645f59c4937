"""What a tested server answers, as it stands in a verdict."""

from __future__ import annotations

import gzip
import json
from types import SimpleNamespace
from typing import Any

import pytest

from builder.checks import serves
from builder.checks.server import Server, ServerClient
from builder.engines.servers import API_FLAVORS
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
