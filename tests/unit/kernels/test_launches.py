"""The launches of a report of a simulated card."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from builder.errors import WorldError
from builder.kernels.launches import launches


def launch(kernel: str, file: str, count: int, **more: Any) -> dict[str, Any]:
    return {"kernel": kernel, "file": file, "count": count, "code": "sm_120a", "card": 0, **more}


def test_launches_are_added_up(tmp_path: Path) -> None:
    report = tmp_path / "1.json"
    found = [
        launch("_Z1av", "/opt/lib/liba.so", 3, card=0),
        launch("_Z1av", "/opt/lib/liba.so.1", 4, card=1),
        launch("_Z1av", "/opt/lib/libb.so", 5),
    ]
    report.write_text(json.dumps({"version": 1, "launches": found, "cards": []}))
    assert launches(report) == {("liba.so", "_Z1av"): 7, ("libb.so", "_Z1av"): 5}


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "Invalid JSON"),
        ("[]", "object"),
        ("{}", "launches: Field required"),
        ('{"launches": [{"kernel": "a", "file": "b"}]}', "launches.0.count: Field required"),
    ],
)
def test_what_is_no_report(tmp_path: Path, text: str, why: str) -> None:
    report = tmp_path / "report.json"
    report.write_text(text)
    with pytest.raises(WorldError, match="is no report of a simulated card") as raised:
        launches(report)
    assert why in raised.value.why


def test_a_report_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(WorldError, match="cannot read"):
        launches(tmp_path / "gone.json")
