"""The objects of a repository, which GitPython reads from one ``git cat-file --batch``.

Import it late: GitPython takes 0.1 s, and runs ``git version``, or raises ``ImportError``.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from git import Git
from git.objects.fun import tree_entries_from_data

from builder.sources import git


class ObjectReader(Git):
    """Reads the objects of the repository at ``folder``; a process starts at the first use.

    All methods raise ``ValueError`` and ``OSError``.  Not a ``Repo``, which takes the directories
    that GIT_COMMON_DIR and GIT_OBJECT_DIRECTORY name for its own.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__(os.fspath(folder))
        self.folder = folder

    def execute(self, words: Sequence[str], **_: Any) -> Any:  # type: ignore[override]
        """Start a process that stays: all that is asked of this ``Git``.

        GitPython's own passes the environment of this process on: see ``git.run``.
        """
        return self.AutoInterrupt(git.start(self.folder, *words[1:]), words)

    @property
    def processes(self) -> Iterator[subprocess.Popen[bytes]]:
        """The processes that were started, whether they still run or not."""
        for reader in (self.cat_file_all, self.cat_file_header):
            if reader is not None and reader.proc is not None:
                yield reader.proc

    def required(self, name: str) -> tuple[str, str]:
        """The full name and the kind of an object."""
        full, kind, _ = self.get_object_header(name)
        return os.fsdecode(full), os.fsdecode(kind)

    def header(self, name: str) -> tuple[str, str] | None:
        """The same; None if there is no such object, or several begin with an abbreviation."""
        try:
            return self.required(name)
        except ValueError as error:
            if "could not be resolved" in str(error):
                return None
            raise  # the process has ended

    def content(self, name: str, kind: str) -> bytes:
        """The content of an object of that kind, all of it."""
        _, found, size, content = self.get_object_data(name)
        if os.fsdecode(found) != kind or len(content) != size:
            raise ValueError(f"{name} is not a complete {kind}")
        return content

    def entries(self, tree: str) -> dict[str, tuple[str, str]]:
        """The entries of a tree or of a commit's tree: mode ("100644") and object by name."""
        found = tree_entries_from_data(self.content(f"{tree}^{{tree}}", "tree"))
        return {name: (f"{mode:06o}", key.hex()) for key, mode, name in found}
