"""Submodules of exact commits, recursively, from real repositories."""

from __future__ import annotations

from pathlib import Path

import pytest

from builder.core.errors import FetchError
from support.mirrored import Mirrored, names
from support.upstreams import Upstream

pytestmark = pytest.mark.usefixtures("no_waiting")


@pytest.fixture
def nested(tmp_path: Path) -> tuple[Upstream, Upstream, Upstream]:
    """An engine that pins deps/inner, which pins vendor/leaf by a relative URL."""
    leaf = Upstream(tmp_path / "served" / "leaf")
    leaf.commit("leaf", **{"leaf.h": "1\n"})
    inner = Upstream(tmp_path / "served" / "inner")
    inner.commit("inner", **{"inner.h": "1\n"})
    inner.git("submodule", "--quiet", "add", "../leaf", "vendor/leaf")
    inner.record("with leaf")
    outer = Upstream(tmp_path / "served" / "outer")
    outer.commit("outer", **{"main.c": "1\n"})
    outer.git("submodule", "--quiet", "add", inner.url, "deps/inner")
    outer.record("with inner")
    leaf.commit("newer", **{"leaf.h": "2\n"})
    inner.commit("newer", **{"inner.h": "2\n"})
    return outer, inner, leaf


def test_submodules_come_recursively_by_the_commits_that_the_tree_pins(
    nested: tuple[Upstream, Upstream, Upstream], mirrored: Mirrored
) -> None:
    tree = mirrored.export(nested[0].url, nested[0].head())
    assert (tree / "deps/inner/inner.h").read_text() == "1\n"
    assert (tree / "deps/inner/vendor/leaf/leaf.h").read_text() == "1\n"
    assert not list(tree.rglob(".git"))


def test_submodules_can_be_left_out(
    nested: tuple[Upstream, Upstream, Upstream], mirrored: Mirrored
) -> None:
    tree = mirrored.export(nested[0].url, nested[0].head(), submodules=False)
    assert names(tree) == [".gitmodules", "main.c"]


@pytest.mark.parametrize("inside", [False, True])
def test_a_submodule_that_has_moved_is_told_where(
    nested: tuple[Upstream, Upstream, Upstream], mirrored: Mirrored, inside: bool
) -> None:
    outer, inner, leaf = nested
    who, path = (leaf, "deps/inner/vendor/leaf") if inside else (inner, "deps/inner")
    moved = who.folder.with_name("renamed")
    who.folder.rename(moved)
    with pytest.raises(FetchError, match="cannot fetch"):
        mirrored.export(outer.url, outer.head())
    urls = {path: f"file://{moved}"}
    if not inside:
        urls["deps/inner/vendor/leaf"] = leaf.url
    tree = mirrored.export(outer.url, outer.head(), moved=urls)
    assert (tree / "deps/inner/vendor/leaf/leaf.h").read_text() == "1\n"


def test_gitlinks_without_gitmodules_are_an_error_that_says_what_to_do(
    nested: tuple[Upstream, Upstream, Upstream], mirrored: Mirrored
) -> None:
    outer = nested[0]
    commit = outer.commit("no .gitmodules", **{".gitmodules": ""})
    with pytest.raises(FetchError, match="has no URL for it") as caught:
        mirrored.export(outer.url, commit)
    assert "deps/inner" in caught.value.what
    assert "submodules = false" in caught.value.hint
    assert "main.c" in names(mirrored.export(outer.url, commit, submodules=False))


def test_a_url_for_a_path_that_is_no_submodule_is_an_error(
    nested: tuple[Upstream, Upstream, Upstream], mirrored: Mirrored
) -> None:
    with pytest.raises(FetchError, match="has no submodule deps/other"):
        mirrored.export(nested[0].url, nested[0].head(), moved={"deps/other": nested[1].url})


@pytest.mark.parametrize(
    "url",
    [
        "ext::sh -c touch% /tmp/owned",
        "--upload-pack=touch /tmp/owned",
        "-x",
        "fd::17",
        "/etc",
        "C:\\x",
        "http://x y",
        "http://x\ny",
    ],
)
def test_gitmodules_cannot_make_git_run_commands(
    nested: tuple[Upstream, Upstream, Upstream], mirrored: Mirrored, url: str
) -> None:
    outer = nested[0]
    outer.git("config", "--file", ".gitmodules", "submodule.deps/inner.url", url)
    commit = outer.record("hostile")
    with pytest.raises(FetchError, match="is not a supported git URL"):
        mirrored.export(outer.url, commit)
