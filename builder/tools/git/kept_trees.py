"""Trees kept in the cache: made of a directory once, found at once the next time.

One bare repository with a ref for each tree, which is written last.
"""

from __future__ import annotations

import shutil
from contextlib import AbstractContextManager
from pathlib import Path

from builder.tools.files import file_lock
from builder.tools.git.command import is_intact
from builder.tools.git.errors import GitError
from builder.tools.git.repository import GitRepository
from builder.tools.git.scratch import Scratch


class KeptTrees:
    """The trees of the repository at ``folder``, each under a name of letters and digits."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._repository = GitRepository(folder)

    @property
    def objects(self) -> list[Path]:
        """The directories that hold their objects."""
        return [self.folder / "objects"]

    def close(self) -> None:
        """End the processes that read its objects."""
        self._repository.close()

    def find(self, name: str) -> str | None:
        """The tree of that name, or None."""
        if not (self.folder / "HEAD").exists():
            return None
        try:
            return self._repository.text(
                "rev-parse", "--quiet", "--verify", f"{_ref(name)}^{{tree}}"
            )
        except GitError:
            return None

    def keep(self, name: str, files: Path) -> str:
        """The tree of a directory, kept under ``name``; raises ``NoTreeError``."""
        with self._locked():
            for index in self.folder.glob("index-*"):  # of runs that were killed
                index.unlink()
            scratch = Scratch(self.folder)
            tree = scratch.tree_from(files)
            scratch.text("update-ref", _ref(name), tree)
        return tree

    def repair(self) -> bool:
        """Check the repository, and delete it if damaged; return whether it was."""
        if not self.folder.exists() or is_intact(self.folder):
            return False
        with self._locked():
            self.close()
            shutil.rmtree(self.folder)
        return True

    def _locked(self) -> AbstractContextManager[int]:
        return file_lock(self.folder.with_suffix(".lock"))


def _ref(name: str) -> str:
    return f"refs/trees/{name}"
