"""`recipe schema` and `recipe explain`."""

from __future__ import annotations

import json
import tomllib
from dataclasses import replace
from pathlib import Path

import jsonschema
import pytest

from builder.build import record, reports
from builder.checks.verdict import Check
from builder.image.code_paths import CodePaths
from support.bills import of_catalog, record_of
from support.commands import Builder
from support.environment import REPOSITORY
from support.farms import Farm


@pytest.mark.parametrize(
    ("option", "name", "folder"),
    [
        ([], "recipe", "recipes"),
        (["--base"], "base", "recipes/bases"),
        (["--preset"], "preset", "presets"),
        (["--preset"], "preset", "presets/archive"),
    ],
)
def test_the_schema_is_the_committed_one_and_takes_every_recipe(
    builder: Builder, option: list[str], name: str, folder: str
) -> None:
    schema = json.loads(builder("recipe", "schema", *option).stdout)
    committed = json.loads((REPOSITORY / "recipes/schemas" / f"{name}.schema.json").read_text())
    assert schema == committed, (
        f"builder recipe schema {' '.join(option)} > recipes/schemas/{name}.schema.json"
    )
    jsonschema.Draft202012Validator.check_schema(schema)
    validator = jsonschema.Draft202012Validator(schema)
    for file in (REPOSITORY / folder).glob("*.toml"):
        validator.validate(tomllib.loads(file.read_text()))
    with pytest.raises(jsonschema.ValidationError):
        validator.validate({"unknown": 1})
    # An editor knows what builder refuses, where a pattern can tell.
    patterns = json.dumps(schema)
    assert "[0-9a-f]{64}" in patterns
    assert ("[0-9a-f]{40}" in patterns) is (name != "base")


def test_explain_tells_who_decides_what(farm: Farm) -> None:
    farm.write(farm.pull(6, **{"b.c": "c\n"}))
    told = farm.json("recipe", "explain", "eng")
    (definitions,) = told["definitions"]
    origins = {each["name"]: each["from"] for each in definitions}
    assert origins["GGML_CUDA_NO_VMM"] == "family llama-cpp"
    assert origins["CMAKE_EXE_LINKER_FLAGS"] == "base cuda-13.0"
    assert origins["CMAKE_CUDA_ARCHITECTURES"] == "builder"
    assert told["patches"][0]["why"] == "it breaks without"
    text = farm.run("recipe", "explain", "eng")
    assert "Patch pull 6: it breaks without" in text
    assert "from family llama-cpp:" in text


def test_explain_names_the_presets_of_a_recipe(builder: Builder) -> None:
    found = json.loads(builder("recipe", "explain", "atomic-b8995", "--json").stdout)
    assert found["presets"] == ["gemma-4-26b-a4b-mtp@5090-laptop", "gemma-4-e2b-mtp@5090-laptop"]
    text = builder("recipe", "explain", "atomic-b8995").stdout
    assert "Presets: published runs\n  gemma-4-26b-a4b-mtp@5090-laptop" in text


def test_explain_shows_the_device_code_of_the_newest_image(
    builder: Builder, farm_copy: Path, tmp_path: Path
) -> None:
    command = ("recipe", "explain", "beellama-0.1.1", "--catalog", farm_copy)
    assert "Device code" not in builder(*command).stdout
    assert json.loads(builder(*command, "--json").stdout)["device_code"] is None
    made = record_of(of_catalog("beellama-0.1.1"))
    late = CodePaths("/opt/_fa2.so", compiled=65_000_000, card="12.0")
    code = (CodePaths("/opt/_C.so", native=21_000_000, dead=5_000_000, card="12.0"), late)
    checks = (Check.of("image", "its layers", "can be read", "yes", True),)
    verdict = replace(made.verdict, checks=checks, code=code)
    kept = made.model_copy(update={"verdict": verdict})
    reports.write_trials(farm_copy, kept)
    sums = (
        "  21.0 MB runs as it is, the driver compiles 65.0 MB at the first use (_fa2.so), "
        "5.0 MB never runs"
    )
    title = f"Device code of image {made.key[:12]} of 2026-11-21 13:58 UTC, by "
    theirs = builder(*command).stdout.splitlines()[-2:]
    assert theirs == [f"{title}trials/beellama-0.1.1.json", sums]
    record.write(tmp_path / "state", kept)
    assert builder(*command).stdout.splitlines()[-5:] == [
        f"{title}the record of this machine",
        sums,
        "device code\truns as it is\tcompiled by the driver\tnever runs",
        "/opt/_C.so\t21.0 MB\t\t5.0 MB",
        "/opt/_fa2.so\t\t65.0 MB",
    ]
    told = json.loads(builder(*command, "--json").stdout)["device_code"]
    assert [each["path"] for each in told["libraries"]] == ["/opt/_C.so", "/opt/_fa2.so"]
    assert told["sums"][0]["late"] == ["_fa2.so"]
