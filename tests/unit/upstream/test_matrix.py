"""What a workflow builds: disk, runners, and what has changed since a revision, on real git."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from builder.cli.app import app
from builder.core.errors import RecipeError, WorldError
from builder.engines import families
from builder.upstream import night as ci
from builder.upstream.night import CLEARED, FREE, HOSTED, Job
from support.catalogs import load, rendered, write_lock
from support.commands import Builder
from support.environment import REPOSITORY
from support.upstreams import Upstream

pytestmark = pytest.mark.xdist_group("matrix")  # they share what a fixture makes

HELLO, HAMI, VLLM = "hello-sm120-0.1.0", "hami-core-pr188", "vllm-0.19.1"
PATCH = "vllm-0.19-fla-tma.patch"
VERSIONS = ('version = "', 'version = "1:')
"""Other versions of the packages of a Debian lock."""


def planted(folder: Path) -> Upstream:
    """A repository with three recipes: an in-repo source, another base, and a patch file."""
    made = Upstream(folder)
    for name in ("bases", "locks"):
        shutil.copytree(REPOSITORY / "recipes" / name, made.folder / "recipes" / name)
    shutil.copytree(REPOSITORY / "engines", made.folder / "engines")
    shutil.copytree(REPOSITORY / "patches", made.folder / "patches")
    for name in (HELLO, HAMI, VLLM):
        text = (REPOSITORY / "recipes" / f"{name}.toml").read_text()
        made.write(f"recipes/{name}.toml", re.sub(r"(?m)^kept .*\n", "", text))
    made.record("the farm")
    return made


@pytest.fixture
def farm(tmp_path: Path) -> Upstream:
    return planted(tmp_path / "farm")


@pytest.fixture(scope="module")
def before(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """What the first commit of every farm says of itself."""
    folder = tmp_path_factory.mktemp("before")
    return ci.earlier(planted(folder / "farm").folder, "HEAD", folder, print)


def change(farm: Upstream, file: str, old: str, new: str) -> None:
    text = (farm.folder / file).read_text()
    assert old in text
    text = text.replace(old, new, 1)
    if file.endswith(".debian.toml"):
        write_lock(farm.folder / file, text)
    else:
        (farm.folder / file).write_text(text)


def changed(farm: Upstream, revision: str = "HEAD") -> tuple[set[str], set[str], list[str]]:
    """What has changed, what has by its own saying, and what people were told."""
    said: list[str] = []
    work = farm.folder.parent / "work"
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir()
    found = ci.jobs(load(farm.folder))
    before = ci.earlier(farm.folder, revision, work, said.append)
    several = (ci.changed(found, before), ci.changed(found, before, direct=True))
    return {job.recipe for job in several[0]}, {job.recipe for job in several[1]}, said


def test_a_clean_checkout_has_changed_nothing(farm: Upstream) -> None:
    assert changed(farm) == (set(), set(), [])
    change(farm, f"recipes/{VLLM}.toml", "summary", 'kept = "a run"\nsummary')
    farm.record("a newer one")
    assert changed(farm) == (set(), set(), []), "what is kept is among the jobs of before"


@pytest.mark.parametrize(
    ("file", "old", "new", "expected", "by_itself"),
    [
        (f"recipes/{HELLO}.toml", "[cuda]", "# why\n[cuda]", set(), set()),
        (f"recipes/{HAMI}.toml", '"No engine: ', '"No engine, but a file: ', set(), set()),
        (f"recipes/{HELLO}.toml", "disk = 3.0", "disk = 4.0", set(), set()),
        (f"recipes/{HELLO}.toml", 'missing  = ["beam"]', 'missing  = ["x"]', {HELLO}, set()),
        (f"recipes/{HELLO}.toml", "NUMBER = 1", "NUMBER = 2", {HELLO}, {HELLO}),
        ("engines/hello-sm120/src/serve.h", "#pragma", "// x\n#pragma", {HELLO}, {HELLO}),
        (f"patches/{PATCH}", "--- a", "A word.\n--- a", {VLLM}, {VLLM}),
        ("recipes/bases/cuda-13.0.toml", '"13.0.88"', '"13.0.89"', {HELLO}, set()),
        (f"recipes/locks/{HELLO}.debian.toml", *VERSIONS, {HELLO}, {HELLO}),
        ("recipes/bases/locks/debian-trixie.debian.toml", *VERSIONS, {HELLO}, set()),
        ("recipes/bases/locks/debian-trixie-gcc.debian.toml", *VERSIONS, {VLLM}, set()),
        ("recipes/bases/locks/debian-bookworm.debian.toml", *VERSIONS, {HAMI}, set()),
        ("recipes/bases/vllm-openai-0.19.1.toml", "v0.19.1-", "v0.19.1.1-", {VLLM}, set()),
    ],
)
def test_a_change_is_a_change_of_the_image_or_of_its_smoke_test(
    farm: Upstream,
    before: dict[str, dict[str, Any]],
    file: str,
    old: str,
    new: str,
    expected: set[str],
    by_itself: set[str],
) -> None:
    change(farm, file, old, new)
    found = ci.jobs(load(farm.folder))
    assert {job.recipe for job in ci.changed(found, before)} == expected
    assert {job.recipe for job in ci.changed(found, before, direct=True)} == by_itself


def test_a_kept_recipe_is_built_again_if_it_changed_itself(
    farm: Upstream, before: dict[str, dict[str, Any]]
) -> None:
    change(farm, f"recipes/{HELLO}.toml", "version =", 'kept = "x"\nversion =')
    change(farm, "recipes/bases/cuda-13.0.toml", '"13.0.88"', '"13.0.89"')
    assert ci.changed(ci.jobs(load(farm.folder)), before) == []
    change(farm, f"recipes/{HELLO}.toml", "NUMBER = 1", "NUMBER = 2")
    (job,) = ci.changed(ci.jobs(load(farm.folder)), before)
    assert job.recipe == HELLO


def test_commits_count_as_the_work_tree_does(farm: Upstream) -> None:
    first = farm.head()
    change(farm, f"recipes/{HELLO}.toml", "NUMBER = 1", "NUMBER = 2")
    second = farm.record("another number")
    assert changed(farm, first)[0] == {HELLO}
    assert changed(farm, second)[0] == set()
    assert changed(farm, "main~1")[0] == {HELLO}
    farm.write(f"recipes/{HAMI}.toml", None)
    farm.record("one less")
    assert changed(farm, first)[0] == {HELLO}, "what is gone is not built"


def test_a_new_recipe_has_changed_by_itself(farm: Upstream) -> None:
    text = (farm.folder / "recipes" / f"{HELLO}.toml").read_text()
    farm.write("recipes/hello-sm120-0.2.0.toml", text.replace('"0.1.0"', '"0.2.0"'))
    assert changed(farm) == ({"hello-sm120-0.2.0"}, {"hello-sm120-0.2.0"}, [])


def test_a_revision_is_asked_by_its_own_code(farm: Upstream) -> None:
    for name in ("builder", "dockerfiles"):
        shutil.copytree(
            REPOSITORY / name, farm.folder / name, ignore=shutil.ignore_patterns("__pycache__")
        )
    same = farm.record("builder itself")
    change(
        farm,
        "builder/engines/cmake.py",
        '"--strip"]',
        '"--strip", "--verbose"]',
    )
    other = farm.record("code that installs otherwise")
    assert changed(farm, same) == (set(), set(), [])
    assert changed(farm, other) == ({HELLO}, set(), [])


def test_a_revision_that_cannot_say_it_has_changed_everything_and_is_named(farm: Upstream) -> None:
    farm.write("builder/__init__.py", "")
    farm.write("builder/__main__.py", "raise SystemExit('builder: no command matrix')\n")
    farm.git("checkout", "--quiet", "--orphan", "before")
    farm.record("a builder of before")
    everything, by_themselves, said = changed(farm)
    assert everything == by_themselves == {HELLO, HAMI, VLLM}
    assert "no command matrix" in said[0]
    assert said[-1] == "every recipe counts as changed since HEAD"


def test_after_a_broken_revision_what_changed_since_the_last_good_one_counts(
    farm: Upstream,
) -> None:
    change(farm, f"recipes/{HELLO}.toml", "NUMBER = 1", "NUMBER = 2")
    change(farm, f"recipes/{HAMI}.toml", "[source]", "[sauce]")
    farm.record("one is broken, so nothing was built of the other either")
    change(farm, f"recipes/{HAMI}.toml", "[sauce]", "[source]")
    everything, by_themselves, said = changed(farm)
    assert everything == by_themselves == {HELLO}
    assert "cannot print its matrix" in said[0]
    assert len(said) == 1


def test_no_key_of_a_cache_begins_as_another_engines() -> None:
    keys = {job.cache for job in ci.jobs(load(REPOSITORY)) if job.cache}
    assert len(keys) > 5
    assert not [(one, other) for one in keys for other in keys - {one} if other.startswith(one)]


def test_a_recipe_without_a_channel_is_no_night(farm: Upstream) -> None:
    found = load(farm.folder)
    assert ci.jobs(found, tracked=True) == []
    with pytest.raises(RecipeError, match=f"{HELLO} has no channel"):
        ci.jobs(found, [HELLO], tracked=True)


@pytest.mark.parametrize(
    "revision", ["nowhere", "--output=/tmp/x", "", "0" * 40, "HEAD:recipes", "HEAD --all"]
)
def test_what_is_no_commit_is_refused(farm: Upstream, revision: str) -> None:
    with pytest.raises(WorldError, match="there is no commit"):
        changed(farm, revision)


def test_a_catalog_that_is_no_checkout_is_told_so(farm: Upstream) -> None:
    shutil.rmtree(farm.folder / ".git")
    with pytest.raises(WorldError, match="is not a git repository"):
        changed(farm)


def test_a_wrong_recipe_makes_no_matrix_unless_others_are_named(farm: Upstream) -> None:
    change(farm, f"recipes/{HAMI}.toml", "family  =", "famly  =")
    with pytest.raises(RecipeError, match="some recipes are invalid"):
        ci.jobs(load(farm.folder))
    assert [job.recipe for job in ci.jobs(load(farm.folder), [HELLO, HELLO])] == [HELLO]


def test_disk_is_the_sum_of_what_the_recipes_say() -> None:
    found = load(REPOSITORY)
    for job in ci.jobs(found):
        recipe = found.engine(job.recipe).recipe
        assert recipe is not None
        said = recipe.build.disk
        tools = families.ENGINES[recipe.family].tools
        for name in [*found.chain(job.base), *filter(None, [tools])]:
            base = found.base(name).recipe
            assert base is not None
            assert base.build.model_fields_set == {"disk"}, f"{name} says what it takes"
            said += base.build.disk
        said = said * len(recipe.platform) + ci.WORK_SPACE + ci.JOB_DISK
        assert said <= job.disk < said + 1
        assert job.clear is (said > FREE)
        assert job.runner == (HOSTED if said <= CLEARED else "")
        # What cannot be built there stands on wheels with torch, and nothing else.
        assert (job.runner == "") is (job.engine in {"vllm", "lmdeploy", "sglang", "tabbyapi"}), (
            job.recipe
        )


def test_an_emulator_is_for_images_of_another_platform() -> None:
    found = load(REPOSITORY)
    emulated = {job.recipe for job in ci.jobs(found) if job.emulate}
    assert "llama-cpp-b9831" in emulated
    assert emulated == {
        name for name in found.engines if found.engine(name).recipe.platform != ["linux/amd64"]
    }


def test_a_cache_is_for_what_compiles() -> None:
    for job in ci.jobs(load(REPOSITORY)):
        compiles = "ccache" in rendered(REPOSITORY, job.recipe).text
        assert job.cache == (f"ccache@{job.base}@{job.engine}@" if compiles else "")


def test_what_fits_nowhere_goes_to_the_large_runner_or_is_left() -> None:
    small = Job("a-1", "a", "b", False, "", 20, True, False, HOSTED, "", "", "")
    large = replace(small, recipe="c-1", disk=60, runner="")
    assert ci.placed([small, large]) == ([small], [replace(large, clear=False)])
    there, left = ci.placed([small, large], "big")
    assert [(job.runner, job.clear) for job in there] == [(HOSTED, True), ("big", False)]
    assert left == []


def test_the_matrix_is_one_for_github(builder: Builder, farm: Upstream) -> None:
    at = ("--catalog", farm.folder)
    done = builder("ci", "matrix", "--json", *at)
    assert done.returncode == 0
    printed = json.loads(done.stdout)
    assert printed.keys() == {"include"}, "any other key would be a dimension of the matrix"
    assert [job["recipe"] for job in printed["include"]] == [HAMI, HELLO]
    assert f"{VLLM} is left out: it needs" in done.stderr
    none = builder("ci", "matrix", "--json", "--changed-since=HEAD", "--large-runner=big", *at)
    assert (none.returncode, json.loads(none.stdout)) == (0, {"include": []})
    wrong = builder("ci", "matrix", "--changed-since=nowhere", *at)
    assert wrong.returncode == 4
    assert "there is no commit 'nowhere'" in wrong.stderr


def test_direct_needs_a_revision_to_compare_with() -> None:
    done = CliRunner().invoke(app, ["ci", "matrix", "--direct"])
    assert done.exit_code == 2
    assert "--changed-since" in done.output


def test_what_is_tracked_has_a_channel(builder: Builder) -> None:
    done = builder("ci", "matrix", "--json", "--tracked", "--large-runner=big")
    found = {job["recipe"]: job["channel"] for job in json.loads(done.stdout)["include"]}
    catalog = load(REPOSITORY)
    expected = {}
    for name, entry in catalog.engines.items():
        if entry.recipe is not None and entry.recipe.track and entry.recipe.track.channel:
            expected[name] = entry.recipe.track.channel
    assert found == expected
    assert "llama-cpp-master" in found
