"""The catalog: names, references, and how far a fault spreads."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from builder.core.errors import RecipeError
from support.catalogs import load, without_locks
from support.commands import Builder
from support.environment import REPOSITORY

HELLO = REPOSITORY / "recipes" / "hello-sm120-0.1.0.toml"
BASE = 'name = "{0}"\nsummary = "x"\nlicense = "MIT"\nfamily = "cuda-wheels"\nbase = "{1}"\n'


def add(catalog: Path, name: str, *replacements: tuple[str, str]) -> None:
    text = HELLO.read_text()
    for old, new in replacements:
        assert old in text
        text = text.replace(old, new)
    (catalog / "recipes" / f"{name}.toml").write_text(text)


def test_the_catalog_of_this_repository_is_right() -> None:
    assert load(REPOSITORY).problems() == ()


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        (
            'base    = "cuda-13.0"',
            'base = "cuda-13.0x"',
            "no base cuda-13.0x; did you mean cuda-13.0?",
        ),
        ('family  = "cmake"', 'family = "cmaek"', "no family cmaek; did you mean cmake?"),
        ('family  = "cmake"', 'family = "python-sdist"', "needs a [python] table"),
        ("[[cmake]]\ndefine", "[extra]\ndefine", "unknown key"),
    ],
)
def test_what_a_recipe_names_must_exist(catalog: Path, old: str, new: str, said: str) -> None:
    add(catalog, "hello-sm120-0.1.0", (old, new))
    with pytest.raises(RecipeError) as error:
        load(catalog).engine("hello-sm120-0.1.0")
    assert said in str(error.value)
    assert "hello-sm120-0.1.0.toml:" in str(error.value)


@pytest.mark.parametrize("names", [["a"], ["a", "b"], ["a", "b", "c"]])
def test_bases_that_stand_on_each_other(catalog: Path, names: list[str]) -> None:
    for name, below in zip(names, [*names[1:], names[0]], strict=True):
        file = catalog / "recipes" / "bases" / f"{name}.toml"
        file.write_text(BASE.format(name, below))
    add(catalog, "hello-sm120-0.1.0", ('base    = "cuda-13.0"', 'base = "a"'))
    with pytest.raises(RecipeError, match=r"form a cycle: " + " -> ".join([*names, "a"])):
        load(catalog).engine("hello-sm120-0.1.0")


@pytest.mark.parametrize(
    ("day", "said"),
    [("2999-01-01", "is in the future: today is 20"), ("2026-02-30", "there is no such day")],
)
def test_a_root_without_a_lock_has_a_day_that_has_been(catalog: Path, day: str, said: str) -> None:
    file = catalog / "recipes" / "bases" / "debian-trixie.toml"
    without_locks(catalog)
    load(catalog).base("debian-trixie")
    file.write_text(file.read_text().replace("2026-11-20", day))
    with pytest.raises(RecipeError, match=said) as error:
        load(catalog).base("debian-trixie")
    assert "root.as_of" in str(error.value)


def test_a_wrong_recipe_spoils_no_other(catalog: Path) -> None:
    shutil.copy(HELLO, catalog / "recipes")
    (catalog / "recipes" / "broken-1.toml").write_text("nonsense")
    (catalog / "recipes" / "bases" / "broken.toml").write_text('name = "broken"\n')
    found = load(catalog)
    assert found.engine("hello-sm120-0.1.0").recipe is not None
    with pytest.raises(RecipeError, match="broken-1 is invalid"):
        found.engine("broken-1")
    assert {problem.file.name for problem in found.problems()} == {"broken-1.toml", "broken.toml"}


def test_a_wrong_base_spoils_what_stands_on_it(catalog: Path) -> None:
    shutil.copy(HELLO, catalog / "recipes")
    (catalog / "recipes" / "bases" / "debian-trixie.toml").write_text('name = "debian-trixie"\n')
    with pytest.raises(RecipeError, match="the base debian-trixie is invalid"):
        load(catalog).engine("hello-sm120-0.1.0")


def test_two_recipes_of_one_name(catalog: Path) -> None:
    add(catalog, "hello-sm120-0.1.0")
    add(catalog, "other-1")
    with pytest.raises(
        RecipeError, match=r"is also declared by other-1\.toml: change engine or version"
    ):
        load(catalog).engine("hello-sm120-0.1.0")


def test_a_file_bears_the_name_that_it_declares(catalog: Path) -> None:
    add(catalog, "other-1")
    with pytest.raises(RecipeError, match=r"the file must be hello-sm120-0\.1\.0\.toml"):
        load(catalog).engine("other-1")


def test_an_engine_with_one_version_needs_no_version(catalog: Path) -> None:
    add(catalog, "hello-sm120-0.1.0")
    assert load(catalog).engine("hello-sm120").name == "hello-sm120-0.1.0"
    newer = ('version = "0.1.0"', 'version = "0.2.0"'), ('["0.1.0"]', '["0.2.0"]')
    add(catalog, "hello-sm120-0.2.0", *newer)
    with pytest.raises(RecipeError, match="several versions"):
        load(catalog).engine("hello-sm120")
    add(catalog, "hello-sm120-0.1.0", ('version = "0.1.0"', 'version = "0.1.0"\nkept = "x"'))
    assert load(catalog).engine("hello-sm120").name == "hello-sm120-0.2.0"
    with pytest.raises(RecipeError, match="did you mean hello-sm120"):
        load(catalog).engine("helo-sm120")


def test_no_catalog_at_all(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="has no recipes/ directory"):
        load(tmp_path)


def test_an_engine_whose_only_file_is_wrong_is_told_what_is_wrong(catalog: Path) -> None:
    (catalog / "recipes" / "broken-1.toml").write_text("nonsense")
    with pytest.raises(RecipeError, match=r"broken-1\.toml:1: not TOML"):
        load(catalog).engine("broken")


def test_recipes_with_the_same_tag_name_each_other(catalog: Path, builder: Builder) -> None:
    add(catalog, "hello-sm120-0.1.0")
    add(catalog, "copy-1", ('"hello-sm120"\nversion = "0.1.0"', '"copy"\nversion = "1"'))
    found = load(catalog)
    with pytest.raises(RecipeError) as caught:
        found.engine("copy-1")
    file = catalog / "recipes" / "copy-1.toml"
    line = next(n for n, text in enumerate(file.read_text().splitlines(), 1) if "tags " in text)
    assert [str(problem) for problem in caught.value.problems] == [
        f"{file}:{line}: image.tags.0: hello-sm120:0.1.0 is also a tag of hello-sm120-0.1.0.toml: "
        "change repository or tags in one of the files"
    ]
    for command in (["recipe", "check"], ["build"], ["push"]):
        done = builder(*command, "hello-sm120-0.1.0", "--catalog", catalog)
        assert done.returncode == 3, done.stderr
        assert "hello-sm120:0.1.0 is also a tag of copy-1.toml" in done.stdout + done.stderr


def test_only_tags_that_move_in_each_recipe_are_shared(catalog: Path) -> None:
    named = '["0.1.0"]'
    add(catalog, "hello-sm120-0.1.0", (named, f'{named}\nmoving = ["latest"]'))
    other = ('"hello-sm120"\nversion = "0.1.0"', '"copy"\nversion = "1"')
    add(catalog, "copy-1", other, (named, '["1"]\nmoving = ["latest"]'))
    assert load(catalog).problems() == ()
    add(catalog, "copy-1", other, (named, '["1", "latest"]'))
    keys = [problem.key for problem in load(catalog).problems()]
    assert keys == ["image.tags.1", "image.moving"]


def test_a_health_page_needs_a_port(catalog: Path) -> None:
    add(catalog, "hello-sm120-0.1.0", ("port       = 8080\n", ""))
    with pytest.raises(RecipeError, match="health is a page of the server on port"):
        load(catalog).engine("hello-sm120-0.1.0")
