"""What vLLM's own log says about its start: memory, KV cache, attention, CUDA graphs.

The lines come from vLLM 0.20.2: ``vllm/v1/worker/gpu_model_runner.py`` and ``gpu_worker.py``,
``vllm/v1/core/kv_cache_utils.py`` (0.33.0: ``kv_cache_planning.py``, too),
``vllm/platforms/cuda.py``, ``vllm/v1/attention/backends``; PyTorch's line from
``c10/cuda/CUDACachingAllocator.cpp``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

GIB = 1 << 30
ROUNDED = GIB // 200
"""Bytes that a figure of the log may be off: it has two decimals of a GiB."""
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
    r"\(-?\d[\d.]{0,20} GiB\)"
    r"|Tried to allocate \d[\d.]{0,20} [KMG]iB\. GPU \d{1,3} has a total capacity of [\d.]{1,20} "
    r"[MG]iB of which [\d.]{1,20} (?:bytes|[KMG]iB) is free"
)
_ERROR = re.compile(
    r"^\(EngineCore[^)]{0,40}\) (?:ERROR [^]]{1,80}\] )?"
    r"((?:\w{1,40}\.){0,6}[A-Z]\w{1,40}: .{1,300})",
    re.MULTILINE,
)
_LONGEST = re.compile(r"the estimated maximum model length is (\d{1,9})")
_COMPILED = re.compile(r"torch\.compile took (\d{1,6}\.\d{1,9}) s in total")


@dataclass(frozen=True, slots=True)
class VllmLog:
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
        """Bytes by kind."""
        return {"weights": self.weights or 0, "KV cache": max(self.kv_cache or 0, 0)}

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


def read(log: str) -> VllmLog:
    """The figures of a log; where it states one several times, the last counts."""
    tokens = _last(_TOKENS, log)
    flash, seconds = _last(_FLASH, log), _last(_COMPILED, log)
    room, longest = _NO_ROOM.search(log), _last(_LONGEST, log)
    return VllmLog(
        weights=_bytes(_last(_WEIGHTS, log)),
        kv_cache=_bytes(_last(_KV_CACHE, log)),
        kv_tokens=int(tokens.replace(",", "")) if tokens else None,
        attention=_attention(log),
        flash=int(flash) if flash else None,
        graphs=_bytes(_last(_GRAPHS, log)),
        compile_seconds=float(seconds) if seconds else None,
        no_room=room[0] if room else "",
        error=_last(_ERROR, log) or "",
        longest=int(longest) if longest else None,
    )


def _attention(log: str) -> str | None:
    found = ["".join(groups) for groups in _ATTENTION.findall(log)]
    return " and ".join(dict.fromkeys(found)) or None


def _last(pattern: re.Pattern[str], log: str) -> str | None:
    found = pattern.findall(log)
    return str(found[-1]) if found else None


def _bytes(gib: str | None) -> int | None:
    return None if gib is None else round(float(gib) * GIB)


def _gib(size: int) -> str:
    return f"{size / GIB:.2f} GiB"
