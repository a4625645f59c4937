"""What a recipe names of its source, held against real trees."""

from __future__ import annotations

from pathlib import Path

from builder.recipes.edit import NamedCommit
from builder.sources.mirrors import Repositories
from builder.upstream.track import SourceTree
from builder.upstream.update import absent_paths, absent_submodules, naming
from support.catalogs import load
from support.environment import REPOSITORY
from support.upstreams import Upstream


def test_directories_and_submodules_that_a_source_lacks(tmp_path: Path) -> None:
    recipe = load(REPOSITORY).engine("lucebox-f12a87c").recipe
    assert recipe is not None
    upstream = Upstream(tmp_path / "upstream")
    upstream.commit("one", **{"dflash/CMakeLists.txt": "x\n", "dflash/script": "x\n"})
    repositories = Repositories(tmp_path / "cache", tmp_path, print)
    scratch = repositories.scratch
    scratch.add_objects([upstream.folder / ".git" / "objects"])

    def of(tree: str) -> SourceTree:
        return SourceTree("", NamedCommit("pin", "", "commit"), repositories, tree)

    tree = of(scratch.tree_of(upstream.head()))
    submodule = ("source", "submodule", "dflash/deps/llama.cpp")
    assert [path for path, _ in absent_submodules(recipe, tree)] == [submodule]
    assert [path for path, _ in absent_paths(recipe, tree)] == [
        ("cmake", 1, "source"),
        ("layout", "keep", 0),
    ]
    part = Upstream(tmp_path / "part")
    part.commit("part", **{"CMakeLists.txt": "x\n"})
    upstream.git("submodule", "--quiet", "add", part.url, "dflash/deps/llama.cpp")
    upstream.commit("two", **{"dflash/scripts/server.py": "x\n"})
    two = scratch.tree_of(upstream.head())
    assert [*absent_submodules(recipe, of(two))] == []
    scratch.add_objects([part.folder / ".git" / "objects"])
    whole = scratch.with_submodules(two, {"dflash/deps/llama.cpp": scratch.tree_of(part.head())})
    assert [*absent_paths(recipe, of(whole))] == []


def test_what_still_names_an_old_release() -> None:
    recipe = load(REPOSITORY).engine("vllm-0.19.1").recipe
    assert recipe is not None
    named = {path for path, _ in naming(recipe, "0.19.1")}
    assert {("version",), ("base",), ("overlay", "version"), ("image", "tags", 0)} <= named
    assert not {path[0] for path in named} & {"notes", "cuda"}
    assert [*naming(recipe, "9.1")] == []
