"""An upstream, and patches on the tree of its pin; a plugin of pytest."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from builder.plan.inputs import PlannedPatch
from builder.recipes.patches import FilePatch, Pick, PickPatch, PullPatch
from builder.sources.mirrors import Repositories
from builder.sources.patches import PatchContext, apply_all
from support.upstreams import Upstream, numbered


class Bench:
    """An upstream with a file of forty lines, and a workshop over its mirror."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.upstream = Upstream(folder / "upstream")
        self.said: list[str] = []
        self.pin = self.upstream.commit("one", **{"a.c": numbered(40), "b.c": "b\n"})
        self.count = 0

    def context(self, *, offline: bool = False) -> PatchContext:
        self.count += 1
        work = self.folder / f"work-{self.count}"
        work.mkdir()
        repositories = Repositories(self.folder / "cache", work, self.said.append, offline=offline)
        return PatchContext(repositories, work, None, self.said.append)

    def apply(self, *patches: PlannedPatch, offline: bool = False) -> Path:
        """The tree of the pin with patches, on disk."""
        context = self.context(offline=offline)
        tree = context.repositories.tree(self.upstream.url, self.pin, moved={})
        tree = apply_all(context, tree, patches)
        target = self.folder / f"tree-{self.count}"
        context.scratch.export(tree, target)
        return target

    def file(self, text: str | bytes, name: str = "x.patch", **options: Any) -> PlannedPatch:
        content = text.encode() if isinstance(text, str) else text
        patch = FilePatch(file=name, why="a test", **options)
        return PlannedPatch(patch, content=content)

    def pull(self, base: str, head: str, **options: Any) -> PlannedPatch:
        patch = PullPatch(pull=1, base=base, head=head, why="a test", **options)
        return PlannedPatch(patch, self.upstream.url)

    def pick(self, after: str, to: str, **options: Any) -> PlannedPatch:
        patch = PickPatch(pick=Pick(after=after, to=to), why="a test", **options)
        return PlannedPatch(patch, self.upstream.url)

    def diff(self, **files: str | bytes | None) -> bytes:
        """The diff that a change of the pin's files makes."""
        self.upstream.git("checkout", "--quiet", "--detach", self.pin)
        commit = self.upstream.commit("change", **files)
        text = self.upstream.raw("diff", "--binary", self.pin, commit)
        self.upstream.git("checkout", "--quiet", "main")
        return text


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)
