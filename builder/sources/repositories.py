"""The git repositories of a run: their mirrors by URL, and one scratch repository over them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from builder.core.errors import FetchError
from builder.core.log import Log
from builder.sources.arguments import relative_url
from builder.sources.mirrors import Mirror
from builder.sources.repository import GITLINK
from builder.sources.scratch import Scratch
from builder.sources.submodules import submodule_urls


class Repositories:
    """Mirrors below ``cache``; trees are made in ``work/scratch.git``.

    A mirror that turns out to be damaged when it is read is repaired, and read again.
    """

    def __init__(self, cache: Path, work: Path, log: Log, *, offline: bool = False) -> None:
        self.scratch = Scratch(work / "scratch.git")
        self.scratch.heal = self._heal
        self._healing = False
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

    def _heal(self) -> bool:
        """Repair damaged mirrors, and fetch again what this run asked of them; whether that helps.

        It may also help if none is damaged: another run may have repaired one that is open here.
        """
        if self._healing:
            return False
        self._healing = True
        try:
            was_open = self.close()
            repaired = [mirror.repair() for mirror in self._mirrors.values()]
            if not any(repaired) and not was_open:
                return False
            for url, mirror in self._mirrors.items():
                for commit in mirror.pinned:
                    mirror.pin(commit)
                mirror.walk(mirror.walked)
                self.contents(url, [*mirror.blobs])
        finally:
            self._healing = False
        return True

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
