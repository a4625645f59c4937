"""Benchmarks of servers on loopback: what is asked, what is timed, compared and drawn."""

from __future__ import annotations

import json
import math
import random
import struct
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar
from xml.etree import ElementTree

import pytest

from builder.bench import plot
from builder.bench.comparison import compare, ratio_interval
from builder.bench.measuring import filling, timed
from builder.bench.results import Benchmark, Generation, Point, from_json
from builder.bench.run import contexts_of
from builder.bench.series import evaluate
from builder.servers.client import Event, Stream, UnansweredError
from support.commands import Builder


class Handler(BaseHTTPRequestHandler):
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

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[tuple[str, type[Handler]]]:
    """Its address, and how it answers."""

    class Answers(Handler):
        asked: ClassVar[list[dict[str, Any]]] = []

    with ThreadingHTTPServer(("127.0.0.1", 0), Answers) as listening:
        thread = threading.Thread(target=listening.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{listening.server_port}", Answers
        listening.shutdown()
        thread.join()


def test_a_server_by_its_url_with_timings_of_its_own(
    server: tuple[str, type[Handler]], builder: Builder, tmp_path: Path, monkeypatch: Any
) -> None:
    url, answers = server
    monkeypatch.setenv("OPENAI_API_KEY", "secret-key")
    save = tmp_path / "a" / "found.json"
    done = builder(
        "bench", url, "--runs", "3", "--warm-ups", "1", "--seed", "5", "--output-file", save
    )
    assert done.returncode == 0, done.stderr
    assert [body["seed"] for body in answers.asked] == [5, 6, 7, 8]
    first = answers.asked[0]
    assert first["key"] == "Bearer secret-key"
    assert (first["temperature"], first["top_k"], first["min_p"]) == (0.6, 20, 0.0)
    assert (first["max_tokens"], first["model"], first["stream"]) == (2000, "tiny", True)
    assert "Space Invaders" in first["messages"][0]["content"]
    found = from_json(json.loads(save.read_text()))
    assert [run.tokens_per_second for run in found.points[0].runs] == [46.0, 47.0, 48.0]
    assert found.points[0].runs[0].acceptance == 0.75
    assert found.points[0].runs[0].timed_by == "server"
    assert "47.00 t/s, by the clock of the server" in done.stdout
    assert "secret-key" not in done.stdout + done.stderr + save.read_text()


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


def test_the_client_times_from_the_first_piece_to_the_last() -> None:
    pieces = [Event({"choices": [{"delta": {"content": "a"}}]}, 2.0 + n / 2) for n in range(5)]
    shown = timed(Stream((Event({"choices": []}, 0.1), *pieces), 9.0, True), seed=3)
    assert (shown.tokens, shown.tokens_per_second, shown.timed_by) == (5, 2.0, "client")
    thought = Event({"choices": [{"delta": {"reasoning_content": "b"}}]}, 1.0)
    usage = Event({"choices": [], "usage": {"completion_tokens": 7, "prompt_tokens": 2}}, 5.0)
    shown = timed(Stream((thought, *pieces, usage), 9.0, True), seed=3)
    assert (shown.tokens, shown.tokens_per_second, shown.prompt_tokens) == (7, 2.0, 2)
    alone = timed(Stream((pieces[0],), 4.0, True), seed=3)
    assert alone.tokens_per_second == 0.25
    with pytest.raises(UnansweredError, match="no tokens"):
        timed(Stream((), 1.0, True), seed=3)


def test_an_incomplete_answer_is_no_run(
    server: tuple[str, type[Handler]], builder: Builder
) -> None:
    url, answers = server
    answers.broken = True
    done = builder("bench", url, "--runs", "1")
    assert done.returncode == 7
    assert "the answer ended early, after 5 pieces" in done.stderr


@pytest.mark.docker
def test_an_image_is_measured_for_each_context(
    builder: Builder, hello: dict[str, Any], tmp_path: Path
) -> None:
    model = tmp_path / "model.gguf"
    model.write_bytes(b"any")
    target = hello["references"][0]
    options = ["--context", "512,1K", "--tokens", "50", "--runs", "3", "--fill", "0.5"]
    done = builder(
        *("bench", target, "--model", model, *options, "--plot", tmp_path / "a.svg", "--json"),
        *("--", "--n-predict", "20"),
    )
    assert done.returncode == 0, done.stderr
    found = from_json(json.loads(done.stdout))
    assert [point.context for point in found.points] == [512, 1024]
    assert [run.timed_by for run in found.points[1].runs] == ["server"] * 3
    assert {run.tokens for run in found.points[0].runs} == {50}
    assert found.subject["digest"] == hello["digest"]
    assert found.subject["key"] == hello["key"]
    assert found.subject["flags"] == ["--n-predict", "20"]
    assert found.model["model"]["size"] == 3
    assert found.machine["gpus"] == []
    assert (tmp_path / "a.svg").exists()
    done = builder("bench", target, "--model", model, "--runs", "1", "--", "--no-such-flag")
    assert done.returncode == 7
    assert "does not serve model.gguf" in done.stderr
    assert "ended with exit status 2; its log ends:" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "code", "shown"),
    [
        (["http://127.0.0.1:1"], 4, "does not list its models"),
        (["no-such-image:1", "--model", "MODEL"], 4, "neither a recipe nor an image"),
        (["hello-sm120"], 2, "an image needs a model to serve"),
        (["hello-sm120", "--model", "MODEL", "--context", "32M"], 2, "not a number of tokens"),
        (["http://127.0.0.1:1", "--model", "MODEL"], 2, "the server at a URL has its own"),
        (["compare", "MODEL", "MODEL"], 4, "is not a saved benchmark"),
        (["draw", "MODEL"], 2, "give a file to draw to"),
    ],
)
@pytest.mark.docker
def test_an_impossible_benchmark_is_refused(
    builder: Builder, tmp_path: Path, arguments: list[str], code: int, shown: str
) -> None:
    model = tmp_path / "model.gguf"
    model.write_text("{}")
    done = builder("bench", *[str(model) if each == "MODEL" else each for each in arguments])
    assert done.returncode == code, done.stderr
    assert shown in " ".join(done.stderr.replace("│", " ").split())


