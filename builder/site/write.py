"""Writes the pages into a directory: all of them, or none."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path

from builder.errors import WorldError
from builder.site.facts import Site
from builder.site.pages import pages
from builder.tools.files import require_writable

DATA = "index.json"
MARKER = ".builder-site"
"""An empty file in the directory: builder wrote it and may replace it."""


def write(site: Site, output: Path) -> Mapping[str, int]:
    """Write all pages and ``index.json``; bytes by path.  An earlier site in the directory goes.

    Raises ``WorldError`` where the directory has files of another program, or is not writable.
    """
    _require_ours(output)
    require_writable(output.parent, "name another directory: --output DIR")
    texts = {**pages(site), DATA: json.dumps(site.as_json(), indent=1) + "\n"}
    output.parent.mkdir(parents=True, exist_ok=True)
    new = Path(tempfile.mkdtemp(prefix=f".{output.name}-", dir=output.parent))
    try:
        made = new / "site"
        for name, text in texts.items():
            file = made / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text, "utf-8")
        (made / MARKER).touch()
        if output.exists():
            output.rename(new / "before")
        made.rename(output)
    finally:
        shutil.rmtree(new, ignore_errors=True)
    return {name: len(text.encode()) for name, text in texts.items()}


def _require_ours(output: Path) -> None:
    ours = (output / MARKER).is_file()
    empty = output.is_dir() and not any(output.iterdir())
    if output.exists() and not ours and not empty:
        raise WorldError(
            f"{output} exists and was not written by `builder site`",
            hint="name an empty or a new directory: --output DIR",
        )
