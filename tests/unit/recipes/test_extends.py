"""A recipe that extends another version of its engine, and recipes that are kept."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from builder.core.errors import RecipeError
from builder.recipes.catalog import Entry
from builder.recipes.edit import Keys, edited, with_pull_request
from builder.recipes.patches import PullPatch
from builder.recipes.schema import GitSource, Recipe
from support.catalogs import load
from support.commands import Builder
from support.environment import REPOSITORY

PARENT = """\
engine = "fork"
version = "1"
kept = "a published run"
summary = "a fork"
license = "MIT"
family = "llama-cpp"
base = "cuda-13.0"
notes = ["first", "second"]

[source]
git = "https://example.org/fork"
ref = "v1"
commit = "1111111111111111111111111111111111111111"

[track]
tag = "v*"

[llama]
build_number = 1
ui = true

[image]
env = { A = "1", B = "2" }

[[probe]]
option = "--old"
"""
CHILD = """\
extends = "fork-1"
version = "2"

[source]
git = "https://example.org/fork"
commit = "2222222222222222222222222222222222222222"

[llama]
build_number = 2

[image]
env = { B = "3" }
"""


def write(catalog: Path, **files: str) -> None:
    """Recipes of the engine fork, by version."""
    for version, text in {"v1": PARENT, **files}.items():
        (catalog / "recipes" / f"fork-{version[1:]}.toml").write_text(text)


def recipe(catalog: Path, child: str) -> Recipe:
    write(catalog, v2=child)
    return load(catalog).engine("fork-2").recipe


def problems(catalog: Path, child: str) -> list[str]:
    write(catalog, v2=child)
    with pytest.raises(RecipeError) as caught:
        load(catalog).engine("fork-2")
    return [str(each).replace(f"{catalog}/recipes/", "") for each in caught.value.problems]


def test_a_key_replaces_the_key_and_a_table_does_so_key_by_key(catalog: Path) -> None:
    found = recipe(catalog, CHILD)
    assert (found.name, found.summary, found.notes) == ("fork-2", "a fork", ["first", "second"])
    assert found.llama is not None
    assert (found.llama.build_number, found.llama.ui) == (2, True)
    assert found.image.env == {"A": "1", "B": "3"}
    assert found.image.tags == ["2"], "the version's own tag"
    assert found.kept is None, "an archived recipe does not archive the ones that extend it"
    assert found.track is not None
    assert found.track.tag == "v*"


def test_source_and_track_replace_the_whole_table(catalog: Path) -> None:
    found = recipe(catalog, f'{CHILD}\n[track]\nbranch = "main"\n')
    assert isinstance(found.source, GitSource)
    assert found.source.ref is None, "not the ref of another commit"
    assert found.track is not None
    assert (found.track.tag, found.track.branch) == (None, "main")


def test_a_list_replaces_the_list_and_add_comes_after_it(catalog: Path) -> None:
    replaced = recipe(catalog, f'{CHILD}\n[[probe]]\noption = "--new"\n')
    assert [each.model_dump()["option"] for each in replaced.probe] == ["--new"]
    more = CHILD + '\n[add]\nnotes = ["third"]\n\n[[add.probe]]\noption = "--new"\n'
    added = recipe(catalog, more)
    assert [each.model_dump()["option"] for each in added.probe] == ["--old", "--new"]
    assert added.notes == ["first", "second", "third"]


MORE = len(CHILD.splitlines()) + 2
"""The line of a table that stands behind the recipe."""


@pytest.mark.parametrize(
    ("old", "new", "line", "said"),
    [
        ("fork-1", "frok-1", 1, "extends: there is no recipe frok-1; did you mean fork-1?"),
        ("fork-1", "fork-2", 1, "extends: a recipe cannot extend itself"),
        (
            *("fork-1", "fork-3", 1),
            "extends: fork-3.toml extends fork-2 itself: extend that one",
        ),
        (
            *("extends", 'engine = "other"\nextends', 2),
            "extends: fork-1.toml is of another engine, fork: only versions of one extend",
        ),
        ('version = "2"\n', "", 1, "version: is missing"),
        ("number", "nmuber", 9, "llama.build_nmuber: unknown key; did you mean build_number?"),
        ("", "[add]\nprobes = []\n", MORE + 1, "add.probes: unknown key; did you mean probe?"),
        ("", "[[add.probe]]\noption = 7\n", MORE + 1, "probe.1.option: must be a text"),
        ("", '[source.submodule]\nx = "no URL"\n', MORE + 1, "source.submodule.x: 'no URL'"),
    ],
)
def test_a_wrong_recipe_says_where(catalog: Path, old: str, new: str, line: int, said: str) -> None:
    (catalog / "recipes" / "fork-3.toml").write_text(CHILD.replace("fork-1", "fork-2"))
    found = problems(catalog, CHILD.replace(old, new) if old else f"{CHILD}\n{new}")
    assert [each for each in found if each.startswith(f"fork-2.toml:{line}: {said}")], found


def test_a_fault_of_the_extended_recipe_names_both_files(catalog: Path) -> None:
    wrong = PARENT.replace('option = "--old"', 'option = "old"')
    write(catalog, v1=wrong, v2=CHILD)
    with pytest.raises(RecipeError) as caught:
        load(catalog).engine("fork-2")
    (problem,) = caught.value.problems
    line = wrong.splitlines().index('option = "old"') + 1
    assert str(problem).startswith(f"{catalog}/recipes/fork-2.toml:1: probe.0.option: ")
    assert str(problem).endswith(f"(fork-1.toml:{line}, which this recipe extends)")
    write(catalog, v1="engine =", v2=CHILD)
    with pytest.raises(RecipeError, match=r"fork-2\.toml:1: extends: fork-1\.toml cannot be read"):
        load(catalog).engine("fork-2")


def test_a_family_s_finding_has_the_line_of_its_file(catalog: Path) -> None:
    found = problems(
        catalog, f'{CHILD}\n[[patch]]\nfile = "x"\nwhy = "y"\n\n[artifact]\nfiles = ["x"]\n'
    )
    assert [each for each in found if each.startswith("fork-2.toml:18: artifact: ")], found


def test_add_needs_a_recipe_that_is_extended(catalog: Path) -> None:
    write(catalog, v1=f'{PARENT}\n[add]\nnotes = ["x"]\n')
    with pytest.raises(RecipeError, match="add has no use without extends"):
        load(catalog).engine("fork-1")


def test_a_place_without_the_extended_recipe_gets_both_in_one(catalog: Path) -> None:
    found = recipe(catalog, f"#:schema x.json\n{CHILD}")
    ((name, text),) = load(catalog).engine("fork-2").texts().items()
    assert name == "fork-2.toml"
    assert text.startswith("#:schema x.json\n")
    alone = Recipe.model_validate(tomllib.loads(text))
    assert alone == found.model_copy(update={"extends": None})


def test_an_edit_writes_the_file_s_own_key_or_nothing() -> None:
    moved: dict[Keys, object] = {("source", "commit"): "3" * 40, ("llama", "build_number"): 3}
    text = edited(CHILD, moved)
    assert text == CHILD.replace("2" * 40, "3" * 40).replace("build_number = 2", "build_number = 3")
    without = CHILD.replace("[llama]\nbuild_number = 2\n\n", "")
    with pytest.raises(RecipeError) as caught:
        edited(without, moved)
    assert "llama.build_number cannot be changed: the recipe has no llama" in str(caught.value)
    assert "it extends fork-1" in str(caught.value)


def test_a_pull_request_goes_after_the_patches_of_the_extended_recipe(catalog: Path) -> None:
    patched = (
        PARENT
        + '\n[[patch]]\npull = 1\nbase = "'
        + "3" * 40
        + '"\nhead = "'
        + "4" * 40
        + '"\nwhy = "x"\n'
    )
    write(catalog, v1=patched, v2=CHILD)
    found = load(catalog).engine("fork-2").recipe
    new = PullPatch(pull=2, base="5" * 40, head="6" * 40, why="y")
    child = with_pull_request(CHILD, found, new)
    write(catalog, v1=patched, v2=child)
    pulls = [each.model_dump()["pull"] for each in load(catalog).engine("fork-2").recipe.patch]
    assert pulls == [1, 2]
    found = load(catalog).engine("fork-2").recipe
    newer = new.model_copy(update={"head": "7" * 40})
    assert with_pull_request(child, found, newer) == child.replace("6" * 40, "7" * 40)
    again = PullPatch(pull=1, base="5" * 40, head="6" * 40, why="y")
    with pytest.raises(RecipeError, match="the recipe has no patch"):
        with_pull_request(CHILD, found, again)


def test_a_lock_of_the_extended_recipe_is_not_written(catalog: Path, builder: Builder) -> None:
    locked = PARENT + '\n[debian]\nruntime = ["curl"]\nlock = "locks/fork-1.toml"\n'
    write(catalog, v1=locked, v2=CHILD)
    done = builder("pin", "lock", "fork-2", "--only", "debian", "--catalog", catalog)
    assert done.returncode == 3, done.stderr
    assert "fork-2 has the debian lock of fork-1, which it extends" in done.stderr


def entries() -> list[Entry[Recipe]]:
    found = load(REPOSITORY)
    return [found.engine(name) for name in found.engines]


def test_people_have_one_recipe_of_each_engine_and_channel_to_take() -> None:
    current = [each.recipe for each in entries() if each.recipe.kept is None]
    names = sorted((each.engine, each.channel) for each in current)
    assert names == sorted({*names})
    without = {each.recipe.engine for each in entries()} - {engine for engine, _ in names}
    assert without == {"llama-cpp-mtp"}, "llama.cpp has its drafter"


def test_the_reason_of_a_kept_recipe_can_be_looked_up() -> None:
    """A preset that the reason names is there, and is of the recipe."""
    for entry in entries():
        named = re.findall(r"[\w.-]+@[\w-]+", entry.recipe.kept or "")
        for preset in named:
            files = [*(REPOSITORY / "presets").rglob(f"{preset}.toml")]
            assert [f'"{entry.name}"' in each.read_text() for each in files] == [True], preset
        if "published run" in (entry.recipe.kept or ""):
            assert named


def test_an_engine_s_name_means_its_current_recipe() -> None:
    found = load(REPOSITORY)
    assert found.engine("buun").name == "buun-b9326"
    assert found.engine("vllm").name == "vllm-0.33.0-wheel", "not the channel's"
    with pytest.raises(RecipeError, match="llama-cpp-mtp has several versions"):
        found.engine("llama-cpp-mtp")


def test_list_shows_current_recipes_and_all_with_the_reason(
    catalog: Path, builder: Builder
) -> None:
    write(catalog, v2=CHILD)
    short = builder("list", "--catalog", catalog)
    assert "fork-2" in short.stdout
    assert "fork-1" not in short.stdout
    assert "one other recipe with --all" in short.stderr or "1 other recipe" in short.stderr
    everything = builder("list", "--all", "--catalog", catalog)
    (row,) = [each for each in everything.stdout.splitlines() if each.startswith("fork-1")]
    assert "a published run" in row


def test_a_base_has_the_recipes_that_have_it_by_another_one(
    catalog: Path, builder: Builder
) -> None:
    pull = f'\n[[add.patch]]\npull = 1\nbase = "{"3" * 40}"\nhead = "{"4" * 40}"\nwhy = "x"\n'
    write(catalog, v2=f"{CHILD}{pull}")
    shown = builder("show", "cuda-13.0", "--catalog", catalog)
    assert "fork-1, fork-2" in shown.stdout, "the base of a patch is no base of images"


def test_two_current_recipes_of_an_engine_are_a_warning(catalog: Path, builder: Builder) -> None:
    write(catalog, v1=PARENT.replace('kept = "a published run"\n', ""), v2=CHILD)
    done = builder("recipe", "check", "fork-2", "--catalog", catalog)
    assert done.returncode == 0, done.stderr
    assert "fork-2.toml:2: version: fork-1 is current, too" in done.stdout


def test_the_matrix_has_kept_recipes_only_by_name(catalog: Path, builder: Builder) -> None:
    write(catalog, v2=CHILD)
    jobs = builder("ci", "matrix", "--catalog", catalog).stdout
    assert "fork-2" in jobs
    assert "fork-1" not in jobs
    assert "fork-1" in builder("ci", "matrix", "fork-1", "--catalog", catalog).stdout
