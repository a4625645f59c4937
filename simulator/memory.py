"""Device memory by purpose, from the functions that asked for it and from engines' logs."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from simulator.figures import MIB, mib
from simulator.frames import Frame
from simulator.report import Report

Kind = Literal["weights", "KV cache", "compute", "drafter", "projector", "other"]
KINDS: tuple[Kind, ...] = ("weights", "KV cache", "compute", "drafter", "projector", "other")
BLOCK = 2 * MIB  # large allocations are multiples of it

# Functions of llama.cpp (src/llama-model.cpp, src/llama-kv-cache.cpp, src/llama-memory-*.cpp,
# ggml/src/ggml-alloc.c, ggml/src/ggml-backend.cpp, ggml/src/ggml-cuda/, tools/mtmd/clip.cpp) and
# its forks.  All that a drafter or a projector asks for counts as drafter or projector
# (common/speculative.cpp: also a model's own MTP context); else the first pattern that the
# innermost frame matches decides, else the next frame's.
OWNERS: Sequence[tuple[str, Kind]] = (
    (r"^common_speculative", "drafter"),
    (r"^(clip|mtmd)_", "projector"),
)
FUNCTIONS: Sequence[tuple[str, Kind]] = (
    (r"^llama_(kv_cache|memory_|kv_self|ssm)", "KV cache"),
    (r"load_tensors|^llama_model_load|^llama_model_loader|^llama_adapter", "weights"),
    (r"^ggml_(gallocr|backend_sched|cuda_|backend_cuda_graph|backend_graph)", "compute"),
    (r"^llama_context|^llama_(de|en)code", "compute"),
    # ik_llama.cpp: the cache is made in a static function of this one's (src/llama.cpp).
    (r"^llama_init_from_model", "KV cache"),
)
# llama.cpp's logs: "CUDA0 model buffer size = 10038.14 MiB"; RS: the state of recurrent layers.
LOGGED = re.compile(
    r"CUDA(\d{1,3}) +(model|KV|RS|compute) buffer size *= *(\d{1,9}(?:\.\d{1,9})?) MiB"
)
OF_LOG: Mapping[str, Kind] = {
    "model": "weights",
    "KV": "KV cache",
    "RS": "KV cache",
}


@dataclass(frozen=True, slots=True)
class Use:
    """Bytes of one kind; ``count`` is the number of allocations."""

    at_peak: int = 0
    live: int = 0
    count: int = 0


def kind_of(frames: Sequence[Frame]) -> Kind:
    """The purpose of an allocation with this stack."""
    for patterns, sought in ((OWNERS, reversed(frames)), (FUNCTIONS, iter(frames))):
        for frame in sought:
            for pattern, kind in patterns:
                if re.search(pattern, frame.function):
                    return kind
    return "other"


def by_kind(report: Report, stacks: Sequence[Sequence[Frame]]) -> dict[Kind, Use]:
    """The memory of all cards by kind, without the contexts; ``stacks`` are the report's, named."""
    found: dict[Kind, Use] = dict.fromkeys(KINDS, Use())
    for each in report.allocations:
        kind = kind_of(stacks[each.stack])
        if kind == "other" and each.function.startswith("cublas"):
            kind = "compute"  # the workspace of a handle
        before = found[kind]
        found[kind] = Use(
            before.at_peak + each.at_peak, before.live + each.live, before.count + each.count
        )
    return {kind: use for kind, use in found.items() if use.count}


def with_rest(report: Report, stated: Mapping[str, int]) -> dict[str, int]:
    """The memory that an engine's log states by kind, and the rest that was in use at the peak."""
    allocated = sum(each.at_peak for each in report.allocations)
    return {**stated, "other": max(allocated - sum(stated.values()), 0)}


def logged(log: str) -> dict[Kind, int]:
    """Bytes by kind, as an engine's own log states them; empty where it states none.

    The largest buffer for computing of each card counts: llama.cpp states them again when
    it reserves anew, and before it loads, for its own estimate (common/fit.cpp), where the weights
    and the cache have no bytes.
    """
    found: dict[Kind, int] = {}
    compute: dict[str, int] = {}
    for card, name, text in LOGGED.findall(log):
        size = round(float(text) * MIB)
        if name == "compute":
            compute[card] = max(size, compute.get(card, 0))
        else:
            found[OF_LOG[name]] = found.get(OF_LOG[name], 0) + size
    return found | ({"compute": sum(compute.values())} if compute else {})


def disagreements(found: Mapping[Kind, Use], stated: Mapping[Kind, int]) -> list[str]:
    """Where the log states more than was allocated, or, for weights and cache, less.

    Each allocation may be rounded up to a block.  The log does not tell a drafter's buffers from
    the model's: the drafter's memory counts as any of them.  More than the stated memory for
    computing is no disagreement: buffers are replaced, and pools grow at run time.
    """
    wrong = []
    for kind, size in stated.items():
        use, drafter = found.get(kind, Use()), found.get("drafter", Use())
        most = size + (use.count + 1) * BLOCK
        fixed = kind in {"weights", "KV cache"}
        lacking = use.at_peak + drafter.at_peak < size - MIB // 100
        if lacking or (fixed and use.at_peak > most):
            wrong.append(f"{kind}: {mib(use.at_peak)}, its log states {mib(size)}")
    return wrong
