"""A package index with one wheel, and the cache that it is read to; a plugin of pytest."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from builder.plan.inputs import PypiFile
from builder.recipes.locks import PinnedFile
from builder.sources import gather, releases
from builder.sources.mirrors import Repositories
from support.indexes import Index, served, wheel

LIBRARY = os.urandom(6_000_000)
TEXTS = {f"thing/part{n}.py": f"{n} = 1\n".encode() * n for n in range(300)}
BEFORE = {"thing/__init__.py": b"# first\n"}
FILES = {
    **BEFORE,
    "thing/_C.abi3.so": LIBRARY,
    **TEXTS,
    "thing/z.so.1": b"x",
    "thing/é b.py": b"#\n",
}


class Shelf:
    """An index with one wheel, and the cache that it is read to."""

    def __init__(self, index: Index, folder: Path) -> None:
        self.index = index
        self.folder = folder
        self.cache = folder / "cache"
        self.said: list[str] = []
        self.runs = 0

    def put(self, content: bytes | None = None, **about: object) -> PypiFile:
        digest = self.index.put("thing", "1.0", content or wheel("thing", "1.0", FILES), **about)
        return PypiFile(PinnedFile("thing", "1.0", digest), ".", texts_only=True)

    def repositories(self, *, offline: bool = False) -> Repositories:
        self.runs += 1
        self.work = self.folder / f"work-{self.runs}"
        self.work.mkdir()
        return Repositories(self.cache, self.work, self.said.append, offline=offline)

    def to_try(self, source: PypiFile, *, offline: bool = False) -> tuple[str, str]:
        return releases.tree_to_try(source, self.repositories(offline=offline), self.work)

    def to_build(self, source: PypiFile) -> str:
        return gather.tree_of(source, self.repositories(), self.work)

    def kept(self) -> list[str]:
        """The whole files in the cache."""
        return [path.name for path in (self.cache / "pypi").glob("*/*")]


@pytest.fixture
def shelf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shelf]:
    monkeypatch.setattr("time.sleep", lambda _: None)
    with served() as index:
        monkeypatch.setenv("PIP_INDEX_URL", f"{index.url}/simple")
        yield Shelf(index, tmp_path)
