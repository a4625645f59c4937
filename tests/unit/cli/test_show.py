"""`list` and `show`."""

from __future__ import annotations

import json
import os
import tomllib
from pathlib import Path

import pytest

from builder.build import record
from builder.checks import kernel_test
from builder.checks.logit_test import UNCOMPARED
from builder.checks.verdict import Check, Verdict
from support.bills import DIGEST, of_catalog, record_of
from support.commands import Builder
from support.environment import REPOSITORY


def test_list_tells_every_recipe(builder: Builder) -> None:
    plain = builder("list")
    names = sorted(file.stem for file in (REPOSITORY / "recipes").glob("*.toml"))
    assert [line.split("\t")[0] for line in plain.stdout.splitlines()[:1]] == ["recipe"]
    current = {line.split("\t")[0] for line in plain.stdout.splitlines()[1:]}
    everything = [line.split("\t")[0] for line in builder("list", "--all").stdout.splitlines()[1:]]
    assert sorted(everything) == names
    assert current < {*names}
    assert f"{len(names) - len(current)} other recipes with --all" in plain.stderr
    found = json.loads(builder("list", "--json").stdout)
    assert [entry["name"] for entry in found["recipes"]] == names


def rows_of(text: str) -> dict[str, dict[str, str]]:
    header, *rows = (line.split("\t") for line in text.splitlines())
    return {row[0]: dict(zip(header, row, strict=False)) for row in rows}


def test_list_sorts_by_version_and_has_what_a_user_asks(builder: Builder, tmp_path: Path) -> None:
    found = rows_of(builder("list", "--all").stdout)
    names = [*found]
    assert names.index("llama-cpp-b8863") < names.index("llama-cpp-b10018")
    assert names.index("llama-cpp-b10018") < names.index("llama-cpp-mtp-b9074")
    assert names.index("atomic-b8995") < names.index("atomic-b10018-1.2.0")
    row = found["llama-cpp-b10018"]
    kept = json.loads((REPOSITORY / "trials/llama-cpp-b10018.json").read_text())
    assert (row["GPU code"], row["size"]) == ("120 121", f"{kept['download_size'] / 1e6:.1f} MB")
    assert (row["checks"], row["built here"]) == (f"{kept['checks']} passed", "")
    refused = json.loads((REPOSITORY / "trials/llama-cpp-mtp-b9074.json").read_text())["failed"]
    assert found["llama-cpp-mtp-b9074"]["checks"] == f"{sum(refused.values())} failed"
    presets = len([*(REPOSITORY / "presets").glob("gemma-4-e2b-mtp*")])
    assert presets <= int(found["atomic-b8995"]["presets"])
    assert found["vllm-nightly"]["size"] == "", "its image was never checked"
    assert found["llama-cpp-master"]["family"] == "llama-cpp"
    kept = record_of(of_catalog("llama-cpp-b10018"))
    record.write(tmp_path / "state", kept)
    row = rows_of(builder("list", "--all").stdout)["llama-cpp-b10018"]
    assert (row["built here"], row["checks"]) == (
        "2026-11-21",
        f"{len(kept.verdict.checks)} passed",
    )


def test_list_has_the_bases_with_their_recipes(builder: Builder) -> None:
    found = rows_of(builder("list", "--bases").stdout)
    names = {file.stem for file in (REPOSITORY / "recipes/bases").glob("*.toml")}
    assert found.keys() == names
    assert int(found["cuda-13.0"]["recipes"]) > 10


