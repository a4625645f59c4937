"""Check: no time in an image is later than that of its newest input: none is a clock's."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime

from builder.smoke.contents import Contents
from builder.smoke.verdict import Check
from builder.tools.docker.engine import epoch_of

KIND = "times"
NAMED = 8  # files or steps that a check names
MOUNTED = {"/dev", "/proc", "/sys"}
"""BuildKit mounts file systems there; it makes the directories that a published base lacks."""


def check(added: Contents, contents: Contents, *, extends: bool) -> Iterator[Check]:
    """The times of the files in the added layers, and of the steps of the history.

    The time of the newest input is that of the image itself (``created``).  The history of an image
    that ``extends`` another one is in part that of others.
    """
    epoch = epoch_of(contents.image.get("created"))
    newer = [
        f"{file.path} is of {_shown(file.modified)}"
        for layer in added.layers
        for file in layer.files
        if file.modified > epoch and file.path not in MOUNTED
    ]
    yield _check(f"files of {len(added.layers)} layers", epoch, newer)
    steps = [] if extends else contents.image.get("history") or []
    later = [
        f"{str(step.get('created_by', ''))[:60]} is of {step['created']}"
        for step in steps
        if epoch_of(step.get("created")) > epoch
    ]
    yield _check(f"{len(steps)} steps of the history", epoch, later)


def _check(subject: str, epoch: int, newer: list[str]) -> Check:
    more = f" and {len(newer) - NAMED} more" if len(newer) > NAMED else ""
    found = "; ".join(newer[:NAMED]) + more or "none"
    return Check(KIND, subject, f"none after {_shown(epoch)}", found, not newer)


def _shown(epoch: int) -> str:
    return f"{datetime.fromtimestamp(epoch, UTC):%Y-%m-%d %H:%M:%S} UTC"
