"""`bench` with servers on loopback: requests, timings and results."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest

from builder.measure.bench import parse_results
from support.benchmarks import benchmark
from support.commands import Builder
from support.loopback import Quiet, serving_with


class Handler(Quiet):
    """An OpenAI-compatible server: with llama.cpp's timings, or with vLLM's counters."""

    asked: ClassVar[list[dict[str, Any]]] = []
    timings = True
    broken = False
    drafted = 0

    def do_GET(self) -> None:
        if self.path == "/v1/models":
            self.reply(json.dumps({"data": [{"id": "tiny"}]}))
        elif self.path == "/metrics" and not type(self).timings:
            total = type(self).drafted
            name = "vllm:spec_decode_num_{}_tokens_total"
            self.reply(
                f'{name.format("draft")}{{engine="0"}} {total}.0\n'
                f'{name.format("accepted")}{{engine="0"}} {total // 2}.0\n'
            )
        else:
            self.send_error(404)

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        type(self).asked.append(body | {"key": self.headers.get("Authorization")})
        type(self).drafted += 10
        self.send_response(200)
        self.end_headers()
        for _ in range(5):
            self.event({"choices": [{"delta": {"content": "a"}}]})
            time.sleep(0.01)
        if type(self).broken:
            return
        last: dict[str, Any] = {
            "choices": [],
            "usage": {"completion_tokens": 5, "prompt_tokens": 9},
        }
        if type(self).timings:
            timings = {"predicted_n": 5, "predicted_per_second": 40.0 + body["seed"]}
            last["timings"] = timings | {"draft_n": 8, "draft_n_accepted": 6, "prompt_n": 7}
        self.event(last)
        self.wfile.write(b"data: [DONE]\n\n")

    def event(self, data: dict[str, Any]) -> None:
        self.wfile.write(f"data: {json.dumps(data)}\n\n".encode())

    def reply(self, text: str) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(text.encode())


@pytest.fixture
def server() -> Iterator[tuple[str, type[Handler]]]:
    """Its address, and how it answers."""

    class Answers(Handler):
        asked: ClassVar[list[dict[str, Any]]] = []

    with serving_with(Answers) as address:
        yield f"http://{address}", Answers


def test_a_server_by_its_url_with_timings_of_its_own(
    server: tuple[str, type[Handler]], builder: Builder, monkeypatch: Any
) -> None:
    url, answers = server
    monkeypatch.setenv("OPENAI_API_KEY", "secret-key")
    words = ("bench", url, "--runs", "3", "--warm-ups", "1", "--seed", "5")
    done = builder(*words, "--json")
    assert done.returncode == 0, done.stderr
    assert [body["seed"] for body in answers.asked] == [5, 6, 7, 8]
    first = answers.asked[0]
    assert first["key"] == "Bearer secret-key"
    assert (first["temperature"], first["top_k"], first["min_p"]) == (0.6, 20, 0.0)
    assert (first["max_tokens"], first["model"], first["stream"]) == (2000, "tiny", True)
    assert "Space Invaders" in first["messages"][0]["content"]
    found = parse_results(done.stdout)
    assert [run.tokens_per_second for run in found.points[0].runs] == [46.0, 47.0, 48.0]
    assert found.points[0].runs[0].acceptance == 0.75
    assert found.points[0].runs[0].timed_by == "server"
    assert "secret-key" not in done.stdout + done.stderr
    answers.asked.clear()
    assert "47.00 t/s, by the clock of the server" in builder(*words).stdout


def test_a_server_without_timings_is_timed_by_the_client(
    server: tuple[str, type[Handler]], builder: Builder
) -> None:
    url, answers = server
    answers.timings = False
    done = builder("bench", url, "--runs", "2", "--warm-ups", "0", "--json")
    assert done.returncode == 0, done.stderr
    for run in json.loads(done.stdout)["points"][0]["runs"]:
        assert run["timed_by"] == "client"
        assert run["tokens"] == 5
        assert (run["drafted"], run["accepted"]) == (10, 5)  # by its counters


def test_an_incomplete_answer_is_no_run(
    server: tuple[str, type[Handler]], builder: Builder
) -> None:
    url, answers = server
    answers.broken = True
    done = builder("bench", url, "--runs", "1")
    assert done.returncode == 7
    assert "the answer ended early, after 5 pieces" in done.stderr


def test_a_port_where_nothing_listens_is_named(builder: Builder) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))  # bound, and does not listen
        url = f"http://127.0.0.1:{closed.getsockname()[1]}"
        done = builder("bench", url)
    assert done.returncode == 4
    assert f"{url} does not list its models" in done.stderr
    assert f"nothing listens at {url}: connection refused" in done.stderr
    assert "start the server" in done.stderr


def test_the_directory_of_a_receipt_is_checked_before_the_first_run(
    builder: Builder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DOCKER_HOST", "unix:///nonexistent")
    (tmp_path / "link").symlink_to("nowhere/at/all")
    done = builder("bench", "hello-sm120", "--receipt", tmp_path / "link" / "found.json")
    assert done.returncode == 4, done.stderr
    assert f"cannot write to the directory {tmp_path / 'link'}" in done.stderr
    assert "name another file: --receipt FILE" in done.stderr


def test_a_comparison_of_unlike_machines_is_shown_and_refused(
    builder: Builder, tmp_path: Path
) -> None:
    files = []
    for name, more in (("a", {}), ("b", {"machine": {"gpus": [], "cpu": "a"}})):
        files.append(tmp_path / f"{name}.json")
        files[-1].write_text(json.dumps(benchmark([1.0, 1.1, 1.0], **more).model_dump(mode="json")))
    assert builder("compare", files[0], files[0]).returncode == 0
    done = builder("compare", *files)
    assert done.returncode == 4
    assert "1024\t1.03\t1.03\t1.000" in done.stdout
    assert "DIFFERS: gpus: ['RTX 5090, 32607 MiB'] | none" in done.stdout
    files[1].write_text("{}")
    done = builder("compare", *files)
    assert done.returncode == 4
    assert "b.json is not a saved benchmark" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "code", "shown"),
    [
        (["http://127.0.0.1:1"], 4, "does not list its models"),
        (["hello-sm120"], 2, "an image needs a model to serve"),
        (["hello-sm120", "--model", "MODEL", "--context", "32G"], 2, "not a number of tokens"),
        (["http://127.0.0.1:1", "--model", "MODEL"], 2, "are for a recipe or an image"),
        (["http://127.0.0.1:1", "--receipt", "a.json"], 2, "are for a recipe or an image"),
        (["hello-sm120", "--model", "MODEL", "--by", "me"], 2, "add --receipt FILE"),
        (["http://127.0.0.1:1", "--cpu"], 2, "are for a recipe or an image"),
        (["--model", "no-such.gguf", "hello-sm120"], 2, "file 'no-such.gguf' does not exist"),
    ],
)
def test_an_impossible_benchmark_is_refused(
    builder: Builder,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    code: int,
    shown: str,
) -> None:
    monkeypatch.setenv("DOCKER_HOST", "unix:///nonexistent")  # no engine is needed
    model = tmp_path / "model.gguf"
    model.write_text("{}")
    done = builder("bench", *[str(model) if each == "MODEL" else each for each in arguments])
    assert done.returncode == code, done.stderr
    assert shown in " ".join(done.stderr.replace("│", " ").split())
