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
