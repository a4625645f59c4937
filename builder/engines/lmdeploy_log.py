"""What LMDeploy's own log says with TurboMind: the KV cache, and a card without room.

The lines come from LMDeploy 0.18.0, ``src/turbomind``: ``turbomind.cc``, ``slab.h``,
``allocator.cc`` and ``engine.cc`` (``--log-level INFO``).
"""

from __future__ import annotations

import re

from builder.engines.logs import GIB, StatedLog, last

_CACHE = re.compile(r"Object cache budget: (\d{1,9}\.\d{2}) MB from free")
# The cache consists of slabs; an object in them is a block of some tokens.
_SLABS = re.compile(r"slab_size ([1-9]\d{0,14}), object_size \d{1,15}, object_count (\d{1,9}),")
_BLOCK = re.compile(r"cache_block_seq_len=(\d{1,9})")
_CACHE_FULL = "cache out of memory, no request can be admitted"
_NO_ROOM = re.compile(rf"CUDA error: out of memory|{_CACHE_FULL}")


def read(log: str) -> StatedLog:
    """The figures of a log; it does not state the weights."""
    cache, room = last(_CACHE, log), _NO_ROOM.search(log)
    kv_cache = round(float(cache) * GIB / 1024) if cache else None
    tokens = _tokens(log, kv_cache) if kv_cache else None
    return StatedLog(
        kv_cache=kv_cache,
        kv_tokens=tokens,
        no_room=room[0] if room else "",
        longest=tokens if _CACHE_FULL in log else None,
    )


def _tokens(log: str, kv_cache: int) -> int | None:
    """The tokens that a cache of so many bytes holds; None for objects of several kinds."""
    slabs, block = _SLABS.findall(log), last(_BLOCK, log)
    if len(slabs) != 1 or block is None:
        return None
    size, count = map(int, slabs[0])
    return kv_cache // size * count * int(block)