def test_sizes_of_contexts() -> None:
    assert contexts_of("32K, 64k,1000") == (32768, 65536, 1000)
    for wrong in ("", "0", "-1", "32M", "1.5K", "32K,,64K"):
        with pytest.raises(ValueError, match="not a number of tokens"):
            contexts_of(wrong)


@pytest.mark.parametrize("tokens", [0, 10, 5000])
def test_a_context_is_filled_with_text_that_differs(tokens: int) -> None:
    text = filling(tokens)
    assert abs(len(text) - tokens * 4) <= 2
    lines = [line for line in text.splitlines() if line]
    assert len(set(lines)) == len(lines)


GPU = {"name": "RTX 5090", "capability": "12.0", "driver": "580.1", "memory": 32607}


def benchmark(speeds: list[float], context: int | None = 1024, **more: Any) -> Benchmark:
    runs = tuple(
        Generation(100, speed, 10, 1.0, seed, drafted=10, accepted=7)
        for seed, speed in enumerate(speeds)
    )
    given: dict[str, Any] = {
        "subject": {"image": "a:1", "flags": []},
        "model": {"model": {"name": "m.gguf", "size": 1, "sha256": "0" * 64}},
        "machine": {
            "gpus": [
                {"name": "RTX 5090", "capability": "12.0", "driver": "580.1", "memory": 32607}
            ],
            "cpu": "a",
        },
        "settings": {"prompt": "p", "tokens": 100, "seed": 1},
        "points": (Point(context, (), runs),),
        "created": "2026-01-01T00:00:00+00:00",
        "builder": "0.1.0",
    }
    return Benchmark(**(given | more))


def test_a_benchmark_is_kept_and_read_again() -> None:
    found = benchmark([1.0, 2.0])
    assert from_json(json.loads(json.dumps(found.as_json()))) == found
    for wrong in ({}, [], {"format": 2}, found.as_json() | {"other": 1}):
        with pytest.raises(ValueError, match=r"no benchmark|format"):
            from_json(wrong)


def test_only_a_significant_difference_is_shown() -> None:
    base = [50.0, 51.0, 49.5, 50.5, 50.2]
    clear = compare(benchmark(base), benchmark([each * 1.2 for each in base]))
    (row,) = clear.rows
    assert row.verdict == "faster"
    assert row.ratio == pytest.approx(1.2)
    assert row.interval is not None
    assert row.interval[0] < 1.2 < row.interval[1]
    assert row.p_value is not None
    assert row.p_value < 0.001
    assert row.acceptance == (0.7, 0.7)
    noisy = compare(benchmark([50, 70, 40, 60]), benchmark([52, 75, 41, 66])).rows[0]
    assert noisy.verdict == "no difference shown"
    slower = compare(benchmark(base), benchmark([each / 2 for each in base])).rows[0]
    assert slower.verdict == "slower"
    alone = compare(benchmark([50.0]), benchmark([60.0])).rows[0]
    assert (alone.interval, alone.p_value, alone.verdict) == (None, None, "no difference shown")
    equal = compare(benchmark([50.0, 50.0]), benchmark([50.0, 50.0])).rows[0]
    assert (equal.interval, equal.p_value) == ((1.0, 1.0), 1.0)


