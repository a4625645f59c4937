"""What vLLM's own log says about its start: memory, KV cache, attention, CUDA graphs.

The lines come from vLLM 0.20.2: ``vllm/v1/worker/gpu_model_runner.py`` and ``gpu_worker.py``,
``vllm/v1/core/kv_cache_utils.py`` (0.33.0: ``kv_cache_planning.py``, too),
``vllm/platforms/cuda.py``, ``vllm/v1/attention/backends``.
"""

from __future__ import annotations

import re

from builder.engines.logs import TORCH_NO_ROOM, StatedLog, last, size_of

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


def read(log: str) -> StatedLog:
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
