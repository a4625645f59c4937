"""The options of `builder smoke` that exclude each other."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.commands import Builder


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (("--card", "5090", "--card", "5080"), "give one card"),
        (("--no-gpu", "--model", "model.gguf"), "which --no-gpu leaves out"),
        (("--no-gpu", "--draft", "model.gguf"), "which --no-gpu leaves out"),
    ],
)
def test_options_that_exclude_each_other(
    builder: Builder, tmp_path: Path, options: tuple[str, ...], why: str
) -> None:
    (model := tmp_path / "model.gguf").touch()
    words = [str(model) if each == "model.gguf" else each for each in options]
    done = builder("smoke", "hello-sm120", *words)
    assert done.returncode == 2, done.stderr
    assert why in " ".join(done.stderr.replace("│", " ").split())
