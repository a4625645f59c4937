"""What SGLang's own log says about its start: memory, KV cache, attention, CUDA graphs.

The lines come from SGLang 0.5.23, ``sglang/srt``: ``model_executor/model_runner.py``,
``model_executor/model_runner_components/cuda_graph_setup.py``,
``model_executor/pool_configurator.py``, ``mem_cache/memory_pool.py``, ``managers/scheduler.py``;
its "GB" are GiB.
"""

from __future__ import annotations

import re

from builder.engines.logs import TORCH_NO_ROOM, StatedLog, last, size_of

_SIZE = r"(\d{1,6}\.\d{2}) ?GB"
_WEIGHTS = re.compile(rf"Load weight end\..{{1,300}} mem usage={_SIZE}")
_CACHES = re.compile(r"(?:KV|Mamba) Cache is allocated\. (.{1,400})")
_CACHE = re.compile(rf"size: {_SIZE}")
_TOKENS = re.compile(r"max_total_num_tokens=(\d{1,12}),")
_CONTEXT = re.compile(r" context_len=(\d{1,12}),")
_ATTENTION = re.compile(r"'attention_backend': '(\w{1,40})'")
_GRAPHS = re.compile(rf"Capture .{{1,60}} end\..{{1,400}} mem usage={_SIZE}")
_NO_ROOM = re.compile(
    rf"Not enough memory\. Please try to \w+ --mem-fraction-static|{TORCH_NO_ROOM}"
)
_ERROR = re.compile(
    r"^((?:\w{1,40}\.){0,6}[A-Z]\w{1,40}(?:Error|Exception): .{1,300})", re.MULTILINE
)


def read(log: str) -> StatedLog:
    """The figures of a log: the sums of a model's and its drafter's.

    SGLang also starts with less KV cache than its context needs.
    """
    tokens, context = int(last(_TOKENS, log) or 0), int(last(_CONTEXT, log) or 0)
    room = _NO_ROOM.search(log)
    small = f"a KV cache of {tokens:,} tokens" if 0 < tokens < context else ""
    caches = [size for line in _CACHES.findall(log) for size in _CACHE.findall(line)]
    return StatedLog(
        weights=_sum(_WEIGHTS.findall(log)),
        kv_cache=_sum(caches),
        kv_tokens=tokens or None,
        attention=last(_ATTENTION, log),
        graphs=_sum(_GRAPHS.findall(log)),
        no_room=room[0] if room else small,
        longest=tokens if small else None,
        error=last(_ERROR, log) or "",
    )


def _sum(sizes: list[str]) -> int | None:
    return sum(map(size_of, sizes)) if sizes else None
