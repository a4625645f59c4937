"""The git repositories of a run: their mirrors by URL, and one scratch repository over them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar

from builder.errors import FetchError
from builder.tools.git.arguments import relative_url
from builder.tools.git.errors import GitError
from builder.tools.git.mirrors import Mirror
from builder.tools.git.repository import GITLINK
from builder.tools.git.scratch import Scratch
from builder.tools.git.submodules import submodule_urls
from builder.tools.log import Log

T = TypeVar("T")


class Repositories:
    """Mirrors below ``cache``; trees are made in ``work/scratch.git``."""

    def __init__(self, cache: Path, work: Path, log: Log, *, offline: bool = False) -> None:
        self.scratch = Scratch(work / "scratch.git")
        self.cache = cache
        self.offline = offline
        self.log = log
        self._mirrors: dict[str, Mirror] = {}

    def close(self) -> bool:
        """End all processes that read objects; return whether the scratch repository had any."""
        for mirror in self._mirrors.values():
            mirror.close()
        return self.scratch.close()

    def mirror(self, url: str) -> Mirror:
        """The mirror of a repository."""
        if url not in self._mirrors:
            self._mirrors[url] = Mirror(url, self.cache, self.log, offline=self.offline)
        return self._mirrors[url]

    def repairing(self, work: Callable[[], T]) -> T:
        """Call ``work``, which reads the mirrors; if one turns out to be damaged, once more.

        Also if the damage may be gone: another run may have repaired a mirror that is open here.
        Raises ``GitError`` if git fails on undamaged mirrors.
        """
        try:
            return work()
        except GitError:
            may_be_outdated = self.close()
            repaired = [each.repair() for each in self._mirrors.values()]
            if not any(repaired) and not may_be_outdated:
                raise
        return work()

    def pin(self, url: str, commit: str) -> str:
        """Have a commit with its whole tree; return the tree.  Raises ``FetchError``."""
        mirror = self.mirror(url)
        mirror.pin(commit)
        self.scratch.add_objects(mirror.objects)
        return self.scratch.tree_of(commit)

    def walk(self, url: str, *commits: str) -> None:
        """Have the history of commits.  Raises ``FetchError``."""
        mirror = self.mirror(url)
        mirror.walk(commits)
        self.scratch.add_objects(mirror.objects)

    def contents(self, url: str, names: list[str]) -> None:
        """Have the contents of blobs whose trees are there.  Raises ``FetchError``."""
        missing = self.scratch.missing(name for name in names if name.strip("0"))
        if missing:
            mirror = self.mirror(url)
            mirror.contents(missing)
            self.scratch.add_objects(mirror.objects)

    def changed(self, url: str, old: str, new: str) -> None:
        """Have the contents of all files that differ between two walked commits.

        Raises ``FetchError``.
        """
        pairs = self.scratch.changes(old, new)
        names = [item.object for pair in pairs for item in pair if item.mode != GITLINK]
        self.contents(url, names)

    def tree(
        self, url: str, commit: str, *, submodules: bool = True, moved: Mapping[str, str]
    ) -> str:
        """The tree of a commit with the trees of its submodules, recursively.

        ``moved`` has URLs by path, which override .gitmodules.  Raises ``FetchError`` for
        a submodule without a URL, and for a path in ``moved`` that is not a submodule.
        """
        tree = self.pin(url, commit)
        if not submodules:
            return tree
        used: set[str] = set()
        complete = self._with_submodules(url, tree, "", moved, used)
        unused = sorted(set(moved) - used)
        if unused:
            raise FetchError(
                f"{commit} of {url} has no submodule {', '.join(unused)}",
                hint="correct [source.submodule] in the recipe",
            )
        return complete

    def _with_submodules(
        self, url: str, tree: str, prefix: str, moved: Mapping[str, str], used: set[str]
    ) -> str:
        links = [item for item in self.scratch.items(tree) if item.mode == GITLINK]
        named = submodule_urls(self.scratch, tree) if links else {}
        parts = {}
        for link in links:
            path = prefix + link.path
            if path in moved:
                used.add(path)
                where = moved[path]
            elif link.path in named:
                where = relative_url(named[link.path], url)
            else:
                raise FetchError(
                    f"{url} has a submodule at {path}, and its .gitmodules has no URL for it",
                    f"the commit is {link.object}",
                    "set submodules = false in the recipe if the build does not need it, else "
                    f'submodule = {{ "{path}" = "URL" }}',
                )
            part = self.pin(where, link.object)
            parts[link.path] = self._with_submodules(where, part, f"{path}/", moved, used)
        return self.scratch.with_submodules(tree, parts)
