"""Overlays: what a recipe may set, and commands at start as data."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from builder.engines.family import PackagePaths
from builder.engines.overlay import Overlay
from builder.recipes.catalog import parse
from builder.recipes.probes import Serve
from builder.recipes.schema import Recipe
from support.catalogs import AMD64, rendered
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
        (('[source]\ninstalled = "torch"\n', OVERLAY), "", "vllm-overlay patches the package vllm"),
        ((GIT, OVERLAY.replace("vllm", "sglang")), "", "vllm-overlay patches the package vllm"),
        ((WHEEL.replace("vllm", "sglang"),), "", "vllm-overlay patches the package vllm"),
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
    text = HEAD.format(family="vllm-overlay", image="", vmm="true", cuda="120") + WHEEL
    hostile = '"; touch /x; $(touch /y) \\\\ ]'
    text += f"[[start]]\nrun = ['x', '{hostile}']\nwhy = 'x'\n"
    (catalog / "recipes" / "x-1.toml").write_text(text)
    found = rendered(catalog, "x-1")
    (line,) = [line for line in found.text.splitlines() if '"--start"' in line]
    command = json.loads(line[line.index("[") :])
    (step,) = json.loads(command[command.index("--start") + 1])
    assert step["run"] == ["x", hostile]


def test_another_engine_is_a_subclass(catalog: Path) -> None:
    class Other(Overlay):
        name = "other-overlay"
        package_paths = PackagePaths("other", compiled=(), needs=(), elsewhere=())
        serve = Serve(api_flavor="openai", arguments=["--model", "{model}"])
        port = 3000

    family = Other()
    text = HEAD.format(family="vllm-overlay", image="", vmm="true", cuda="120") + WHEEL
    recipe, _ = parse(text.replace("vllm", "other"), catalog / "x-1.toml", Recipe)
    assert recipe is not None
    assert [*family.check(recipe)] == []
    assert family.complete(recipe).image.port == 3000
    command = family.variables(recipe, AMD64)["overlay"]
    assert command[command.index("--package") :][:2] == ["--package", "other"]
    wrong, _ = parse(text, catalog / "x-1.toml", Recipe)
    assert wrong is not None
    assert [*family.check(wrong)] == [
        (("source", "pypi"), "the family other-overlay patches the package other")
    ]
