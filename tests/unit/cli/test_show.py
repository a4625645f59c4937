"""`list` and `show`."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

from support.commands import Builder
from support.environment import REPOSITORY


def test_list_tells_every_recipe(builder: Builder) -> None:
    plain = builder("list")
    names = sorted(file.stem for file in (REPOSITORY / "recipes").glob("*.toml"))
    assert [line.split("\t")[0] for line in plain.stdout.splitlines()] == names
    found = json.loads(builder("list", "--json").stdout)
    assert [entry["name"] for entry in found["recipes"]] == names


def test_list_tells_the_good_and_the_bad(builder: Builder, catalog: Path) -> None:
    text = (REPOSITORY / "recipes" / "hello-sm120-0.1.0.toml").read_text()
    for number in range(49):
        recipe = text.replace('version = "0.1.0"', f'version = "0.{number}"')
        (catalog / "recipes" / f"hello-sm120-0.{number}.toml").write_text(recipe)
    (catalog / "recipes" / "bad-1.toml").write_text('engine = "bad"\n')
    done = builder("list", "--catalog", catalog)
    assert done.returncode == 3
    assert len(done.stdout.splitlines()) == 49
    assert "bad-1.toml:1: version: is missing" in done.stderr


def test_show_tells_the_plan(builder: Builder) -> None:
    found = json.loads(builder("show", "hello-sm120", "--json").stdout)
    assert found["name"] == "hello-sm120-0.1.0"
    assert len(found["key"]) == 64
    assert found["base"]["name"] == "cuda-13.0"
    assert found["base"]["base"]["name"] == "debian-trixie"
    wheels = {name: version for name, version, _ in found["base"]["packages"]["wheels"]}
    assert wheels["nvidia-cuda-nvcc"] == "13.0.88"
    text = builder("show", "hello-sm120", "--dockerfile").stdout
    assert text == (REPOSITORY / "tests/data/golden/hello-sm120-0.1.0.Dockerfile").read_text()


def test_show_prints_texts_and_toml(builder: Builder) -> None:
    text = builder("show", "atomic-b8995").stdout
    values = dict(line.split(maxsplit=1) for line in text.splitlines() if " " in line)
    patches = [line for line in text.splitlines() if line.startswith("patch ")]
    assert patches
    for line in patches:
        value = tomllib.loads(f"patch = {line.removeprefix('patch').strip()}")["patch"]
        assert value["expect"] == "applies"
    assert values["platform"] == "amd64"
    for python in ("None", "True", "False", "['", "('"):
        assert python not in text
