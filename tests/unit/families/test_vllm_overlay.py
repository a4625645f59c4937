"""Overlays: what a recipe may set, and commands at start as data."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from support.catalogs import rendered
from support.family_recipes import (
    ADDED,
    CALL,
    FILE,
    GIT,
    HEAD,
    LOCKED,
    OVERLAY,
    RUNS,
    START,
    WHEEL,
    problems,
)


@pytest.mark.parametrize(
    ("parts", "image", "message"),
    [
        ((WHEEL,), "", ""),
        ((GIT, OVERLAY, START), "", ""),
        ((GIT,), "", "needs [overlay]: package and version"),
        (('[source]\ninstalled = "vllm"\n', OVERLAY), "", ""),
        (
            ('[source]\ninstalled = "vllm"\n', OVERLAY, FILE),
            "",
            "cannot be checked against the base",
        ),
        (('[source]\ninstalled = "torch"\n', OVERLAY), "", "is not the package vllm"),
        ((WHEEL, CALL), "", "the family vllm-overlay has no use for [[cmake]]"),
        ((WHEEL, LOCKED), "", "the family vllm-overlay has no use for [python]"),
        ((WHEEL, '[debian]\nruntime = ["jq"]\n'), "", "installs no Debian packages"),
        ((WHEEL, START), RUNS, "cannot be set with [[start]]"),
        ((WHEEL, ADDED), "", ""),
    ],
)
def test_an_overlay(catalog: Path, parts: tuple[str, ...], image: str, message: str) -> None:
    found = problems(catalog, "vllm-overlay", *parts, image=image)
    assert message in found if message else not found


def test_what_runs_at_start_is_data(catalog: Path) -> None:
    text = HEAD.format(family="vllm-overlay", image="", vmm="true") + WHEEL
    hostile = '"; touch /x; $(touch /y) \\\\ ]'
    text += f"[[start]]\nrun = ['x', '{hostile}']\nwhy = 'x'\n"
    (catalog / "recipes" / "x-1.toml").write_text(text)
    found = rendered(catalog, "x-1")
    (line,) = [line for line in found.text.splitlines() if '"--start"' in line]
    command = json.loads(line[line.index("[") :])
    (step,) = json.loads(command[command.index("--start") + 1])
    assert step["run"] == ["x", hostile]
