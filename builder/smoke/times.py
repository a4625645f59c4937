"""Check: no time in an image is later than the time of its newest input: none is a clock's."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime

from builder.smoke.context import Context
from builder.smoke.verdict import Check
from builder.tools.docker.engine import epoch_of

MOUNTED = {"/dev", "/proc", "/sys"}
"""BuildKit mounts file systems there; it makes the directories that a published base lacks."""


def check(context: Context) -> Iterator[Check]:
    """The times of the files in the added layers, and of the steps of the history.

    The time of the newest input is the image's own (``created``).  The history of an image
    that extends another one is in part the others'.
    """
    contents, added = context.contents, context.added
    epoch = epoch_of(contents.image.get("created"))
    newer = [
        (file.path, f"{file.path} is of {_shown(file.modified)}")
        for layer in added.layers
        for file in layer.files
        if file.modified > epoch and file.path not in MOUNTED
    ]
    expected, rules = f"none after {_shown(epoch)}", context.rules
    yield rules.check("times", f"files of {len(added.layers)} layers", expected, newer)
    steps = [] if context.subject.extended else contents.image.get("history") or []
    later = [
        ("", f"{str(step.get('created_by', ''))[:60]} is of {step['created']}")
        for step in steps
        if epoch_of(step.get("created")) > epoch
    ]
    yield rules.check("times", f"{len(steps)} steps of the history", expected, later)


def _shown(epoch: int) -> str:
    return f"{datetime.fromtimestamp(epoch, UTC):%Y-%m-%d %H:%M:%S} UTC"
