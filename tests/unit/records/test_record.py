"""Records of images: strict models of JSON files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from builder.records import record

KEY = "0123456789ab" + "c" * 52
UNTRIED = {"subject": "x", "expected": "y", "found": "z", "passed": None, "seconds": 0.0}
RECORD: dict[str, Any] = {
    "format": 2,
    "recipe": "x-1",
    "key": KEY,
    "contract": "c" * 64,
    "references": ["me/x:1-0123456789ab", "me/x:1"],
    "digest": "sha256:" + "d" * 64,
    "verdict": {
        "digest": "sha256:" + "d" * 64,
        "checks": [
            {
                "kind": "runs",
                "subject": "x --version",
                "expected": "exit status 0",
                "found": "0",
                "passed": True,
                "seconds": 1,
            },
            {"kind": "gpu", **UNTRIED},
        ],
        "download_size": 10,
        "unpacked_size": 20,
    },
    "created": "2026-11-20T03:10:00+00:00",
    "seconds": {"plan": 1, "smoke": 2.5},
    "base": {"builder-base/b:runtime-0": "sha256:" + "e" * 64},
    "log": "/x/build.log",
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
    assert [check.passed for check in found.verdict.checks] == [True, None]
    assert [check.subject for check in found.verdict.checks] == ["x --version", "x"]
    file = record.write(tmp_path, found)
    assert json.loads(file.read_text()) == RECORD | {"seconds": {"plan": 1.0, "smoke": 2.5}}
    assert record.read(tmp_path, "x-1", KEY) == found


def test_a_record_of_a_pulled_image_has_its_own_file(tmp_path: Path) -> None:
    stored(tmp_path, RECORD)
    found = record.read(tmp_path, "x-1", KEY)
    assert found is not None
    record.write(tmp_path, found.model_copy(update={"log": "other"}), apart=True)
    assert record.read(tmp_path, "x-1", KEY) == found
    pulled = record.read(tmp_path, "x-1", KEY, found.digest)
    assert pulled is not None
    assert pulled.log == "other"


@pytest.mark.parametrize(
    "change",
    [
        {"format": 3},
        {"unknown": 1},
        {"references": "me/x:1"},
        {"digest": 1},
        {"seconds": {"plan": "1.0"}},
        {"verdict": {**RECORD["verdict"], "download_size": "10"}},
        {"verdict": {**RECORD["verdict"], "checks": [{"kind": "runs"}]}},
        {"verdict": {**RECORD["verdict"], "checks": [{"proof": "gpu", **UNTRIED}]}},
        {"verdict": None},
    ],
)
def test_another_shape_is_no_record(tmp_path: Path, change: dict[str, Any]) -> None:
    stored(tmp_path, RECORD | change)
    assert record.read(tmp_path, "x-1", KEY) is None
