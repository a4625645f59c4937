"""`patch drift` on real repositories and with answers of GitHub's API."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from support.farms import Farm
from support.upstreams import numbered


class Api(BaseHTTPRequestHandler):
    """GitHub's API for one pull request, as its documentation has it."""

    answers: dict[str, tuple[int, Any]]

    def do_GET(self) -> None:
        status, body = self.answers.get(self.path, (404, {"message": "Not Found"}))
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def api(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, tuple[int, Any]]]:
    answers: dict[str, tuple[int, Any]] = {}
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Own", (Api,), {"answers": answers}))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setenv("BUILDER_GITHUB_API", f"http://127.0.0.1:{server.server_port}")
    yield answers
    server.shutdown()
    server.server_close()


def test_drift_tells_what_became_of_a_pull_request(farm: Farm) -> None:
    patch = farm.pull(6, **{"a.c": numbered(40, line_20="twenty")})
    farm.write(patch)
    (same,) = farm.json("patch", "drift")
    farm.run("patch", "drift")
    assert "1 pull request of 1 recipe compared with upstream" in farm.said
    assert (same["state"], same["changes"]) == ("unmoved", "")

    moved = farm.upstream.pull(6, {"a.c": numbered(40, line_20="20!")}, base=farm.pin)
    (drifted,) = farm.json("patch", "drift")
    assert (drifted["state"], drifted["head"]) == ("moved", moved)
    assert "-+twenty" in drifted["changes"].replace(" ", "")
    assert "++20!" in drifted["changes"].replace(" ", "")
    assert "pull 6 changed since it was added" in farm.run("patch", "drift", "eng")

    farm.upstream.git("update-ref", "-d", "refs/pull/6/head")
    assert farm.json("patch", "drift")[0]["state"] == "gone"

    squashed = farm.upstream.commit("squashed", **{"a.c": numbered(40, line_20="twenty")})
    farm.upstream.git("tag", "v0.2.0")
    (merged,) = farm.json("patch", "drift")
    assert merged["state"] == "merged"
    assert merged["merged"].startswith(squashed[:7])


@pytest.mark.parametrize("how", ["merge", "squash", "fast-forward"])
def test_drift_and_add_know_what_was_merged_and_touched_again(farm: Farm, how: str) -> None:
    farm.write(farm.pull(6, **{"a.c": numbered(40, line_20="twenty")}))
    head = farm.upstream.git("rev-parse", "refs/pull/6/head")
    if how == "squash":
        farm.upstream.commit("Twenty (#6)", **{"a.c": numbered(40, line_20="twenty")})
    else:
        ways = {"merge": ("--no-ff", "-m", "merge 6"), "fast-forward": ("--ff-only",)}
        farm.upstream.git("merge", "--quiet", *ways[how], head)
    by = farm.upstream.head()
    # No tag has it, main has it: and its line is another one again.
    later = farm.upstream.commit("touched", **{"a.c": numbered(40, line_20="XX", line_19="XIX")})
    (merged,) = farm.json("patch", "drift")
    assert merged["state"] == "merged"
    assert merged["merged"].startswith(by[:7])
    before = farm.write("", commit=later).read_text()
    farm.run("patch", "add", "eng", "--pull", "6", status=11)
    assert "the pin of eng-0.1.0 already contains pull request 6" in farm.said
    assert by[:7] in farm.said
    assert farm.write("", commit=later).read_text() == before
    assert farm.json("patch", "drift") == []


def test_drift_adds_what_github_knows(
    farm: Farm, api: dict[str, tuple[int, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GIT_CONFIG_COUNT", "1")
    monkeypatch.setenv("GIT_CONFIG_KEY_0", f"url.file://{farm.upstream.folder}.insteadOf")
    monkeypatch.setenv("GIT_CONFIG_VALUE_0", "https://github.com/o/eng")
    farm.url = "https://github.com/o/eng"
    farm.write(farm.pull(6, **{"b.c": "c\n"}))
    path = "/repos/o/eng/pulls/6"
    told: dict[str, Any] = {
        "title": "Mend b",
        "state": "closed",
        "merged_at": None,
        "merge_commit_sha": None,
        "base": {"ref": "main"},
    }
    api[path] = (200, told)
    assert farm.json("patch", "drift")[0]["github"] == "closed: Mend b"
    api[path] = (
        200,
        told | {"merged_at": "2026-11-01T00:00:00Z", "merge_commit_sha": "1" * 40},
    )
    assert farm.json("patch", "drift")[0]["github"] == "merged 2026-11-01 as 111111111: Mend b"
    for status, body in ((403, {"message": "rate limit"}), (200, ["nonsense"]), (500, None)):
        api[path] = (status, body)
        assert farm.json("patch", "drift")[0]["github"] == ""
