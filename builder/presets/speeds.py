"""Computed speeds: the bytes that a card reads in a second, over the bytes that a token needs.

A step reads the weights that are active, the cache and the drafter, and gives one token, or as many
as the engine accepts.  It takes the time of these bytes at a part of the card's bandwidth, which is
fitted to the published runs, and a fixed time.  ``studies/speeds.py`` fits the figures and writes
studies/speeds.md: the errors, and the runs that do not fit.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from builder.presets import reads
from builder.presets import shape as shapes
from builder.presets.command import groups, option_of
from builder.presets.schema import Preset
from builder.presets.shape import Shape

STEADY = 0.74
"""Part of the bandwidth that vLLM reaches, and llama.cpp for one token of a dense model."""
UNEVEN = 0.35
"""Part of the bandwidth that llama.cpp and its forks reach with experts or with drafts."""
FIXED = 2.1e-3
"""Seconds of a step beside the bytes."""
INTERVAL = (0.83, 1.35)
"""Nine of ten published speeds are between these multiples of the computed speed."""
FILLED = 1000
"""Tokens in the cache: the middle of an answer of 2000 tokens, as most published runs have it."""

BITS = {"q8_0": 8.5, "q5_1": 6, "q5_0": 5.5, "q4_1": 5, "q4_0": 4.5, "fp8": 8, "fp8_e5m2": 8}
"""Bits of a number in the cache, by the type's name; other types count with 16."""
SIXTEEN = {"auto", "f16", "bf16", "float16", "bfloat16"}
DRAFTED = ("--spec-draft-n-max", "--draft-max")
BLOCK = "--draft-block-size"  # of AtomicChat's fork: the drafted tokens and the one before them
ACTIVE = re.compile(r"(\d+(?:\.\d+)?)B-A(\d+(?:\.\d+)?)B", re.I)


class NotComputedError(ValueError):
    """A fact is missing without which no speed can be computed; the text says which."""


@dataclass(frozen=True, slots=True)
class Computed:
    """A computed speed: tokens in a second of one stream, after a short prompt."""

    tokens_per_second: float
    interval: tuple[float, float]
    """Nine of ten runs that were compared are within it."""

    @property
    def shown(self) -> str:
        """With the two digits that are worth showing: "~95 (83-130)"."""
        speed, low, high = (
            f"{float(f'{each:.2g}'):g}" for each in (self.tokens_per_second, *self.interval)
        )
        return f"~{speed} ({low}-{high})"


@dataclass(frozen=True, slots=True)
class DecodeStep:
    """One pass of the model, and of its drafter."""

    size: float
    """Bytes that it reads from the card's memory."""
    uneven: bool
    """Whether the engine reaches ``UNEVEN`` of the bandwidth, not ``STEADY``."""
    tokens: float | None
    """Tokens that it gives; None: the engine drafts, and the acceptance is not known."""

    def seconds(self, bandwidth: int) -> float:
        """The time that it takes with a bandwidth in bytes a second."""
        return self.size / bandwidth / (UNEVEN if self.uneven else STEADY) + FIXED


def computed(
    preset: Preset, engine: str, bandwidth: int, published: int, filled: int = FILLED
) -> Computed:
    """The speed of a preset on a card.

    ``engine`` is the recipe's.  ``bandwidth`` is the card's, ``published`` the bandwidth of
    the card of the published run, in bytes a second, 0: not known.  Where no acceptance is
    published, that run gives the tokens of a step.  ``filled`` tokens are in the cache.  Raises
    ``NotComputedError``.
    """
    if preset.cards > 1:
        raise NotComputedError("it runs on several cards, whose exchange is not computed")
    if not bandwidth:
        raise NotComputedError("the bandwidth of the card is not known")
    now = step(preset, engine, filled)
    tokens = now.tokens
    if tokens is None:
        own = preset.published
        if own is None or not published:
            raise NotComputedError("it drafts, and its acceptance is not known")
        tokens = own.tokens_per_second.middle * step(preset, engine).seconds(published)
    speed = tokens / now.seconds(bandwidth)
    low, high = (round(speed * share, 2) for share in INTERVAL)
    return Computed(round(speed, 2), (low, high))


