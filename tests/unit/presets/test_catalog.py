"""Presets of a farm: found by name, read from files, broken one by one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from builder.core.errors import RecipeError
from builder.engines.device_code import runs_on
from builder.presets import cards, catalog, is_preset
from builder.presets.cards import host_card
from builder.presets.catalog import PresetEntry
from support.environment import REPOSITORY
from support.shipped import PRESETS, RECIPES


@pytest.mark.parametrize("name", [*PRESETS.entries, *PRESETS.archived])
def test_a_shipped_preset_is_valid(name: str) -> None:
    preset = PRESETS.preset(name).preset
    assert preset.published is not None or preset.composed


def test_the_archive_has_the_presets_whose_card_no_image_has_code_for() -> None:
    known = cards.known(REPOSITORY, cards.names(REPOSITORY))

    def runs(entry: PresetEntry) -> bool:
        recipe = RECIPES.engine(entry.preset.recipe).recipe
        return runs_on(recipe, host_card(known[entry.preset.card]).capability)

    assert all(runs(entry) for entry in PRESETS.entries.values())
    assert PRESETS.archived
    assert not any(runs(entry) for entry in PRESETS.archived.values())


def test_an_archived_preset_is_read_and_checked_and_not_offered(tmp_path: Path) -> None:
    archived = PRESETS.preset("qwen3.6-27b@3090")
    assert archived.name not in {entry.name for entry in PRESETS.valid()}
    assert archived.name not in catalog.of_recipe(REPOSITORY, archived.preset.recipe)
    folder = tmp_path / "presets" / catalog.ARCHIVE
    folder.mkdir(parents=True)
    (folder / f"{archived.name}.toml").write_text(archived.text.replace("b9261", "b1"))
    (problem,) = catalog.load(replace(RECIPES, root=tmp_path)).problems()
    assert problem.file == folder / f"{archived.name}.toml"
    assert problem.message.startswith("no recipe is named llama-cpp-b1")


def test_a_preset_is_not_in_both_folders(tmp_path: Path) -> None:
    shipped = PRESETS.preset("qwen3.6-27b@3090")
    for folder in (tmp_path / "presets", tmp_path / "presets" / catalog.ARCHIVE):
        folder.mkdir()
        (folder / f"{shipped.name}.toml").write_text(shipped.text)
    found = catalog.load(replace(RECIPES, root=tmp_path))
    with pytest.raises(RecipeError) as raised:
        found.preset(shipped.name)
    assert "both have this file" in raised.value.problems[0].message


def test_a_preset_that_is_published_as_a_warning_is_slower_than_the_one_it_names() -> None:
    shipped = (*PRESETS.entries.values(), *PRESETS.archived.values())
    speeds = {
        entry.name: entry.preset.published.tokens_per_second.middle
        for entry in shipped
        if entry.preset is not None and entry.preset.published is not None
    }
    losing = {
        entry.name: entry.preset.loses_to
        for entry in shipped
        if entry.preset is not None and entry.preset.loses_to is not None
    }
    assert losing
    for name, better in losing.items():
        assert speeds[name] < speeds[better], name


def test_an_unknown_preset_is_named_with_the_nearest() -> None:
    with pytest.raises(RecipeError, match=r"did you mean gemma-4-e4b-mtp@5090-laptop\?"):
        PRESETS.preset("gemma-4-e4b-mtp@5090")


def test_presets_are_found_by_their_recipe() -> None:
    names = [entry.name for entry in PRESETS.of_recipe("atomic-b8995")]
    assert names == ["gemma-4-26b-a4b-mtp@5090-laptop", "gemma-4-e2b-mtp@5090-laptop"]
    assert PRESETS.of_recipe("hello-sm120-0.1.0") == []


@pytest.mark.parametrize(
    ("name", "preset"),
    [
        ("qwen3.6-27b@3090", True),
        ("beellama-0.1.1", False),
        ("me/beellama-cpp@sha256:0123", False),
    ],
)
def test_names_of_presets_have_their_card(name: str, preset: bool) -> None:
    assert is_preset(name) is preset


def test_a_broken_file_breaks_no_other(tmp_path: Path) -> None:
    good = PRESETS.preset("qwen3.6-27b@3090")
    folder = tmp_path / "presets"
    folder.mkdir()
    (folder / f"{good.name}.toml").write_text(good.text)
    (folder / "a@3090.toml").write_text("recipe = \n")
    (folder / "b@3090.toml").write_bytes(b"\xff")
    (folder / "c@3090.toml").write_text(good.text.replace("41.27", '"41.27"'))
    found = catalog.load(replace(RECIPES, root=tmp_path))
    assert [entry.name for entry in found.valid()] == [good.name]
    texts = [str(problem).removeprefix(f"{folder}/") for problem in found.problems()]
    assert texts[0].startswith("a@3090.toml:1: not TOML: ")
    assert texts[1] == "b@3090.toml:1: not UTF-8 at byte 0"
    assert texts[2].startswith("c@3090.toml:16: result.0.tokens_per_second.mean: ")
    assert found.entry("c@3090").problems
    with pytest.raises(RecipeError, match="the preset c@3090 is invalid"):
        found.preset("c@3090")


def test_a_farm_without_presets_has_none(tmp_path: Path) -> None:
    assert catalog.load(replace(RECIPES, root=tmp_path)).entries == {}


@pytest.mark.parametrize("name", ["ALL", "SYS_ADMIN", "CAP_IPC_LOCK", "ipc_lock"])
def test_a_capability_that_no_engine_needs_is_refused(name: str, tmp_path: Path) -> None:
    good = PRESETS.preset("qwen3.6-27b@3090")
    folder = tmp_path / "presets"
    folder.mkdir()
    text = f"{good.text}\n[container]\ncapabilities = [{name!r}]\n"
    (folder / "a@3090.toml").write_text(text)
    found = catalog.load(replace(RECIPES, root=tmp_path))
    (problem,) = found.problems()
    line = len(text.splitlines())
    assert str(problem).startswith(f"{folder}/a@3090.toml:{line}: container.capabilities.0: ")
    assert "IPC_LOCK" in problem.message


@pytest.mark.parametrize("name", ["a//b.gguf", "a/./b.gguf", "b/", "a" * 300])
def test_a_file_that_cannot_be_written_is_refused(name: str, tmp_path: Path) -> None:
    good = PRESETS.preset("qwen3.6-27b@3090")
    folder = tmp_path / "presets"
    folder.mkdir()
    text = good.text.replace("[model]\n", f"[model]\nfile = {name!r}\n")
    (folder / "a@3090.toml").write_text(text)
    (problem,) = catalog.load(replace(RECIPES, root=tmp_path)).problems()
    assert problem.key == "model.file"
    assert "no file can have this name" in problem.message
