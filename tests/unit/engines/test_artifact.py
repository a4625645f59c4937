"""Artifacts: what a recipe may set, and their build type."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from support.catalogs import rendered
from support.family_recipes import (
    CALL,
    GIT,
    RUNS,
    START,
    problems,
)


@pytest.mark.parametrize(
    ("parts", "image", "message"),
    [
        ((GIT, CALL, '[artifact]\nfiles = ["a.so"]\n'), "", ""),
        ((GIT, CALL), "", "needs an [artifact] table"),
        ((GIT, CALL, '[artifact]\nfiles = ["a/x.so", "b/x.so"]\n'), "", "two files would be /x.so"),
        (
            ('[source]\ninstalled = "vllm"\n', CALL, '[artifact]\nfiles = ["a.so"]\n'),
            "",
            "cannot use a package of the base as source",
        ),
        ((GIT, CALL, CALL, '[artifact]\nfiles = ["a.so"]\n'), "", "exactly one [[cmake]]"),
        ((GIT, CALL, '[artifact]\nfiles = ["a.so"]\n'), RUNS, "an artifact runs nothing"),
        ((GIT, CALL, '[artifact]\nfiles = ["../a.so"]\n'), "", "stays inside its tree"),
        ((GIT, CALL, START, '[artifact]\nfiles = ["a.so"]\n'), "", "no use for [[start]]"),
        (
            (GIT, CALL, '[artifact]\nfiles = ["a"]\nloads = false\nundefined = { f = "x" }\n'),
            "",
            "undefined has no use where loads = false",
        ),
    ],
)
def test_an_artifact(catalog: Path, parts: tuple[str, ...], image: str, message: str) -> None:
    found = problems(catalog, "artifact", *parts, image=image)
    assert message in found if message else not found


def test_a_recipe_says_how_its_artifact_is_optimised(catalog: Path) -> None:
    define = 'define = { CMAKE_BUILD_TYPE = "Debug" }\n'
    parts = (GIT, CALL + define, '[artifact]\nfiles = ["a.so"]\n')
    assert problems(catalog, "artifact", *parts) == ""
    (line,) = [x for x in rendered(catalog, "x-1").text.splitlines() if '"/src/.' in x]
    assert re.findall(r"CMAKE_BUILD_TYPE=\w+", line) == ["CMAKE_BUILD_TYPE=Debug"]