def step(preset: Preset, engine: str, filled: int = FILLED) -> DecodeStep:
    """The bytes that a step of a preset reads, and its tokens.  Raises ``NotComputedError``."""
    size, options = _size(preset), values_of(preset.serve.arguments)
    drafts = preset.drafter is not None or bool(
        {"--spec-type", "--speculative-config"} & {*options}
    )
    drafted = _drafted(options) if drafts else 0
    accepted = _acceptance(preset)
    tokens = (
        1.0 if not drafts else 1 + drafted * accepted if drafted and accepted is not None else None
    )
    shape = shape_of(preset, own_drafts=drafts and preset.drafter is None)
    if shape is None:
        return DecodeStep(_by_name(preset, size, drafts=drafts), engine != "vllm", tokens)
    weights = reads.weights(shape, size, checkpoint=preset.model.whole)
    experts = weights["experts"] * reads.experts(shape, drafted + 1)
    read = weights["layers"] + weights["output"] + experts
    read += _drafter(preset, weights, shape, drafted)
    read += reads.cache(shape, *cache_bits(options), filled)
    return DecodeStep(read, engine != "vllm" and (drafts or bool(weights["experts"])), tokens)


def _size(preset: Preset) -> int:
    weights = preset.memory.kinds.get("weights") if preset.memory else None
    if preset.model.known_size is not None:
        return preset.model.known_size
    if preset.memory is None or weights is None:
        raise NotComputedError("the size of its model is not known")
    return preset.memory.bytes_of(weights)


def values_of(words: Iterable[str]) -> dict[str, str]:
    """The value of each option; empty for an option without one."""
    return {
        option_of(first): rest[0] if rest else first.partition("=")[2]
        for first, *rest in groups(words)
    }


def cache_bits(options: Mapping[str, str], other: float = 16) -> tuple[float, float]:
    """The bits of a number of the keys and of the values; ``other``: of a type without a figure."""
    both = options.get("--kv-cache-dtype", "auto")
    types = [options.get(f"--cache-type-{kind}", both) for kind in "kv"]
    keys, values = (BITS.get(each, 16 if each in SIXTEEN else other) for each in types)
    return keys, values


def _drafted(options: Mapping[str, str]) -> int:
    try:
        if BLOCK in options:
            return int(options[BLOCK]) - 1
        if "--speculative-config" in options:
            return int(json.loads(options["--speculative-config"])["num_speculative_tokens"])
        return next((int(options[name]) for name in DRAFTED if name in options), 0)
    except (ValueError, TypeError, KeyError):  # no number, no JSON, or another key
        return 0


def _acceptance(preset: Preset) -> float | None:
    for result in preset.result:
        if result.of_preset and result.acceptance is not None:
            return result.acceptance.middle / 100
        if result.of_preset and result.accepted_share is not None:
            return result.accepted_share / 100
    return None


def shape_of(preset: Preset, *, own_drafts: bool = False) -> Shape | None:
    """The model's shape, by the model's name; with its MTP block if it drafts itself."""
    name = re.sub(r"[\s_/]+", "-", preset.model.name.lower())
    known = shapes.names()
    if own_drafts and f"{name}-mtp" in known:
        return shapes.of(f"{name}-mtp")
    return shapes.of(name) if name in known else None


def _by_name(preset: Preset, size: int, *, drafts: bool) -> float:
    """The bytes of the active weights, by a name such as "30B-A3B"."""
    found = ACTIVE.search(preset.model.name)
    if found is None or drafts:
        raise NotComputedError("the tensors of its model are not known")
    return size * float(found[2]) / float(found[1])


def _drafter(
    preset: Preset, weights: Mapping[reads.Use, float], shape: Shape, drafted: int
) -> float:
    """The bytes that drafting reads: MTP and a draft model once a token, DFlash once a step."""
    drafter = preset.drafter
    if drafter is None:
        if not weights["block"]:
            return 0  # it repeats parts of the text
        block = weights["block"] + weights["block experts"] * reads.experts(shape, 1)
        return drafted * (block + weights["output"])
    if drafter.known_size is None:
        raise NotComputedError("the size of its drafter is not known")
    if "dflash" in drafter.shown.lower():
        return drafter.known_size + weights["output"]
    if not drafted:
        raise NotComputedError("how many tokens it drafts is not known")
    return drafted * drafter.known_size
