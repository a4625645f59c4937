"""The trials of a server's numbers: models, ways to draft, types of the cache, limits."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass

from builder.checks import help_text
from builder.presets.tiny import TinyModel

TOKENS = 16
PROMPT = "Numbers of a card and of a CPU are equal."
OTHER = "Another text is beside it."
CONTEXT = 1024  # tokens: of both slots together
# How the servers are started so that they answer two at once.
OPTIONS: Mapping[str, Sequence[str]] = {
    "llama-server": ("--parallel", "2", "--no-warmup"),
}
CACHE = "--cache-type-k"
"""llama.cpp, common/arg.cpp: its --help lists the types."""
USUAL_CACHE = "f16"
CACHE_OPTIONS = f"{CACHE} {{kind}} --cache-type-v {{kind}} --flash-attn on"
# On llama.cpp's CPU (as for TRIALS) the logarithms with a cache of a type differ from the
# logarithms with F16 by at most 0.01 (BF16), 0 (F32), 0.03 (Q8_0), 0.16 (Q5_0, Q5_1), 0.36 (Q4_0,
# Q4_1, IQ4_NL).  Card and CPU round the same numbers to the same type, so they differ by less.
CACHE_LIMITS: Mapping[str, float] = {"f32": 0.05, "bf16": 0.05, "q8_0": 0.1}
CACHE_LIMIT = 0.5
OWN_TYPES = {"f32", "bf16", "q8_0", "q4_0", "q4_1", "iq4_nl", "q5_0", "q5_1"}
"""The types of llama.cpp's cache beside F16 (common/arg.cpp, kv_cache_types)."""
# A type of a fork, and one that the engine's CPU does not have, is compared with F16: the CPU of a
# fork may take another type without a word (BeeLlama 0.1.1 answers turbo2 and turbo4 as Q8_0).  The
# limit is by the bits in the name: turbo3.  The best quantizer of so many bits for a normal
# distribution has errors of 0.34, 0.19 and 0.10 of the deviation (J. Max, Quantizing for Minimum
# Distortion, 1960); noise of that size in keys and values makes 1.7, 0.9 and 0.45.  The kernels of
# BeeLlama 0.1.1 make 1.3, 0.74 and 0.34; of its types with a trellis, turbo2_tcq 0.92 and
# turbo3_tcq 0.57.  An attention that gives zeros makes 3.3, values that are noise make 4.2, keys
# that are noise 2.2.
OTHER_LIMITS: Mapping[str, float] = {"2": 3.0, "3": 1.8, "4": 1.0}
OTHER_LIMIT = 3.0
BITS = re.compile(r"[234](?=_|$)")


@dataclass(frozen=True, slots=True)
class Drafting:
    """A way to draft."""

    kind: str
    """A value of ``--spec-type``: engines that do not list it do not draft so."""
    drafter: TinyModel | None = None
    """None: the model's own block drafts."""

    @property
    def options(self) -> list[str]:
        """Arguments of the server; without a least probability every draft is tried.

        In one slot: before its merge, MTP refused more (tools/server/server-context.cpp: "MTP
        currently supports only n_parallel=1").
        """
        drafts = ["--spec-type", self.kind, "--spec-draft-n-max", "3", "--draft-p-min", "0"]
        return [*drafts, "--parallel", "1"]


@dataclass(frozen=True, slots=True)
class ModelTrial:
    """A model, and how far the logarithms of its probabilities may differ."""

    model: TinyModel
    limit: float
    draftings: Sequence[Drafting] = ()


OWN_BLOCK = (Drafting("draft-mtp"), Drafting("mtp"))
# Both sides round the factors of products to eight bits, each in its own blocks.  llama.cpp's CPU
# (xllamacpp 2026.10, AVX2) gives logarithms that differ from what it gives for the same weights in
# F32 by at most 0.004 (F16), 0.09 (Q8_0), 0.06 (Q4_0), 0.12 (Q4_K), 0.09 (Q6_K), 0.15 (qwen35),
# 0.16 (qwen35moe) and 0.11 (gemma4): a limit is at least twice that.  F16 has more, because a card
# adds halves in another order; Q4_0 has more, because ik_llama.cpp 8337e4c on an H100 is 0.21 from
# its CPU.  A mask that takes two bits of Q4_K's scales makes 4.4.  With these
# seeds the text prefers each token by 0.15 at least.
TRIALS = (
    ModelTrial(TinyModel("llama", "F16", 27), 0.05),
    ModelTrial(TinyModel("llama", "Q8_0", 27), 0.2),
    ModelTrial(TinyModel("llama", "Q4_0", 27), 0.3),
    ModelTrial(TinyModel("llama", "Q4_K", 29), 0.3),
    ModelTrial(TinyModel("llama", "Q6_K", 28), 0.2),
    ModelTrial(TinyModel("qwen35", "Q4_K", 5), 0.3, OWN_BLOCK),
    ModelTrial(
        TinyModel("qwen35moe", "Q4_K", 3),
        0.4,
        (*OWN_BLOCK, Drafting("draft-dflash", TinyModel("dflash", "Q8_0", 3, "qwen35moe"))),
    ),
    ModelTrial(
        TinyModel("gemma4", "Q8_0", 28),
        0.3,
        (Drafting("draft-mtp", TinyModel("gemma4-assistant", "Q8_0", 28, "gemma4")),),
    ),
)


def cache_types(help_output: str) -> Set[str]:
    """The types of the cache that an engine lists in its ``--help``."""
    text = help_text.option_text(help_output, CACHE)
    return help_text.values(text or "") or frozenset()


def limit_beside_f16(kind: str) -> float:
    """How far logarithms with a type of the cache may be from the logarithms with F16."""
    if kind in OWN_TYPES:
        return CACHE_LIMITS.get(kind, CACHE_LIMIT)
    bits = BITS.search(kind)
    return OTHER_LIMITS[bits[0]] if bits else OTHER_LIMIT


def drafts(help_output: str) -> frozenset[str]:
    """The ways to draft that an engine lists in its ``--help``."""
    text = help_text.option_text(help_output, "--spec-type")
    found = help_text.values(text or "") or frozenset()
    # In AtomicChat's fork mtp is not the model's own block, but a model that --mtp-head names.
    other = help_text.option_text(help_output, "--mtp-head") is not None
    return found - {"mtp"} if other else found
