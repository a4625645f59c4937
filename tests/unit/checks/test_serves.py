"""What a tested server answers, as it stands in a verdict."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest

from builder.checks import serves
from builder.checks.server import Server, ServerClient
from builder.engines.servers import API_FLAVORS
from support.hostile import answer, closing, serving

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
