"""The problems of a recipe are reported by file, line and key, all at once.

Each file of ``bad/`` is a recipe with faults; the ``.txt`` beside it is the expected output.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from support.commands import Builder
from support.environment import REPOSITORY

BAD = REPOSITORY / "tests/data/bad"


@pytest.mark.parametrize("name", sorted(file.stem for file in BAD.glob("*.toml")))
def test_a_wrong_recipe(
    name: str, builder: Builder, catalog: Path, request: pytest.FixtureRequest
) -> None:
    shutil.copy(BAD / f"{name}.toml", catalog / "recipes")
    done = builder("build", name, "--catalog", catalog)
    said = done.stderr.replace(f"{catalog}/", "")
    assert done.returncode == 3, done.stderr
    assert done.stdout == ""
    snapshot = BAD / f"{name}.txt"
    if request.config.getoption("--update-golden"):
        snapshot.write_text(said)
    assert said == snapshot.read_text()


def test_no_problem_is_without_file_and_line() -> None:
    for snapshot in BAD.glob("*.txt"):
        for line in snapshot.read_text().splitlines()[1:]:
            assert line.startswith(f"  recipes/{snapshot.stem}.toml:"), line
