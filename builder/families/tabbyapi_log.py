"""What TabbyAPI's log says about its start: only where the card has no room."""

from __future__ import annotations

import re

from builder.families.stated import TORCH_NO_ROOM, StatedLog

_NO_ROOM = re.compile(TORCH_NO_ROOM)


def read(log: str) -> StatedLog:
    """The figures of a log."""
    room = _NO_ROOM.search(log)
    return StatedLog(no_room=room[0] if room else "")
