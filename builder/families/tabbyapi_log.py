"""What TabbyAPI's log says about its start: the KV cache in tokens, and a card without room.

The lines come from TabbyAPI's ``backends/exllamav3/model.py``; it states no sizes.
"""

from __future__ import annotations

import re

from builder.families.stated import TORCH_NO_ROOM, StatedLog, last

_TOKENS = re.compile(r"Using configured cache_size: (\d{1,12}) tokens\.")
# The second in ExLlamaV3's model/model_ls.py, where a part of the model does not fit.
_NO_ROOM = re.compile(rf"{TORCH_NO_ROOM}|Insufficient VRAM in split for model and cache")
LOADED = "Model successfully loaded."


def read(log: str) -> StatedLog:
    """The figures of a log."""
    room = _NO_ROOM.search(log)
    tokens = last(_TOKENS, log) if LOADED in log else None
    return StatedLog(kv_tokens=int(tokens) if tokens else None, no_room=room[0] if room else "")