def test_wrong_settings_are_a_warning_where_none_is_needed(
    builder: Builder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BUILDER_JOBS", "many")
    done = builder("list")
    assert (done.returncode, len(rows_of(done.stdout)) > 10) == (0, True)
    assert done.stderr.count("\n") == 2
    assert done.stderr.startswith("warning: the settings are invalid: BUILDER_JOBS: ")
    monkeypatch.delenv("BUILDER_JOBS")
    file = Path(os.environ["HOME"]) / ".config/builder/settings.toml"
    file.parent.mkdir(parents=True)
    file.write_text('namespaces = "me"\n')
    done = builder("list")
    assert "settings.toml:1: namespaces: unknown setting; did you mean namespace?" in done.stderr


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
    lines = builder("show", "hello-sm120", "--inputs").stdout.splitlines()
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
    text = builder("show", "atomic-b8995", "--inputs").stdout
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
    done = builder("show", "vllm-0.20.0-genesis", "--inputs")
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
    assert "Options of the server\n  --model MODEL\n  --ctx-size 262144\n  --model-draft" in text
    assert "\n  --ulimit=memlock=-1\n  --cap-add=IPC_LOCK\n" in text
    assert "context\ttokens/s\truns\tmemory\n98304\t106.67 (97.84-115.36)\t10\tKV cache" in text
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
    assert "@" not in unknown.stderr, "the presets are too many to read"
    assert "is named cuda-13; did you mean cuda-13.0" in builder("show", "cuda-13").stderr


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
    plans = builder("show", "llama-cpp-b9831", "--inputs").stdout
    assert plans.count("name        llama-cpp-b9831\n") == 2


def test_show_summarizes_a_recipe(builder: Builder, tmp_path: Path) -> None:
    done = builder("show", "beellama-0.1.1")
    assert (done.returncode, done.stderr) == (0, "")
    commit = tomllib.loads((REPOSITORY / "recipes/beellama-0.1.1.toml").read_text())["source"]
    kept = json.loads((REPOSITORY / "trials/beellama-0.1.1.json").read_text())
    for said in (
        "image     beellama-cpp:0.1.1\n",
        f"source    {commit['git']}\n          commit {commit['commit']}\n",
        "GPU code  sm_120a\n",
        "driver    580 or newer\n",
        "server    port 8080, health page /health, a web page\n",
        f"size      {kept['download_size'] / 1e6:.1f} MB to download\n",
        f"presets   {PRESET}\n",
        "Patch file beellama-fused-row.patch: with one token",
        "Notes and known problems\n  MTP-baked GGUFs are refused",
    ):
        assert said in done.stdout, said
    other = f"built from {kept['commit'][:12]}, not from the recipe's commit"
    assert (other in done.stdout) == (kept["commit"] != commit["commit"])
    for elsewhere in ("CMAKE_", "sha256", "The smoke test checks"):
        assert elsewhere not in done.stdout
    of = of_catalog("beellama-0.1.1")
    left = Check.skipped("numbers", UNCOMPARED, "the same text", "not compared: copyspec, suffix")
    operations = kernel_test.operations({"ADD", "NEW_OP"}, [])
    verdict = Verdict(DIGEST, (left, operations), 1, 1)
    record.write(tmp_path / "state", record_of(of, verdict=verdict))
    done = builder("show", "beellama-0.1.1")
    assert "on 2026-11-21, on this machine\nnumbers   not compared: copyspec" in done.stdout
    assert "without a case: ADD, NEW_OP" in " ".join(done.stdout.split())
    assert "never: neither on this machine nor in trials/" in builder("show", "vllm-0.21.0").stdout


def test_show_flags_is_recipe_explain(builder: Builder) -> None:
    text = builder("show", "vllm-0.33.0-wheel", "--flags").stdout
    assert builder("recipe", "explain", "vllm-0.33.0-wheel").stdout.startswith(text)
    checks, _, accepted = text.partition("\nAccepted exceptions\n")
    assert "may break code paths: FlashAttention 3 is sm_90a only" in accepted
    assert "The smoke test checks that\n" in checks
    assert "may break" not in checks
    told = json.loads(builder("show", "vllm-0.33.0-wheel", "--flags", "--json").stdout)
    assert any("FlashAttention 3" in each for each in told["accepted"])


def test_show_has_bases(builder: Builder) -> None:
    text = builder("show", "cuda-13.0").stdout
    assert "Base cuda-13.0: CUDA 13.0 out of NVIDIA's PyPI wheels" in text
    assert "nvidia-cuda-nvcc 13.0.88" in text
    assert "Base debian-trixie: Debian 13" in text
    assert "hello-sm120-0.1.0" in text
    plan = json.loads(builder("show", "cuda-13.0", "--json").stdout)
    assert plan["key"] == json.loads(builder("show", "hello-sm120", "--json").stdout)["base"]["key"]
    assert "FROM" in builder("show", "cuda-13.0", "--dockerfile").stdout
    assert "not pinned" in builder("show", "vllm-openai-0.20.2").stdout


def test_eighty_columns_are_enough(builder: Builder, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = builder("show", "beellama-0.1.1").stdout.split()
    for name, value in (("TTY_COMPATIBLE", "1"), ("COLUMNS", "80"), ("TERM", "dumb")):
        monkeypatch.setenv(name, value)
    names = json.loads(builder("list", "--json").stdout)["recipes"]
    current = [each["name"] for each in names if not each["recipe"]["kept"]]
    listed = builder("list").stdout.splitlines()
    assert len(listed) == 1 + len(current), "one line a recipe"
    listed += builder("list", "--all").stdout.splitlines()
    shown = builder("show", "beellama-0.1.1").stdout
    assert shown.split() == whole, "no word is broken, and none is lost"
    for text in (*listed, *shown.splitlines()):
        assert len(text) <= 80, text
