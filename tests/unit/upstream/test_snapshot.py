"""Recipes at one state of their upstream, and how far a channel is behind it."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from builder.core.errors import RecipeError
from builder.core.settings import Settings
from builder.plan.resolver import Resolver
from builder.recipes.edit import NamedCommit
from builder.recipes.schema import Track
from builder.sources import git
from builder.sources.mirrors import Repositories
from builder.upstream import night, update
from builder.upstream import track as tracking
from builder.upstream.night import channels
from builder.upstream.update import version_of
from support import catalogs, upstreams
from support.environment import REPOSITORY

COMMIT = "3f2a91c0d" + "0" * 31
DIGEST = "sha256:" + "ab" * 32


@pytest.mark.parametrize(
    ("target", "version"),
    [
        (NamedCommit("b9831", COMMIT, "tag"), "nightly-b9831"),
        (NamedCommit("v0.1.2", COMMIT, "tag"), "nightly-v0.1.2"),
        (NamedCommit("release/1.0--rc.1_", COMMIT, "tag"), "nightly-release-1.0-rc.1"),
        (NamedCommit("main", COMMIT, "branch"), "nightly-3f2a91c0d"),
        (NamedCommit("x/y:z", DIGEST, "image"), "nightly-abababababab"),
    ],
)
def test_what_a_night_is_called(target: NamedCommit, version: str) -> None:
    assert version_of("nightly", target) == version


def test_a_recipe_is_frozen_at_a_commit() -> None:
    found = catalogs.load(REPOSITORY)
    entry = found.engine("llama-cpp-master")
    target = NamedCommit("b10000", COMMIT, "tag")
    frozen = update.at_commit(found, entry, target, lambda: 10000, version_of("master", target))
    assert frozen.name == "llama-cpp-master-b10000"
    recipe = frozen.catalog.engine("llama-cpp-master-b10000").recipe
    assert recipe is not None
    assert (recipe.source.commit, recipe.source.ref) == (COMMIT, "b10000")  # type: ignore[union-attr]
    assert recipe.llama is not None
    assert recipe.llama.build_number == 10000
    assert recipe.image.tags == ["master-b10000"]
    # Built again years later and pushed, it moves nothing.
    assert recipe.image.moving == []
    assert recipe.track is None
    lines = frozen.entry.text.splitlines()
    assert lines[0].startswith("#:schema")
    assert lines[1] == f"# Frozen from llama-cpp-master: b10000 was {COMMIT}."
    assert git.head_of(REPOSITORY) in lines[2]
    # All else stays, comments included; the catalog that it came from has it not.
    before, after = tomllib.loads(entry.text), tomllib.loads(frozen.entry.text)
    assert before["probe"] == after["probe"]
    assert "who has the image of the night before" in frozen.entry.text
    assert "llama-cpp-master-b10000" not in found.engines
    assert frozen.catalog.problems() == ()


def test_the_channel_stable_takes_releases_alone(
    catalog: Path, upstream: upstreams.Upstream, tmp_path: Path
) -> None:
    for tag in ("b10018", "v0.4.9", "v0.5.0"):
        upstream.commit(tag, **{"a.txt": tag})
        upstream.git("tag", "-a", "-m", tag, tag)
    upstream.commit("later", **{"a.txt": "later"})
    for tag in ("v0.6.0-rc1", "v1.0.0-beta", "b99999999999", "b99999999999x", "gguf-v9.9.9"):
        upstream.git("tag", tag)
    text = (REPOSITORY / "recipes/llama-cpp-stable.toml").read_text()
    text = text.replace("https://github.com/ggml-org/llama.cpp", upstream.url)
    (catalog / "recipes/llama-cpp-stable.toml").write_text(text)
    found = catalogs.load(catalog)
    (channel,) = channels(found, Settings(namespace="me"))
    repositories = Repositories(tmp_path / "cache", tmp_path / "scratch", print)
    target = night.newest(channel, repositories)
    assert (target.name, target.commit) == ("v0.5.0", upstream.git("rev-parse", "v0.5.0^{commit}"))
    frozen = night.frozen_channel(found, channel, target, repositories)
    assert frozen.name == "llama-cpp-stable-v0.5.0"
    resolver = Resolver(frozen.catalog, "amd64", "mmdebstrap")
    plan = resolver.resolve(frozen.name, "linux/amd64")
    assert "-DLLAMA_BUILD_IS_DEV=OFF" in plan.text
    assert "-DLLAMA_BUILD_NUMBER=3" in plan.text


def test_a_recipe_is_frozen_over_an_image(tmp_path: Path) -> None:
    found = catalogs.load(REPOSITORY)
    target = NamedCommit("vllm/vllm-openai:nightly", DIGEST, "image")
    entry = found.engine("vllm-nightly")
    frozen = update.at_image(found, entry, target, version_of("nightly", target))
    assert frozen.name == "vllm-nightly-abababababab"
    base = frozen.catalog.base("vllm-openai-nightly-abababababab").recipe
    assert base is not None
    assert base.published is not None
    assert (base.published.digest, base.published.note) == (DIGEST, None)
    written = frozen.write(tmp_path)
    assert written == tmp_path / "vllm-nightly-abababababab.toml"
    assert set(frozen.files) == {
        "vllm-nightly-abababababab.toml",
        "bases/vllm-openai-nightly-abababababab.toml",
        "bases/debian-trixie-gcc.toml",
        "bases/locks/debian-trixie-gcc.debian.toml",
    }
    assert 'base    = "vllm-openai-nightly-abababababab"' in written.read_text()
    of_git = found.engine("llama-cpp-master")
    with pytest.raises(RecipeError, match=r"cuda-13\.0 is not a published image"):
        update.at_image(found, of_git, target, "x")


def test_the_locks_of_a_recipe_are_kept_with_it() -> None:
    found = catalogs.load(REPOSITORY)
    entry = found.engine("lucebox-f12a87c")
    target = NamedCommit("main", COMMIT, "branch")
    files = update.at_commit(found, entry, target, lambda: 1, "nightly-x").files
    assert set(files) == {
        "lucebox-nightly-x.toml",
        "locks/lucebox-f12a87c.toml",
        "locks/lucebox-f12a87c.debian.toml",
    }
    lock = REPOSITORY / "recipes/locks/lucebox-f12a87c.debian.toml"
    assert files["locks/lucebox-f12a87c.debian.toml"] == lock.read_text()


def test_a_patch_that_goes_leaves_its_probe() -> None:
    found = catalogs.load(REPOSITORY)
    entry = found.engine("atomic-b8995")
    target = NamedCommit("main", COMMIT, "branch")
    frozen = update.at_commit(found, entry, target, lambda: 1, "nightly-x")
    before = frozen.entry.recipe
    assert before is not None
    assert before.patch
    probe = 'probe = { file = "/x/y" }\n'
    text = re.sub(r"no_probe *= .*\n", probe, frozen.entry.text, count=1)
    frozen = update.FrozenRecipe(
        update.frozen_entry(text, frozen.entry.file, type(before)), (), frozen.catalog
    )
    left = update.without(frozen, [0])
    after = left.entry.recipe
    assert after is not None
    assert len(after.patch) == len(before.patch) - 1
    assert left.dropped == (before.patch[0].name,)
    assert len(after.probe) == len(before.probe) + 1
    assert left.catalog.engine(left.name).text == left.entry.text


def test_a_name_that_is_taken_is_refused() -> None:
    found = catalogs.load(REPOSITORY)
    with pytest.raises(RecipeError, match="would be frozen as llama-cpp-b9831, which is a recipe"):
        update.at_commit(
            found,
            found.engine("llama-cpp-master"),
            NamedCommit("b1", COMMIT, "tag"),
            lambda: 1,
            "b9831",
        )


def test_what_was_frozen_and_thawed_can_be_frozen_again() -> None:
    found = catalogs.load(REPOSITORY)
    entry, target = found.engine("llama-cpp-master"), NamedCommit("b9900", COMMIT, "tag")
    frozen = update.at_commit(found, entry, target, lambda: 1, "master-b9900")
    again = update.at_commit(frozen.catalog, entry, target, lambda: 2, "master-b9900")
    assert again.name == frozen.name
    assert again.catalog.engine(again.name).text == again.entry.text != frozen.entry.text


def test_which_channels_there_are() -> None:
    found = catalogs.load(REPOSITORY)
    settings = Settings(namespace="me")
    assert [(each.entry.name, each.repository, each.tag) for each in channels(found, settings)] == [
        ("llama-cpp-master", "me/llama-cpp", "master"),
        ("llama-cpp-stable", "me/llama-cpp", "stable"),
        ("vllm-nightly", "me/vllm-sm120", "nightly"),
    ]
    with pytest.raises(RecipeError, match=r"llama-cpp-b9831 has no channel"):
        channels(found, settings, ["llama-cpp-b9831"])


def test_how_far_a_channel_is_behind(tmp_path: Path) -> None:
    tree = upstreams.Upstream(tmp_path / "upstream")
    day = 86400
    tree.clock = 1_700_000_000  # 2023-11-14
    first = tree.commit("one", a="1\n")
    tree.git("tag", "b9")
    # A branch of old commits that is merged much later.
    tree.git("checkout", "--quiet", "-b", "side")
    tree.commit("old work", b="1\n")
    tree.git("checkout", "--quiet", "main")
    tree.clock += 30 * day
    tree.git("merge", "--quiet", "--no-ff", "side")
    merged = tree.head()
    tree.clock += 5 * day
    tree.git("tag", "b10")
    last = tree.commit("two", a="2\n")
    tree.git("tag", "b11")
    repositories = Repositories(tmp_path / "cache", tmp_path / "work", print)
    branch, tags = Track(branch="main"), Track(tag="b*")

    def lag(commit: str, track: Track) -> tuple[str, int, str]:
        target = tracking.upstream_target(tree.url, track, repositories)
        found = tracking.commits_behind(tree.url, commit, target, track, repositories)
        return found.target.name, found.ahead, found.since

    assert lag(first, branch) == ("main", 3, "2023-12-14")
    assert lag(first, tags) == ("b11", 3, "2023-12-14")  # since b10 was there
    assert lag(merged, tags) == ("b11", 1, "2023-12-19")
    assert lag(last, tags) == ("b11", 0, "")
    assert lag(last, branch) == ("main", 0, "")
