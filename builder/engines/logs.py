"""What a server of PyTorch says about its start, in its own log: memory, KV cache, attention."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

GIB = 1 << 30
ROUNDED = GIB // 200
"""Bytes that a figure of a log may be off: it has two decimals of a GiB."""

TORCH_NO_ROOM = (
    r"Tried to allocate \d[\d.]{0,20} [KMG]iB\. GPU \d{1,3} has a total capacity of [\d.]{1,20} "
    r"[MG]iB of which [\d.]{1,20} (?:bytes|[KMG]iB) is free"
)
"""PyTorch's words where the card refuses memory: ``c10/cuda/CUDACachingAllocator.cpp``."""


@dataclass(frozen=True, slots=True)
class StatedLog:
    """Figures of a log; None: it does not state them.  Sizes are bytes, rounded to 0.01 GiB."""

    weights: int | None = None
    kv_cache: int | None = None
    """The room for the KV cache; negative where there is none."""
    kv_tokens: int | None = None
    attention: str | None = None
    """The attention backends, a model's before its drafter's: ``FLASH_ATTN``."""
    flash: int | None = None
    """The version of FlashAttention."""
    graphs: int | None = None
    """Memory of the captured CUDA graphs; None: none were captured."""
    compile_seconds: float | None = None
    """Time that torch.compile took; None: it did not run."""
    no_room: str = ""
    """What the card had no room for, in its own words; empty: it does not say so."""
    error: str = ""
    """The error that ended its engine, which the server's own error does not repeat."""
    longest: int | None = None
    """Its estimate of the largest context, in tokens, where the KV cache is too small."""

    @property
    def kinds(self) -> dict[str, int]:
        """Bytes by kind, of those that it states."""
        found = {"weights": self.weights, "KV cache": self.kv_cache}
        return {kind: max(size, 0) for kind, size in found.items() if size is not None}

    @property
    def text(self) -> str:
        """The figures in one line; empty where the log has none."""
        parts = [
            f"weights {_gib(self.weights)}" if self.weights is not None else "",
            f"room for a KV cache of {_gib(self.kv_cache)}" if self.kv_cache is not None else "",
            f"{self.kv_tokens:,} tokens" if self.kv_tokens is not None else "",
            self.attention or "",
            f"FlashAttention {self.flash}" if self.flash is not None else "",
            f"CUDA graphs {_gib(self.graphs)}" if self.graphs is not None else "",
            f"torch.compile {self.compile_seconds:.0f} s" if self.compile_seconds else "",
        ]
        return ", ".join(filter(None, parts))


LogReader = Callable[[str], StatedLog]
"""Reads the figures of a log; where it states one several times, the last counts."""


def last(pattern: re.Pattern[str], log: str) -> str | None:
    """The group of the last match; None: there is none."""
    found = pattern.findall(log)
    return str(found[-1]) if found else None


def size_of(gib: str) -> int:
    """Bytes of a figure in GiB."""
    return round(float(gib) * GIB)


def _gib(size: int) -> str:
    return f"{size / GIB:.2f} GiB"


# What vLLM's own log says about its start: memory, KV cache, attention, CUDA graphs.
#
# The lines come from vLLM 0.20.2: ``vllm/v1/worker/gpu_model_runner.py`` and ``gpu_worker.py``,
# ``vllm/v1/core/kv_cache_utils.py`` (0.33.0: ``kv_cache_planning.py``, too),
# ``vllm/platforms/cuda.py``, ``vllm/v1/attention/backends``.

_SIZE = r"(-?\d{1,6}\.\d{1,9}) GiB"
_WEIGHTS = re.compile(rf"Model loading took {_SIZE}")
_KV_CACHE = re.compile(rf"Available KV cache memory: {_SIZE}")
_TOKENS = re.compile(r"GPU KV cache size: (\d[\d,]{0,20}) tokens")
_ATTENTION = re.compile(
    r"Using (?:(\w{1,60}) attention backend|AttentionBackendEnum\.(\w{1,60}) backend\.)"
)
_FLASH = re.compile(r"Using FlashAttention version (\d)")
_GRAPHS = re.compile(rf"Graph capturing finished in \d+ secs, took {_SIZE}")
_NO_ROOM = re.compile(
    r"No available memory for the cache blocks"
    r"|\d[\d.]{0,20} GiB KV cache is needed, which is larger than the available KV cache memory "
    rf"\(-?\d[\d.]{{0,20}} GiB\)|{TORCH_NO_ROOM}"
)
_ENGINE = r"^\(EngineCore[^)]{0,40}\) (?:ERROR [^]]{1,80}\] )?"
_ERROR = re.compile(rf"{_ENGINE}((?:\w{{1,40}}\.){{0,6}}[A-Z]\w{{1,40}}: .{{1,300}})", re.MULTILINE)
_REASONS = 8  # lines that may follow an error
_LONGEST = re.compile(r"the estimated maximum model length is (\d{1,9})")
_COMPILED = re.compile(r"torch\.compile took (\d{1,6}\.\d{1,9}) s in total")


