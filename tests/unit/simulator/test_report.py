from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from builder.errors import UntriedError
from builder.simulator import report

STACK = ["/opt/engine/lib/libllama.so+0x10 _ZN11llama_model12load_tensorsEv"]
ONE: dict[str, Any] = {
    "version": 1,
    "pid": 1,
    "command": ["server"],
    "libraries": ["/simulator/lib/libcudart.so.13"],
    "cards": [{"name": "Card", "memory": 1000, "context": 100, "used": 300, "peak": 400}],
    "stacks": [STACK],
    "allocations": [
        {
            "stack": 0,
            "card": 0,
            "function": "cudaMalloc",
            "count": 2,
            "live": 200,
            "at_peak": 300,
            "largest": 200,
        }
    ],
    "failed": [{"stack": 0, "card": 0, "function": "cudaMalloc", "requested": 900, "free": 600}],
    "launches": [
        {
            "kernel": "_Z5scalePf",
            "file": "/opt/engine/lib/libggml-cuda.so",
            "code": "sm_120a",
            "card": 0,
            "count": 3,
            "grid": [1, 1, 1],
            "block": [128, 1, 1],
            "shared": 0,
        }
    ],
    "violations": [],
    "unsupported": [{"function": "cudaFoo", "count": 1, "stack": 0}],
    "unknown_code": [],
    "called": {"cudaMalloc": 3},
    "implemented": ["cudaMalloc"],
    "copies": {"to_device": {"count": 1, "bytes": 8, "kept": 8}},
}


def written(folder: Path, **reports: dict[str, Any]) -> Path:
    for name, found in reports.items():
        (folder / f"{name}.json").write_text(json.dumps(found))
    return folder


def test_the_processes_of_a_container_are_one_report(tmp_path: Path) -> None:
    other = {**ONE, "pid": 7, "stacks": [["/opt/engine/lib/libggml-cuda.so+0x20"]]}
    found = report.read(written(tmp_path, one=ONE, other=other))
    assert found is not None
    assert [(card.name, card.used, card.peak) for card in found.cards] == [("Card", 600, 800)]
    places = [found.stacks[each.stack][0] for each in found.allocations]
    assert places == [STACK[0], "/opt/engine/lib/libggml-cuda.so+0x20"]
    assert [each.stack for each in (*found.failed, *found.unsupported)] == [0, 1, 0, 1]
    assert (found.live, found.peak, found.launched) == (400, 800, 6)
    assert found.kernels == {"_Z5scalePf"}
    assert found.called == {"cudaMalloc": 6}
    assert found.copies.to_device == report.Copies(count=2, bytes=16, kept=16)
    assert found.implemented == ("cudaMalloc",)


def process(began: int, ended: int, peak: int) -> dict[str, Any]:
    [card], [allocation] = ONE["cards"], ONE["allocations"]
    return {
        **ONE,
        "began": began,
        "ended": ended,
        "cards": [{**card, "used": peak, "peak": peak}],
        "allocations": [{**allocation, "at_peak": peak - 100}],
    }


def test_peaks_are_added_of_processes_that_ran_at_one_time(tmp_path: Path) -> None:
    found = report.read(
        written(
            tmp_path,
            a=process(began=10, ended=20, peak=700),
            b=process(began=30, ended=60, peak=400),
            c=process(began=40, ended=0, peak=500),  # killed, or still running
            d=process(began=60, ended=70, peak=300),  # b has ended
        )
    )
    assert found is not None
    assert (found.peak, found.processes) == (900, 2)
    assert (found.cards[0].context, found.cards[0].used) == (200, 1900)
    assert sum(each.at_peak for each in found.allocations) == 300 + 400


def test_a_process_that_only_asks_for_the_card_takes_no_memory(tmp_path: Path) -> None:
    asking = process(began=10, ended=0, peak=100)
    asking["cards"] = [{**ONE["cards"][0], "used": 0, "peak": 0}]
    found = report.read(written(tmp_path, asking=asking, one=process(20, 30, 400)))
    assert found is not None
    assert (found.peak, found.cards[0].context, found.processes) == (400, 100, 1)


def test_a_process_that_calls_nothing_has_no_report(tmp_path: Path) -> None:
    assert report.read(tmp_path) is None
    assert report.read(written(tmp_path, idle={**ONE, "called": {}})) is None


def test_another_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "9.json").write_text("{")
    with pytest.raises(UntriedError, match=r"9\.json is not a report of the simulator"):
        report.read(tmp_path)
