"""Trees that git keeps below the cache: made of files once, there at once the next time.

One bare repository, a ref for each tree, written when all of it is there.
"""

from __future__ import annotations

import shutil
from contextlib import AbstractContextManager
from pathlib import Path

from builder.tools.files import file_lock
from builder.tools.git import executable as git
from builder.tools.git.executable import GitError
from builder.tools.git.scratch import Scratch


class KeptTrees:
    """The trees of the repository at ``folder``, each under a name of letters and digits."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @property
    def objects(self) -> list[Path]:
        """The directories that hold their objects."""
        return [self.folder / "objects"]

    def find(self, name: str) -> str | None:
        """The tree of that name, or None."""
        if not (self.folder / "HEAD").exists():
            return None
        try:
            return git.text(
                self.folder, "rev-parse", "--quiet", "--verify", f"{_ref(name)}^{{tree}}"
            )
        except GitError:
            return None

    def keep(self, name: str, files: Path) -> str:
        """The tree that a directory makes, kept under ``name``; raises ``NoTreeError``."""
        with self._alone():
            for index in self.folder.glob("index-*"):  # of runs that were killed
                index.unlink()
            tree = Scratch(self.folder).take(files)
            git.run(self.folder, "update-ref", _ref(name), tree)
        return tree

    def mend(self) -> bool:
        """Look for damage, and start anew where there is any; return whether there was."""
        if not self.folder.exists() or git.healthy(self.folder):
            return False
        with self._alone():
            shutil.rmtree(self.folder)
        return True

    def _alone(self) -> AbstractContextManager[int]:
        return file_lock(self.folder.with_suffix(".lock"))


def _ref(name: str) -> str:
    return f"refs/trees/{name}"
