"""Writes the pages into a directory: all of them, or none."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Collection, Mapping
from contextlib import suppress
from pathlib import Path

from builder.errors import WorldError
from builder.site.facts import Site
from builder.site.pages import pages
from builder.tools.files import is_disk_full, require_writable

DATA = "index.json"
MARKER = ".builder-site"
"""A file of the directory that lists the files of the site, a path a line."""
ANOTHER = "name another directory: --output DIR"


def write(site: Site, output: Path) -> Mapping[str, int]:
    """Write all pages and ``index.json``; bytes by path.

    Of an earlier site in the directory, the files that are no longer needed go; those of others,
    such as ``.git`` or ``CNAME``, stay.  No page is replaced before all new ones are written.
    Raises ``WorldError`` where the directory has files and no site, or is not writable.
    """
    before = _earlier(output)
    require_writable(output, ANOTHER)
    texts = {**pages(site), DATA: json.dumps(site.as_json(), indent=1) + "\n"}
    try:
        _write(texts, before, output)
    except OSError as error:
        if is_disk_full(error):
            raise
        raise WorldError(
            f"cannot write to the directory {output}", error.strerror or str(error), ANOTHER
        ) from error
    return {name: len(text.encode()) for name, text in texts.items()}


def _write(texts: Mapping[str, str], before: Collection[str], output: Path) -> None:
    output.mkdir(parents=True, exist_ok=True)
    marker = output / MARKER
    if not marker.exists():
        marker.touch()  # a run that is killed leaves a directory that the next one accepts
    for left in output.glob(f"{MARKER}-*"):
        shutil.rmtree(left, ignore_errors=True)
    new = Path(tempfile.mkdtemp(prefix=f"{MARKER}-", dir=output))
    try:
        for name, text in texts.items():
            file = new / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text, "utf-8")
        marker.write_text("".join(f"{name}\n" for name in sorted({*before, *texts})), "utf-8")
        for name in texts:
            (output / name).parent.mkdir(parents=True, exist_ok=True)
            (new / name).replace(output / name)
        for name in {*before} - {*texts}:
            (output / name).unlink(missing_ok=True)
            with suppress(OSError):  # it has other files
                (output / name).parent.rmdir()
        marker.write_text("".join(f"{name}\n" for name in sorted(texts)), "utf-8")
    finally:
        shutil.rmtree(new, ignore_errors=True)


def _earlier(output: Path) -> list[str]:
    """The files of the earlier site in a directory; empty where it is new, or empty."""
    try:
        if (output / MARKER).is_file():
            names = (output / MARKER).read_text("utf-8").splitlines()
            return [each for each in names if ".." not in each and not each.startswith("/")]
        taken = output.exists() and any(output.iterdir())
    except (OSError, UnicodeDecodeError) as error:
        raise WorldError(f"cannot read the directory {output}", str(error), ANOTHER) from error
    if taken:
        raise WorldError(
            f"{output} exists and was not written by `builder site`",
            hint="name an empty or a new directory: --output DIR",
        )
    return []
