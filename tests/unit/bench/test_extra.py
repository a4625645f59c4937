"""Without the libraries of the extra `bench`: what asks for them, and what does without."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

# A module that is None in sys.modules cannot be imported (Python's import reference).
WITHOUT = "import sys; sys.modules |= dict.fromkeys(('scipy', 'matplotlib'));"


def without(code: str, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", WITHOUT + code, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("arguments", "command", "module"),
    [
        (["compare", "FILE", "FILE"], "bench compare", "scipy"),
        (["draw", "FILE", "--plot", "a.svg"], "bench draw", "matplotlib"),
        (["http://127.0.0.1:1", "--plot", "a.svg"], "bench --plot", "matplotlib"),
    ],
)
def test_a_command_asks_for_the_extra_before_it_does_anything(
    arguments: list[str], command: str, module: str, tmp_path: Path
) -> None:
    saved = tmp_path / "a.json"
    saved.write_text("{}")
    given = [saved if each == "FILE" else each for each in arguments]
    done = without("from builder.cli.app import main; main()", "bench", *given)
    assert done.returncode == 4, done.stderr
    assert f"builder {command} needs {module}" in done.stderr
    assert "pip install matplotlib scipy" in done.stderr


def test_the_collapse_test_needs_no_extra() -> None:
    code = "from builder.bench.series import evaluate; print(evaluate([60, 61] * 5).shape)"
    done = without(code)
    assert (done.returncode, done.stdout) == (0, "steady\n"), done.stderr
