"""The directory of a bake file: only what builder wrote is replaced, completely or not at all."""

from __future__ import annotations

import hashlib
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from builder.bake import bakefile
from builder.bake.bakefile import CONTEXTS, FILE
from builder.errors import WorldError
from builder.tools.files import require_writable

MARKER = ".builder"
"""An empty file in the contexts directory: builder wrote it and may replace it."""
NEW = ".baking-"


def lock_name(folder: Path) -> str:
    """The name of the lock on a directory, for ``named_lock``."""
    return f"bake-{hashlib.sha256(bytes(folder.resolve())).hexdigest()[:12]}"


def require_usable(folder: Path) -> None:
    """Raise ``WorldError`` where ``folder`` is not writable, or has files of another program."""
    require_writable(folder)
    file, contexts = folder / FILE, folder / CONTEXTS
    written = {contexts: (contexts / MARKER).is_file(), file: bakefile.written_here(file)}
    for path, ours in written.items():
        if path.exists() and not ours:
            raise WorldError(
                f"{path} exists and was not written by builder",
                hint="name an empty or a new directory",
            )


@contextmanager
def replaced(folder: Path) -> Iterator[Path]:
    """A new directory in ``folder`` with empty contexts, for the bake file and its contexts.

    Where the block succeeds, they replace those of ``folder``, the bake file last.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for leftover in folder.glob(f"{NEW}*"):  # of a killed run
        shutil.rmtree(leftover)
    new = Path(tempfile.mkdtemp(prefix=NEW, dir=folder))
    (new / CONTEXTS).mkdir()
    (new / CONTEXTS / MARKER).touch()
    try:
        yield new
        (folder / FILE).unlink(missing_ok=True)
        if (folder / CONTEXTS).exists():
            (folder / CONTEXTS).rename(new / "before")
        (new / CONTEXTS).rename(folder / CONTEXTS)
        (new / FILE).rename(folder / FILE)
    finally:
        shutil.rmtree(new, ignore_errors=True)
