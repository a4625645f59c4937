"""What LMDeploy's own log says about its start, with TurboMind: the KV cache.

The lines come from LMDeploy 0.18.0: ``src/turbomind/turbomind.cc`` (``--log-level INFO``).
"""

from __future__ import annotations

import re

from builder.families.stated import GIB, StatedLog, last

_CACHE = re.compile(r"Object cache budget: (\d{1,9}\.\d{2}) MB from free")


def read(log: str) -> StatedLog:
    """The figures of a log; it does not state the weights."""
    cache = last(_CACHE, log)
    return StatedLog(kv_cache=round(float(cache) * GIB / 1024) if cache else None)
