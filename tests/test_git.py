"""Exact commits out of real repositories, made here."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from builder.errors import FetchError
from builder.tools import git


def run(folder: Path, *arguments: str) -> str:
    done = subprocess.run(
        ["git", "-c", "user.name=T", "-c", "user.email=t@example.invalid", *arguments],
        cwd=folder,
        check=True,
        capture_output=True,
        text=True,
    )
    return done.stdout.strip()


@pytest.fixture
def upstream(tmp_path: Path) -> Path:
    folder = tmp_path / "upstream"
    folder.mkdir()
    run(folder, "init", "--quiet", "--initial-branch=main")
    (folder / "a.txt").write_bytes(b"one\n")
    (folder / "left-out.txt").write_text("archives leave me out\n")
    (folder / ".gitattributes").write_text("left-out.txt export-ignore\n")
    (folder / "program").write_text("#!/bin/sh\n")
    (folder / "program").chmod(0o755)
    (folder / "link").symlink_to("a.txt")
    run(folder, "add", ".")
    run(folder, "commit", "--quiet", "-m", "one")
    return folder


def test_a_commit_is_exported_whole_and_without_git(upstream: Path, tmp_path: Path) -> None:
    commit = run(upstream, "rev-parse", "HEAD")
    target = tmp_path / "tree"
    git.export(f"file://{upstream}", commit, tmp_path / "cache", target)
    names = sorted(path.name for path in target.iterdir())
    assert names == [".gitattributes", "a.txt", "left-out.txt", "link", "program"]
    assert (target / "link").readlink() == Path("a.txt")
    assert (target / "program").stat().st_mode & 0o111


def test_an_older_commit_is_the_one_that_was_pinned(upstream: Path, tmp_path: Path) -> None:
    commit = run(upstream, "rev-parse", "HEAD")
    (upstream / "a.txt").write_text("two\n")
    run(upstream, "commit", "--quiet", "-am", "two")
    run(upstream, "config", "uploadpack.allowAnySHA1InWant", "true")
    git.export(f"file://{upstream}", commit, tmp_path / "cache", tmp_path / "tree")
    assert (tmp_path / "tree" / "a.txt").read_text() == "one\n"


def test_a_mirrored_commit_needs_no_upstream(upstream: Path, tmp_path: Path) -> None:
    commit = run(upstream, "rev-parse", "HEAD")
    url = f"file://{upstream}"
    git.export(url, commit, tmp_path / "cache", tmp_path / "first")
    upstream.rename(tmp_path / "gone")
    git.export(url, commit, tmp_path / "cache", tmp_path / "second")
    assert (tmp_path / "second" / "a.txt").read_text() == "one\n"


def test_a_commit_that_is_not_there_is_named(upstream: Path, tmp_path: Path) -> None:
    with pytest.raises(FetchError, match="cannot fetch " + "0" * 40):
        git.export(f"file://{upstream}", "0" * 40, tmp_path / "cache", tmp_path / "tree")


def test_a_tree_is_no_commit(upstream: Path, tmp_path: Path) -> None:
    run(upstream, "config", "uploadpack.allowAnySHA1InWant", "true")
    tree = run(upstream, "rev-parse", "HEAD^{tree}")
    with pytest.raises(FetchError, match="is no commit"):
        git.export(f"file://{upstream}", tree, tmp_path / "cache", tmp_path / "tree")


def test_gits_own_configuration_rewrites_urls(
    upstream: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GIT_CONFIG_COUNT", "1")
    monkeypatch.setenv("GIT_CONFIG_KEY_0", f"url.file://{upstream}.insteadOf")
    monkeypatch.setenv("GIT_CONFIG_VALUE_0", "https://git.example.invalid/engine")
    commit = run(upstream, "rev-parse", "HEAD")
    url = "https://git.example.invalid/engine"
    git.export(url, commit, tmp_path / "cache", tmp_path / "tree")
    assert (tmp_path / "tree" / "a.txt").read_text() == "one\n"
