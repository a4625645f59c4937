"""What LMDeploy's own log says with TurboMind: the KV cache, and a card without room.

The lines come from LMDeploy 0.18.0, ``src/turbomind``: ``turbomind.cc``, ``core/allocator.cc`` and
``engine/engine.cc`` (``--log-level INFO``).
"""

from __future__ import annotations

import re

from builder.families.stated import GIB, StatedLog, last

_CACHE = re.compile(r"Object cache budget: (\d{1,9}\.\d{2}) MB from free")
_NO_ROOM = re.compile(r"CUDA error: out of memory|cache out of memory, no request can be admitted")


def read(log: str) -> StatedLog:
    """The figures of a log; it does not state the weights."""
    cache, room = last(_CACHE, log), _NO_ROOM.search(log)
    return StatedLog(
        kv_cache=round(float(cache) * GIB / 1024) if cache else None,
        no_room=room[0] if room else "",
    )
