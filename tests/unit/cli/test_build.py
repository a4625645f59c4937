"""What `builder build` prints of an image."""

from __future__ import annotations

from dataclasses import replace

import pytest

from builder.build.build import BuildOutcome
from builder.cli.build import _print_outcome
from builder.image.code_paths import CodePaths
from support.bills import of_catalog, record_of
from support.commands import Builder


def test_the_line_of_the_code_names_the_command_with_the_table(
    capsys: pytest.CaptureFixture[str],
) -> None:
    made = record_of(of_catalog("beellama-0.1.1"))
    _print_outcome(BuildOutcome(made, built=True))
    assert "recipe explain" not in capsys.readouterr().out, "an image without device code"
    verdict = replace(made.verdict, code=(CodePaths("/opt/_C.so", native=21_000_000),))
    _print_outcome(BuildOutcome(made.model_copy(update={"verdict": verdict}), built=True))
    (line,) = (each for each in capsys.readouterr().out.splitlines() if each.startswith("code "))
    assert line.split(maxsplit=1)[1] == (
        "21.0 MB runs as it is, 0.0 MB never runs  "
        "(`builder recipe explain beellama-0.1.1` shows each library)"
    )


def test_build_of_a_model_says_what_to_type(builder: Builder) -> None:
    for name, why, hint in (
        ("qwen3.6-27b", "qwen3.6-27b is a model", "`builder run qwen3.6-27b` starts it"),
        ("a@5090", "MODEL@CARD is the name of a preset", "`builder show a@5090` shows its recipe"),
    ):
        done = builder("build", name)
        assert done.returncode == 3
        assert f"no recipe is named {name}\n  {why}\n  -> {hint}" in done.stderr
    assert "no recipe is named qwen3.6-27x" in builder("build", "qwen3.6-27x").stderr
