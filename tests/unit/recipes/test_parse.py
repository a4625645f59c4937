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
    for line in said.splitlines()[1:]:
        assert line.startswith(f"  recipes/{name}.toml:"), line
    snapshot = BAD / f"{name}.txt"
    if request.config.getoption("--update-golden"):
        snapshot.write_text(said)
    command = "pytest tests/unit/recipes/test_parse.py --update-golden"
    assert snapshot.exists(), f"tests/data/bad/{name}.txt is missing: `{command}` writes it"
    assert said == snapshot.read_text(), f"`{command}` writes it; git diff shows the change"