def test_the_interval_holds_the_truth_as_often_as_it_says() -> None:
    source = random.Random(7)
    held = 0
    for _ in range(1000):
        first = [source.gauss(50, 2) for _ in range(10)]
        second = [source.gauss(60, 4) for _ in range(10)]
        found = ratio_interval(first, second)
        assert found is not None
        held += found[0] <= 1.2 <= found[1]
    assert 0.93 < held / 1000 < 0.97


@pytest.mark.parametrize(
    ("more", "what", "same"),
    [
        ({"settings": {"prompt": "q", "tokens": 100, "seed": 1}}, "prompt", False),
        ({"settings": {"prompt": "p", "tokens": 100, "seed": 2}}, "seed", True),
        ({"machine": {"gpus": [], "cpu": "a"}}, "gpus", False),
        ({"model": {"model": {"name": "other.gguf", "sha256": "1" * 64}}}, "files", False),
        ({"subject": {"image": "b:1", "flags": ["--mlock"]}}, "flags", True),
    ],
)
def test_other_differences_are_listed(more: dict[str, Any], what: str, same: bool) -> None:
    found = compare(benchmark([1.0, 2.0]), benchmark([1.0, 2.0], **more))
    assert what in [difference.what for difference in found.differences]
    assert found.same is same


def test_a_newer_driver_is_worth_knowing_and_no_other_hardware() -> None:
    first = benchmark([1.0, 2.0])
    gpu = {**first.machine["gpus"][0], "driver": "590.1"}
    found = compare(first, replace(first, machine={**first.machine, "gpus": [gpu]}))
    assert [(each.what, each.decisive) for each in found.differences] == [("driver", False)]


def test_benchmarks_without_a_common_context() -> None:
    with pytest.raises(ValueError, match="no context size in common"):
        compare(benchmark([1.0]), benchmark([1.0], context=None))


def test_a_comparison_of_unlike_machines_is_shown_and_refused(
    builder: Builder, tmp_path: Path
) -> None:
    files = []
    for name, more in (("a", {}), ("b", {"machine": {"gpus": [], "cpu": "a"}})):
        files.append(tmp_path / f"{name}.json")
        files[-1].write_text(json.dumps(benchmark([1.0, 1.1, 1.0], **more).as_json()))
    assert builder("bench", "compare", files[0], files[0]).returncode == 0
    done = builder("bench", "compare", *files)
    assert done.returncode == 4
    assert "1024\t1.03\t1.03\t1.000" in done.stdout
    assert "DIFFERS: gpus: ['RTX 5090, 32607 MiB'] | none" in done.stdout


def test_a_picture_of_each_kind(tmp_path: Path) -> None:
    sweep = replace(
        benchmark([50.0, 51.0]),
        points=(*benchmark([50.0, 51.0]).points, *benchmark([40.0, 42.0], context=2048).points),
    )
    files = [tmp_path / "a.png", tmp_path / "deep" / "a.svg"]
    plot.draw([("bee", sweep), ("buun", benchmark([45.0, 46.0]))], files)
    png = files[0].read_bytes()
    assert png.startswith(b"\x89PNG\r\n\x1a\n")
    width, height = struct.unpack(">II", png[16:24])
    assert (width, height) == (1080, math.floor(120 * 5 * 2.1))
    texts = [node.text for node in ElementTree.parse(files[1]).iter() if node.text]
    for label in ("tokens per second", "run", "bee, 1K", "bee, 2K", "buun"):
        assert label in texts, texts
    again = [tmp_path / "b.png", tmp_path / "b.svg"]
    plot.draw([("bee", sweep), ("buun", benchmark([45.0, 46.0]))], again)
    assert [file.read_bytes() for file in again] == [file.read_bytes() for file in files]


def test_other_charts_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"a\.pdf: a chart is"):
        plot.draw([("a", benchmark([1.0]))], [tmp_path / "a.pdf"])
    with pytest.raises(ValueError, match="no runs to draw"):
        plot.draw([("a", benchmark([]))], [tmp_path / "a.png"])


def test_speeds_that_were_kept_are_evaluated_like_any_other() -> None:
    found = benchmark([53, 55, 11])
    assert not evaluate([run.tokens_per_second for run in found.points[0].runs]).passed
