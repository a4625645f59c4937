"""Records of images: strict models of JSON files."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from builder.build import record
from builder.build.record import Record
from builder.checks.verdict import Check, DeviceUse, Verdict

KEY = "0123456789ab" + "c" * 52
DIGEST = "sha256:" + "d" * 64
UNTRIED = {"subject": "x", "expected": "y", "found": "z", "state": "untried", "seconds": 0.0}
OLD = {"kind": "runs", "subject": "x", "expected": "0", "found": "0", "passed": True}
"""A check as format 2 had it."""
RECORD: dict[str, Any] = {
    "format": 3,
    "recipe": "x-1",
    "key": KEY,
    "contract": "c" * 64,
    "references": ["me/x:1-0123456789ab", "me/x:1"],
    "digest": DIGEST,
    "verdict": {
        "digest": DIGEST,
        "checks": [
            {
                "kind": "runs",
                "subject": "x --version",
                "expected": "exit status 0",
                "found": "0",
                "state": "passed",
                "seconds": 1,
            },
            {"kind": "gpu", **UNTRIED},
        ],
        "download_size": 10,
        "unpacked_size": 20,
        "kernels": None,
        "device": None,
        "presets": {
            "m@5090": {
                "identity": "1" * 64,
                "context": 4096,
                "card": "NVIDIA GeForce RTX 5090",
                "cards": 1,
                "memory": 4000,
                "peak": 3000,
                "own": 100,
                "by_kind": {"weights": 2000},
                "smaller": {"context": 1024, "peak": 2500, "by_kind": {"weights": 2000}},
                "paths": [{"work": "attention", "path": "vec", "launches": 4, "compiled": False}],
                "filled": 4032,
            },
        },
        "code": [
            {"path": "/x.so", "native": 20, "compiled": 10, "dead": 5, "card": "12.0", "removed": 1}
        ],
        "errors": {"ROPE(type=f32)": 2e-07},
    },
    "created": "2026-11-20T03:10:00+00:00",
    "seconds": {"plan": 1, "smoke": 2.5},
    "base": {"builder-base/b:runtime-0": "sha256:" + "e" * 64},
    "log": "/x/build.log",
    "commit": "a" * 40,
}
"""A file that ``record.write`` wrote."""


def stored(state: Path, data: Any) -> Path:
    file = record.path_of(state, "x-1", KEY)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(data))
    return file


def test_a_record_is_read_and_written_again(tmp_path: Path) -> None:
    stored(tmp_path, RECORD)
    found = record.read(tmp_path, "x-1", KEY)
    assert found is not None
    assert found.references == ("me/x:1-0123456789ab", "me/x:1")
    assert found.seconds == {"plan": 1.0, "smoke": 2.5}
    assert [check.state for check in found.verdict.checks] == ["passed", "untried"]
    assert [check.subject for check in found.verdict.checks] == ["x --version", "x"]
    file = record.write(tmp_path, found)
    written = {"seconds": {"plan": 1.0, "smoke": 2.5}, "way": "", "platform": "linux/amd64"}
    written |= {"built_here": False, "objects": 0, "reused": 0}
    assert json.loads(file.read_text()) == RECORD | written
    assert record.read(tmp_path, "x-1", KEY) == found


DEVICE = DeviceUse(
    card="NVIDIA GeForce RTX 5090",
    memory=32120 << 20,
    peak=12 << 20,
    context=10 << 20,
    by_kind={"weights": 1 << 20, "KV cache": 1 << 20},
    launches={"_Z5scalePf": 3, "_Z4meanPf": 4},
    code={"sm_120a": 7},
    called={"cudaMalloc": 2},
    implemented=200,
)


def test_the_figures_of_a_card_are_kept_with_the_newest_good_record(tmp_path: Path) -> None:
    assert record.newest_good(tmp_path, "x-1") is None
    stored(tmp_path, RECORD)
    untried = record.read(tmp_path, "x-1", KEY)
    assert untried is not None
    assert record.newest_good(tmp_path, "x-1") is None
    good = replace(untried.verdict, checks=untried.verdict.checks[:1], device=DEVICE)
    for key, created, verdict in (
        ("1", "2026-11-21T00:00:00+00:00", good),
        ("2", "2026-11-20T00:00:00+00:00", replace(good, device=None)),
        ("3", "2026-11-22T00:00:00+00:00", untried.verdict),
    ):
        changed = {"key": key * 64, "created": created, "verdict": verdict}
        record.write(tmp_path, untried.model_copy(update=changed))
    other = {"key": "4" * 64, "created": "2026-11-23T00:00:00+00:00", "platform": "linux/arm64"}
    later = untried.model_copy(update={**other, "verdict": replace(good, device=None)})
    record.write(tmp_path, later)
    (tmp_path / "records" / "x-1" / "damaged.json").write_text("{")
    found = record.newest_good(tmp_path, "x-1")
    assert found is not None
    assert found.verdict.device == DEVICE
    assert record.newest_good(tmp_path, "x-1", platform="linux/amd64") == found
    assert record.newest_good(tmp_path, "x-1", platform="linux/arm64") == later
    assert DEVICE.text == (
        "7 launches of 2 kernels (sm_120a); peak 12 MiB of 32120 MiB: weights 1.0 MiB, "
        "KV cache 1.0 MiB, context 10 MiB; simulated NVIDIA GeForce RTX 5090"
    )


@pytest.mark.parametrize(
    "change",
    [
        {"format": 2},
        {"unknown": 1},
        {"references": "me/x:1"},
        {"digest": 1},
        {"seconds": {"plan": "1.0"}},
        {"verdict": {**RECORD["verdict"], "download_size": "10"}},
        {"verdict": {**RECORD["verdict"], "checks": [{"kind": "runs"}]}},
        {"verdict": {**RECORD["verdict"], "checks": [{"proof": "gpu", **UNTRIED}]}},
        {"verdict": {**RECORD["verdict"], "checks": [OLD]}},
        {"verdict": None},
    ],
)
def test_another_shape_is_no_record(tmp_path: Path, change: dict[str, Any]) -> None:
    stored(tmp_path, RECORD | change)
    assert record.read(tmp_path, "x-1", KEY) is None


def keep(state: Path, recipe: str, key: str, way_name: str, created: str, seconds: float) -> None:
    verdict = Verdict(DIGEST, (Check.of("runs", "x", "0", "0", passed=True),), 0, 0)
    found = Record(
        recipe=recipe,
        key=key,
        contract="",
        references=(),
        digest=DIGEST,
        verdict=verdict,
        created=created,
        seconds={f"build {recipe}": seconds},
        way=way_name,
    )
    record.write(state, found)


def test_the_least_error_of_a_case_is_of_the_newest_good_image_of_a_recipe(tmp_path: Path) -> None:
    def kept(
        recipe: str, key: str, day: int, errors: dict[str, float], *, good: bool = True
    ) -> None:
        checks = (Check.of("runs", "x", "0", "0", passed=good),)
        found = Record.model_validate(
            RECORD
            | {"recipe": recipe, "key": key * 64, "created": f"2026-11-{day}T00:00:00+00:00"}
            | {"references": (f"{recipe}-{key}",)}
            | {"verdict": Verdict(DIGEST, checks, 0, 0, errors=errors)}
        )
        record.write(tmp_path, found)

    kept("a", "1", 10, {"ROPE()": 1e-9, "ADD()": 0.0})
    kept("a", "2", 11, {"ROPE()": 2e-7, "MUL()": 1e-8})
    kept("a", "3", 12, {"ROPE()": 1e-12}, good=False)
    kept("b", "4", 9, {"ROPE()": 3e-7, "ADD()": 1e-12})
    least = {"ROPE()": (2e-7, "a-2"), "MUL()": (1e-8, "a-2"), "ADD()": (1e-12, "b-4")}
    assert record.least_errors(tmp_path) == least
    assert record.read(tmp_path, "b", "4" * 64).verdict.errors["ADD()"] == 1e-12


def test_the_last_time_is_that_of_the_same_way(tmp_path: Path) -> None:
    assert record.last_time(tmp_path, "native") == ""
    keep(tmp_path, "a-1", "1" * 64, "native", "2026-11-20T00:00:00+00:00", 5.0)
    keep(tmp_path, "a-1", "2" * 64, "cross", "2026-11-21T00:00:00+00:00", 90.0)
    keep(tmp_path, "b-1", "3" * 64, "native", "2026-11-22T00:00:00+00:00", 7.0)
    assert record.last_time(tmp_path, "native", "a-1") == "a-1: 5.0 s"
    assert record.last_time(tmp_path, "cross", "a-1") == "a-1: 1 min 30 s"
    assert record.last_time(tmp_path, "native") == "b-1: 7.0 s"
