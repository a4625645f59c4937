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
    found = launches(report)
    assert found.counts == {("liba.so", "_Z1av"): 7, ("libb.so", "_Z1av"): 5}
    assert [found.of(name, "_Z1av") for name in ("liba.so", "libb.so", "libc.so")] == [7, 5, 0]
    assert found.besides({("liba.so", "_Z1av")}) == [("libb.so", "_Z1av")]


def test_a_verdict_names_no_libraries(tmp_path: Path) -> None:
    file = tmp_path / "verdict.json"
    device = {"card": "NVIDIA GeForce RTX 5090", "launches": {"_Z1av": 3, "_Z1bv": 4}}
    file.write_text(json.dumps({"reference": "x:1", "verdict": {"checks": [], "device": device}}))
    found = launches(file)
    assert (found.of("liba.so", "_Z1av"), found.of("libb.so", "_Z1av")) == (3, 3)
    assert found.besides({("liba.so", "_Z1av")}) == [("", "_Z1bv")]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "Invalid JSON"),
        ("[]", "object"),
        ("{}", "neither launches nor a verdict"),
        ('{"launches": [{"kernel": "a", "file": "b"}]}', "launches.0.count: Field required"),
        ('{"verdict": {"device": null}}', "verdict.device: Input should be"),
        ('{"verdict": {"checks": []}}', "verdict.device: Field required"),
    ],
)
def test_what_has_no_launches(tmp_path: Path, text: str, why: str) -> None:
    report = tmp_path / "report.json"
    report.write_text(text)
    with pytest.raises(WorldError, match="has no launches of a simulated card") as raised:
        launches(report)
    assert why in raised.value.why


def test_a_report_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(WorldError, match="cannot read") as raised:
        launches(tmp_path / "gone.json")
    assert "builder smoke RECIPE --json" in raised.value.hint
