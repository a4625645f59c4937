"""`bench` with an image that it serves itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from builder.measure.bench import parse_results
from builder.presets.receipts import read_receipt
from support.commands import Builder


@pytest.mark.docker
def test_an_image_is_measured_for_each_context(
    builder: Builder, hello: dict[str, Any], tmp_path: Path
) -> None:
    model = tmp_path / "model.gguf"
    model.write_bytes(b"any")
    target = hello["references"][0]
    options = ["--context", "512,1K", "--tokens", "50", "--runs", "3", "--fill", "0.5"]
    done = builder(
        *("bench", target, "--cpu", "--model", model, *options, "--json"),
        *("--receipt", tmp_path / "receipt.json", "--by", "@somebody"),
        *("--", "--n-predict", "20"),
    )
    assert done.returncode == 0, done.stderr
    assert "measuring on the CPU\n" in done.stderr
    found = parse_results(done.stdout)
    assert [point.context for point in found.points] == [512, 1024]
    assert [run.timed_by for run in found.points[1].runs] == ["server"] * 3
    assert {run.tokens for run in found.points[0].runs} == {50}
    assert found.subject["digest"] == hello["digest"]
    assert found.subject["key"] == hello["key"]
    assert found.subject["flags"] == ["--n-predict", "20"]
    assert found.model["model"]["size"] == 3
    assert found.machine["gpus"] == []
    receipt = read_receipt(tmp_path / "receipt.json")
    assert (receipt.image.digest, receipt.image.key) == (hello["digest"], hello["key"])
    assert (receipt.device, receipt.by, receipt.measured[1].context) == ("CPU", "@somebody", 1024)
    assert [run.tokens for run in receipt.measured[0].runs] == [50] * 3
    done = builder("receipts", "add", tmp_path / "receipt.json")
    assert done.returncode == 16
    assert done.stderr.splitlines() == [  # and nothing else: its figures agree
        "builder: the receipt is refused",
        "  it was measured without a GPU: receipts are of runs on cards",
    ]
    words = ("bench", target, "--model", model, "--receipt", tmp_path / "b.json")
    done = builder(*words, "--", "--alias", "192.168.1.20")
    assert (done.returncode, (tmp_path / "b.json").exists()) == (16, False), done.stderr
    assert "'192.168.1.20' has an IP address" in done.stderr
    done = builder("bench", target, "--model", model, "--runs", "1", "--", "--no-such-flag")
    assert done.returncode == 7
    assert "does not serve model.gguf" in done.stderr
    assert "ended with exit status 2; its log ends:" in done.stderr


@pytest.mark.docker
def test_a_benchmark_of_an_unknown_image_is_refused(builder: Builder, tmp_path: Path) -> None:
    model = tmp_path / "model.gguf"
    model.write_bytes(b"any")
    done = builder("bench", "no-such-image:1", "--model", model)
    assert done.returncode == 4, done.stderr
    assert "neither a recipe nor an image" in done.stderr
