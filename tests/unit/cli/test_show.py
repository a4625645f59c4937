"""`list` and `show`."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import pytest

from support.commands import Builder
from support.environment import REPOSITORY


def test_list_tells_every_recipe(builder: Builder) -> None:
    plain = builder("list")
    names = sorted(file.stem for file in (REPOSITORY / "recipes").glob("*.toml"))
    assert [line.split("\t")[0] for line in plain.stdout.splitlines()] == ["recipe", *names]
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
    assert len(done.stdout.splitlines()) == 1 + 49
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


def test_show_counts_debian_packages(builder: Builder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BUILDER_COMPILE_ON", "arm64")
    found = json.loads(builder("show", "hello-sm120", "--json").stdout)
    assert found["platforms"] == ["arm64", "amd64"]
    lines = builder("show", "hello-sm120").stdout.splitlines()
    assert (
        len(
            [
                line
                for line in lines
                if line.split() == ["platform", "amd64,", "compiled", "on", "arm64"]
            ]
        )
        == 3
    )
    for plan in (found, found["base"], found["base"]["base"]):
        for stage, packages in plan["debian"].items():
            assert any(f" {stage}: {len(packages)} package" in line for line in lines)
    assert max(map(len, lines)) < 1000


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


PRESET = "qwen3.6-27b-dflash@5090-laptop"


def test_show_leaves_out_what_a_patch_does_not_have(builder: Builder) -> None:
    done = builder("show", "vllm-0.20.0-genesis")
    assert done.returncode == 0, done.stderr
    patches = [text for text in done.stdout.splitlines() if text.startswith("patch ")]
    added = [tomllib.loads(f"patch = {text.split(maxsplit=1)[1]}")["patch"] for text in patches]
    assert [sorted(each["add"]) for each in added] == [
        ["commit", "path", "to"],
        ["commit", "distribution", "path", "to"],
    ]


def test_list_has_every_preset_with_its_speed(builder: Builder) -> None:
    header, *rows = (line.split("\t") for line in builder("list", "--presets").stdout.splitlines())
    assert header == ["preset", "recipe", "card", "speed", "summary"]
    names = sorted(file.stem for file in (REPOSITORY / "presets").glob("*.toml"))
    assert [row[0] for row in rows] == names
    (row,) = [row for row in rows if row[0] == PRESET]
    assert row[1:4] == ["beellama-0.1.1", "5090-laptop", "107.54 (101.7-119.38) tokens/s"]
    found = json.loads(builder("list", "--presets", "--json").stdout)["presets"]
    assert [each["name"] for each in found] == names
    assert all(each["preset"]["recipe"] and each["problems"] == [] for each in found)


def test_show_reads_an_archived_preset_that_list_leaves_out(builder: Builder) -> None:
    name = "qwen3.6-35b-a3b-awq-mtp@2x3090"
    assert (REPOSITORY / "presets" / "archive" / f"{name}.toml").exists()
    assert name not in builder("list", "--presets").stdout
    assert "2 x 3090" in builder("show", name).stdout


def test_list_has_the_problems_of_presets(builder: Builder, catalog: Path) -> None:
    (catalog / "presets").mkdir()
    (catalog / "presets" / "bad@5090.toml").write_text('recipe = "hello-sm120-0.1.0"\n')
    done = builder("list", "--presets", "--catalog", catalog)
    assert done.returncode == 3
    assert "bad@5090.toml:1: model: is missing" in done.stderr
    assert builder("list", "--catalog", catalog).returncode == 0


def test_show_has_the_options_and_figures_of_a_preset(builder: Builder) -> None:
    text = builder("show", PRESET).stdout
    assert "arguments  --model MODEL --ctx-size 262144 --model-draft DRAFT --spec-type" in text
    assert "container  --ulimit=memlock=-1 --cap-add=IPC_LOCK" in text
    assert "98304\t106.67 (97.84-115.36)\t10\t\t\tKV cache 3 GB" in text
    assert "(Anbeeld/beellama.cpp#7)" in text
    found = json.loads(builder("show", PRESET, "--json").stdout)
    assert found["command"][:2] == ["--model", "MODEL"]
    assert found["result"][3]["tokens_per_second"]["mean"] == 107.54


def test_show_takes_a_short_name(builder: Builder) -> None:
    done = builder("show", "qwen3.6-27b:dflash", "--json")
    assert json.loads(done.stdout)["name"] == PRESET
    assert f"qwen3.6-27b:dflash is {PRESET}" in done.stderr
    unknown = builder("show", "qwen3.6-28b")
    assert unknown.returncode == 3
    assert "is named qwen3.6-28b; did you mean qwen3.6-27b?" in unknown.stderr


def test_show_has_no_dockerfile_of_a_preset(builder: Builder) -> None:
    done = builder("show", PRESET, "--dockerfile")
    assert done.returncode == 2
    assert "a preset has no Dockerfile" in done.stderr
    done = builder("show", f"{PRESET}s")
    assert done.returncode == 3
    assert f"did you mean {PRESET}?" in done.stderr


def test_show_has_a_plan_for_each_platform(
    builder: Builder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BUILDER_DEBIAN_ROOT", "mmdebstrap")
    monkeypatch.setenv("BUILDER_COMPILE_ON", "amd64")
    found = json.loads(builder("show", "llama-cpp-b9831", "--json").stdout)["images"]
    assert [plan["platforms"] for plan in found] == [["amd64", "amd64"], ["amd64", "arm64"]]
    arguments = ("show", "llama-cpp-b9831", "--platform", "linux/arm64")
    assert json.loads(builder(*arguments, "--json").stdout) == found[1]
    assert "CMAKE_CUDA_ARCHITECTURES=121" in builder(*arguments, "--dockerfile").stdout
    several = builder("show", "llama-cpp-b9831", "--dockerfile")
    assert several.returncode == 3
    assert "-> name one of them: --platform linux/amd64" in several.stderr
    plans = builder("show", "llama-cpp-b9831").stdout
    assert plans.count("name        llama-cpp-b9831\n") == 2
