"""Upstreams, and the trees of their commits through a cache of mirrors; a plugin of pytest."""

from __future__ import annotations

from pathlib import Path

import pytest

from builder.sources.mirrors import Mirror, Repositories
from support.upstreams import Upstream


@pytest.fixture
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.sleep", lambda _: None)


@pytest.fixture
def upstream(tmp_path: Path) -> Upstream:
    made = Upstream(tmp_path / "served" / "engine")
    made.write("left-out.txt", "archives leave me out\n")
    made.write(".gitattributes", "left-out.txt export-ignore\n*.txt text eol=crlf\n")
    made.write("program", "#!/bin/sh\n")
    (made.folder / "program").chmod(0o755)
    (made.folder / "link").symlink_to("a.txt")
    made.commit("one", **{"a.txt": "one\n"})
    return made


class Mirrored:
    """A cache of mirrors, and the trees that come out of it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.cache = folder / "cache"
        self.said: list[str] = []
        self.count = 0

    def repositories(self, *, offline: bool = False) -> Repositories:
        self.count += 1
        work = self.folder / f"work-{self.count}"
        work.mkdir()
        return Repositories(self.cache, work, self.said.append, offline=offline)

    def export(
        self,
        url: str,
        commit: str,
        *,
        offline: bool = False,
        submodules: bool = True,
        moved: dict[str, str] | None = None,
    ) -> Path:
        repositories = self.repositories(offline=offline)
        target = self.folder / f"tree-{self.count}"
        tree = repositories.tree(url, commit, submodules=submodules, moved=moved or {})
        repositories.scratch.export(tree, target)
        return target

    def pins(self, url: str) -> Path:
        return Mirror(url, self.cache, self.said.append).pins


@pytest.fixture
def mirrored(tmp_path: Path) -> Mirrored:
    return Mirrored(tmp_path)


def names(tree: Path) -> list[str]:
    return sorted(
        path.relative_to(tree).as_posix()
        for path in tree.rglob("*")
        if path.is_symlink() or not path.is_dir()
    )