def read_vllm(log: str) -> StatedLog:
    """The figures of a log; where it states one several times, the last counts."""
    tokens = last(_TOKENS, log)
    flash, seconds = last(_FLASH, log), last(_COMPILED, log)
    room, longest = _NO_ROOM.search(log), last(_LONGEST, log)
    return StatedLog(
        weights=_size(_WEIGHTS, log),
        kv_cache=_size(_KV_CACHE, log),
        kv_tokens=int(tokens.replace(",", "")) if tokens else None,
        attention=_attention(log),
        flash=int(flash) if flash else None,
        graphs=_size(_GRAPHS, log),
        compile_seconds=float(seconds) if seconds else None,
        no_room=room[0] if room else "",
        error=_error(log),
        longest=int(longest) if longest else None,
    )


def _error(log: str) -> str:
    """The last error; one that ends with a colon goes on in the engine's next lines."""
    *_, found = (None, *_ERROR.finditer(log))
    if found is None:
        return ""
    lines = [found[1].strip()]
    if lines[0].endswith(":"):
        for line in log[found.end() :].splitlines()[1 : _REASONS + 1]:
            start = re.match(_ENGINE, line)
            if start is None:
                break
            lines.append(line[start.end() :].strip())
    return "\n".join(lines)


def _attention(log: str) -> str | None:
    found = ["".join(groups) for groups in _ATTENTION.findall(log)]
    return " and ".join(dict.fromkeys(found)) or None


def _size(pattern: re.Pattern[str], log: str) -> int | None:
    found = last(pattern, log)
    return None if found is None else size_of(found)


# What SGLang's own log says about its start: memory, KV cache, attention, CUDA graphs.
#
# The lines come from SGLang 0.5.23, ``sglang/srt``: ``model_executor/model_runner.py``,
# ``model_executor/model_runner_components/cuda_graph_setup.py``,
# ``model_executor/pool_configurator.py``, ``mem_cache/memory_pool.py``, ``managers/scheduler.py``;
# its "GB" are GiB.

_SGLANG_SIZE = r"(\d{1,6}\.\d{2}) ?GB"
_SGLANG_WEIGHTS = re.compile(rf"Load weight end\..{{1,300}} mem usage={_SGLANG_SIZE}")
_CACHES = re.compile(r"(?:KV|Mamba) Cache is allocated\. (.{1,400})")
_CACHE = re.compile(rf"size: {_SGLANG_SIZE}")
_SGLANG_TOKENS = re.compile(r"max_total_num_tokens=(\d{1,12}),")
_CONTEXT = re.compile(r" context_len=(\d{1,12}),")
_SGLANG_ATTENTION = re.compile(r"'attention_backend': '(\w{1,40})'")
_SGLANG_GRAPHS = re.compile(rf"Capture .{{1,60}} end\..{{1,400}} mem usage={_SGLANG_SIZE}")
_SGLANG_NO_ROOM = re.compile(
    rf"Not enough memory\. Please try to \w+ --mem-fraction-static|{TORCH_NO_ROOM}"
)
_SGLANG_ERROR = re.compile(
    r"^((?:\w{1,40}\.){0,6}[A-Z]\w{1,40}(?:Error|Exception): .{1,300})", re.MULTILINE
)


def read_sglang(log: str) -> StatedLog:
    """The figures of a log: the sums of a model's and its drafter's.

    SGLang also starts with less KV cache than its context needs.
    """
    tokens, context = int(last(_SGLANG_TOKENS, log) or 0), int(last(_CONTEXT, log) or 0)
    room = _SGLANG_NO_ROOM.search(log)
    small = f"a KV cache of {tokens:,} tokens" if 0 < tokens < context else ""
    caches = [size for line in _CACHES.findall(log) for size in _CACHE.findall(line)]
    return StatedLog(
        weights=_sum(_SGLANG_WEIGHTS.findall(log)),
        kv_cache=_sum(caches),
        kv_tokens=tokens or None,
        attention=last(_SGLANG_ATTENTION, log),
        graphs=_sum(_SGLANG_GRAPHS.findall(log)),
        no_room=room[0] if room else small,
        longest=tokens if small else None,
        error=last(_SGLANG_ERROR, log) or "",
    )


def _sum(sizes: list[str]) -> int | None:
    return sum(map(size_of, sizes)) if sizes else None


# What LMDeploy's own log says with TurboMind: the KV cache, and a card without room.
#
# The lines come from LMDeploy 0.18.0, ``src/turbomind``: ``turbomind.cc``, ``slab.h``,
# ``allocator.cc`` and ``engine.cc`` (``--log-level INFO``).

_LMDEPLOY_CACHE = re.compile(r"Object cache budget: (\d{1,9}\.\d{2}) MB from free")
# The cache consists of slabs; an object in them is a block of some tokens.
_SLABS = re.compile(r"slab_size ([1-9]\d{0,14}), object_size \d{1,15}, object_count (\d{1,9}),")
_BLOCK = re.compile(r"cache_block_seq_len=(\d{1,9})")
_CACHE_FULL = "cache out of memory, no request can be admitted"
_LMDEPLOY_NO_ROOM = re.compile(rf"CUDA error: out of memory|{_CACHE_FULL}")


def read_lmdeploy(log: str) -> StatedLog:
    """The figures of a log; it does not state the weights."""
    cache, room = last(_LMDEPLOY_CACHE, log), _LMDEPLOY_NO_ROOM.search(log)
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
