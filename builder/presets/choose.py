"""The presets that run on a machine, the best known and fastest first, and why others do not."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum
from functools import cached_property
from math import ceil, prod
from typing import Literal

from builder.core import sizes
from builder.core.platforms import Platform
from builder.docker import gpus
from builder.engines import families, layout
from builder.engines.device_code import no_code, runs_on
from builder.presets import command, model_files, shapes, short_names
from builder.presets.cards import Card
from builder.presets.catalog import PresetEntry
from builder.presets.command import values_of
from builder.presets.machine import USABLE, HostCard, Machine, host_card, is_listed_as
from builder.presets.schema import Preset, PresetUse, Result
from builder.presets.shapes import Shape, Use, cache_bytes, expert_bytes, weight_bytes
from builder.recipes.catalog import Catalog
from builder.recipes.schema import Recipe

# Computed speeds: the bytes that a card reads in a second, over the bytes that a token needs.
#
# A step reads the weights that are active, the cache and the drafter, and gives one token, or as
# many as the engine accepts.  It takes the time of these bytes at a part of the card's bandwidth,
# which is fitted to the published runs, and a fixed time.  ``studies/speeds.py`` fits the figures
# and writes studies/speeds.md: the errors, and the runs that do not fit.

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


def computed_speed(
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
    weights = weight_bytes(shape, size, checkpoint=preset.model.whole)
    experts = weights["experts"] * expert_bytes(shape, drafted + 1)
    read = weights["layers"] + weights["output"] + experts
    read += _drafter(preset, weights, shape, drafted)
    read += cache_bytes(shape, *cache_bits(options), filled)
    return DecodeStep(read, engine != "vllm" and (drafts or bool(weights["experts"])), tokens)


def _size(preset: Preset) -> int:
    weights = preset.memory.kinds.get("weights") if preset.memory else None
    if preset.model.known_size is not None:
        return preset.model.known_size
    if preset.memory is None or weights is None:
        raise NotComputedError("the size of its model is not known")
    return preset.memory.bytes_of(weights)


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
    known = shapes.shape_names()
    if own_drafts and f"{name}-mtp" in known:
        return shapes.shape_of(f"{name}-mtp")
    return shapes.shape_of(name) if name in known else None


def _by_name(preset: Preset, size: int, *, drafts: bool) -> float:
    """The bytes of the active weights, by a name such as "30B-A3B"."""
    found = ACTIVE.search(preset.model.name)
    if found is None or drafts:
        raise NotComputedError("the tensors of its model are not known")
    return size * float(found[2]) / float(found[1])


def _drafter(preset: Preset, weights: Mapping[Use, float], shape: Shape, drafted: int) -> float:
    """The bytes that drafting reads: MTP and a draft model once a token, DFlash once a step."""
    drafter = preset.drafter
    if drafter is None:
        if not weights["block"]:
            return 0  # it repeats parts of the text
        block = weights["block"] + weights["block experts"] * expert_bytes(shape, 1)
        return drafted * (block + weights["output"])
    if drafter.known_size is None:
        raise NotComputedError("the size of its drafter is not known")
    if "dflash" in drafter.shown.lower():
        return drafter.known_size + weights["output"]
    if not drafted:
        raise NotComputedError("how many tokens it drafts is not known")
    return drafted * drafter.known_size


# The requirements of a preset: code for the card, a driver, memory.

STEP = 8192  # tokens of a context that is found between two trials
SHARES = ("--gpu-memory-utilization", "--mem-fraction-static")
"""Options of vLLM and SGLang: the share of each card that weights and cache may take."""
OFFLOADING = {
    *("--cpu-moe", "--n-cpu-moe", "--n-cpu-ffn", "--override-tensor", "--device", "--kv-offload"),
    *("--spec-draft-cpu-moe", "--spec-draft-n-cpu-moe", "--spec-draft-override-tensor"),
    *("--spec-draft-device", "--cpu-offload-gb", "--fit"),
}
"""Settings (``command.setting_of``) that keep weights or the cache in the machine's memory, or
choose what stays there."""
RESIZING = {
    *OFFLOADING,
    *("--n-gpu-layers", "--spec-draft-ngl", "--cache-type-k", "--cache-type-v"),
    *("--batch-size", "--ubatch-size", "--parallel", "--flash-attn", "--spec-type"),
    *("--model", "--model-draft", "--mmproj", "--kv-cache-dtype", "--dtype", "--quantization"),
    *("--max-num-seqs", "--max-num-batched-tokens", "--language-model-only", "--tensor-split"),
    *("--speculative-config", "--tensor-parallel-size", "--pipeline-parallel-size"),
}
"""Settings with which a run takes another memory than the preset's figures have."""
ROWS = ("token_embd.weight", "per_layer_token_embd.weight")  # llama.cpp keeps them in host memory
ROW_BITS = 8.5  # of Q8_0: the most of a quantized file
NAMED_BITS = re.compile(
    r"(?:int|fp|w|q)([2-8])(?![0-9])|(?<![0-9])([2-8])-?bit|([2-8](?:\.\d+)?)bpw", re.I
)
FOUR_BITS = re.compile(r"awq|gptq|autoround|auto-round|nf4|bnb", re.I)
OTHER_BITS = re.compile(r"exl[23]|aqlm|hqq|quip|bitnet|mlx|gguf|quant|vptq|ptq|spqr", re.I)
STRETCHING = {
    *("--rope-scaling", "--rope-scale", "--rope-freq-base", "--rope-freq-scale"),
    *("--yarn-orig-ctx", "--override-kv", "--hf-overrides", "--json-model-override-args"),
}
"""Options with which a model takes more tokens than it was trained for."""


@dataclass(frozen=True, slots=True)
class MemoryNeed:
    """Memory that a run takes on all its cards."""

    size: int
    """Bytes."""
    by: Literal["trial", "filled", "estimate", "source", "unverified"]
    """The trial on a simulated card, with a short request or with prompts that fill the context;
    the line between both; or the source of the preset, whose figure nobody confirmed if it is in
    [unverified]."""
    kinds: Mapping[str, int] = field(default_factory=dict)
    """Bytes by kind, where they are known."""
    own: int = 0
    """Bytes of the CUDA contexts of the card of the trial, part of ``size``."""

    def on(self, cards: Sequence[HostCard]) -> int:
        """Bytes on these cards, whose CUDA contexts may be larger or smaller."""
        contexts = sum(card.context for card in cards)
        return self.size - self.own + contexts if self.own and contexts else self.size


def figures(
    preset: Preset, context: int, result: Result | None, trial: PresetUse | None
) -> list[MemoryNeed]:
    """The known figures of a preset's memory with a context, the largest first.

    A trial without a smaller context is no figure of another context that has one of its own; the
    source's figure of the preset's context is none where two trials show how memory grows.
    """
    other = context != (preset.serve.context or context)
    stated = result.memory if result is not None else None
    stated = stated if stated is not None and stated.whole is not None else None
    found = [*filter(None, [_filled(preset, context, trial)])]
    if trial is not None and not (other and stated and trial.smaller is None):
        found.append(tried(trial, context))
    table, memory = ("result.memory", stated) if stated else ("memory", preset.memory)
    larger = context > (preset.serve.context or context)  # than the one of the preset's memory
    if stated or not (larger or (other and trial is not None)):
        whole = memory.whole if memory is not None else None
        if memory is not None and whole is not None:
            part = "kinds" if memory.total is None else "total"
            by: Literal["unverified", "source"]
            by = "unverified" if _unconfirmed(preset, table, part) else "source"
            kinds = {name: memory.bytes_of(size) for name, size in memory.kinds.items()}
            found.append(MemoryNeed(whole, by, kinds))
    return sorted(found, key=lambda each: -each.size)


def _filled(preset: Preset, context: int, trial: PresetUse | None) -> MemoryNeed | None:
    """The memory that was enough for prompts that fill a context; None: not known.

    Below the first figure it is on the line from a trial with a smaller context.
    """
    known = sorted((each.tokens, each.mib << 20) for each in preset.filled)
    if not known or not context:
        return None
    if trial is not None and trial.smaller is not None and trial.smaller.context < known[0][0]:
        known.insert(0, (trial.smaller.context, trial.smaller.peak))
        if context < known[1][0]:
            (least, low), (most, high) = known[:2]
            share = max(0.0, (context - least) / (most - least))
            return MemoryNeed(_between(low, high, share), "estimate")
    enough = next((size for tokens, size in known if tokens >= context), known[-1][1])
    return MemoryNeed(enough, "filled")


def least_memory(
    preset: Preset, options: Mapping[str, str], context: int, trial: PresetUse | None
) -> tuple[int, int] | None:
    """The bytes of the weights, and of the cache, that a run takes at least; None: not known.

    A cache that is not known counts 0.  The least is by the sizes of the files, and by the tensors
    of the model's shape: their type is as the repository names it, 16 bits without a name.  Without
    a shape, a trial says more than a file, whose embedding llama.cpp may keep in the machine's
    memory.
    """
    shape = shape_of(preset)
    if (shape is None and trial is not None) or OFFLOADING & options.keys():
        return None
    layers = options.get("--n-gpu-layers", "")
    count = shapes.number(shape, "block_count", 99) if shape is not None else 99
    if layers.isdecimal() and int(layers) < count:  # llama.cpp keeps others in host memory
        return None
    weights = max(_by_size(preset, options, shape), _by_shape(preset, options, shape))
    if not weights:
        return None
    drafter = preset.drafter.least_size if preset.drafter is not None else None
    bits = cache_bits(options, other=0)
    cache = shapes.cache_bytes(shape, *bits, context) if shape is not None else 0
    return weights + (drafter or 0), int(cache)


def _by_size(preset: Preset, options: Mapping[str, str], shape: Shape | None) -> int:
    """The bytes of the weights by the model's files, and by its source; 0: not known."""
    model, memory = preset.model, preset.memory
    size = model.least_size or 0
    if not model.whole:
        if shape is None:
            return size
        rows = [prod(shape.tensors[name]) for name in ROWS if name in shape.tensors]
        if "output.weight" not in shape.tensors:  # the first is the output, too
            rows = rows[1:]
        wide = re.search(r"F(16|32)", f"{model.quantization} {model.file}")
        return max(0, size - int(sum(rows) * (float(wide[1]) if wide else ROW_BITS) / 8))
    if "--language-model-only" in options:
        size = 0  # the files have more
    stated = memory.kinds.get("weights", 0) if memory is not None else 0
    if memory is None or _unconfirmed(preset, "memory", "kinds"):
        return size
    return max(size, memory.bytes_of(stated))


def _by_shape(preset: Preset, options: Mapping[str, str], shape: Shape | None) -> int:
    """The bytes of the tensors of a repository's model; 0: not known."""
    if shape is None or not preset.model.whole:
        return 0
    names = f"{preset.model.repository} {options.get('--quantization', '')}"
    found = NAMED_BITS.search(names)
    bits = (
        float(next(filter(None, found.groups()))) if found else 4 if FOUR_BITS.search(names) else 16
    )
    if found is None and OTHER_BITS.search(names) and not FOUR_BITS.search(names):
        return 0
    return int(sum(prod(each) for each in shape.tensors.values()) * bits / 8)


def trained(preset: Preset, options: Mapping[str, str]) -> int:
    """The tokens of context that the model was trained for; 0: not known, or stretched."""
    shape = shape_of(preset)
    return 0 if shape is None or stretches(options) else shapes.number(shape, "context_length", 0)


def stretches(options: Mapping[str, str]) -> bool:
    """Whether options let a model take more tokens than it was trained for."""
    return bool(STRETCHING & options.keys())


def share_of_cards(options: Mapping[str, str]) -> float:
    """The share of each card for weights and cache; 1 where no option says it."""
    try:
        return min([1.0, *(float(options[name]) for name in SHARES if name in options)])
    except ValueError:  # the engine refuses it
        return 1.0


def largest_part(recipe: Recipe, options: Mapping[str, str], count: int) -> float | None:
    """The part of a run that the card with the most of it holds; None: each as much as it can.

    llama.cpp gives each card layers, or rows, by its free memory (``--split-mode``), unless
    ``--tensor-split`` has other parts; all others give each card the same.
    """
    given = options.get("--tensor-split", "")
    try:
        parts = [float(each) for each in re.split(r"[,/]", given) if each]
    except ValueError:
        parts = []
    if parts and sum(parts):
        return max(parts) / sum(parts)
    mode = options.get("--split-mode", "layer")
    if mode == "none":
        return 1.0
    serve = families.serve_of(recipe)
    splits = serve is not None and serve.api_flavor in {"llama-server", "llama-cpp-python"}
    return None if splits and mode in {"layer", "row"} else 1 / count


def tried(use: PresetUse, context: int) -> MemoryNeed:
    """The memory with a context: on the line through the trials of the preset's context and of a
    smaller one, where both are known; else as with the preset's."""
    least = use.smaller
    if least is None or context == use.context:
        return MemoryNeed(use.peak, "trial", use.by_kind, use.own)
    share = max(0.0, (context - least.context) / (use.context - least.context))
    peak = _between(least.peak, use.peak, share)
    kinds = {
        kind: _between(least.by_kind.get(kind, 0), size, share)
        for kind, size in use.by_kind.items()
    }
    return MemoryNeed(peak, "trial", kinds, use.own)


def _between(least: int, most: int, share: float) -> int:
    return ceil(least + share * (most - least))


def _unconfirmed(preset: Preset, table: str, part: str) -> bool:
    """Whether [unverified] has a table of memory, its part, or the table that has it."""
    return any(f"{table}.{part}.".startswith(f"{key}.") for key in preset.unverified)


def no_image(
    recipe: Recipe, cards: Sequence[HostCard], platform: Platform | None, whose: str = "its"
) -> Iterator[str]:
    """Why a recipe's image runs on none of a machine's cards; nothing where it runs on one."""
    if platform not in {None, *recipe.platform}:
        known = " and ".join(recipe.platform)
        yield f"{whose} image is for {known}, the machine of the card is {platform}"
    elif not any(runs_on(recipe, card.capability, platform) for card in cards):
        capabilities = (card.capability for card in cards)
        yield f"{whose} image has {no_code(recipe, *capabilities, platform=platform)}"


def oldest_driver(recipe: Recipe, catalog: Catalog) -> str:
    """The oldest driver that a recipe's image runs with; empty where it is not known."""
    bases = (catalog.base(name).recipe for name in catalog.chain(recipe.base))
    return layout.oldest_driver(recipe, next((base.cuda for base in bases if base.cuda), None))


def is_new_enough(driver: str, recipe: Recipe, catalog: Catalog) -> bool:
    """Whether no image of a recipe can need a newer driver; not known of an image without CUDA's
    version, unless every version takes the driver."""
    needed = oldest_driver(recipe, catalog) or max(layout.OLDEST_DRIVERS.values())
    return not gpus.is_older(driver, needed)


def driver_on(recipe: Recipe, catalog: Catalog, cards: Sequence[HostCard]) -> str:
    """The oldest driver that a recipe's image runs with on cards; empty where it is not known."""
    first = (layout.FIRST_DRIVERS.get(card.capability.major, "") for card in cards)
    return max((oldest_driver(recipe, catalog), *first), key=gpus.version_numbers)


# The choice.

DIFFERENCE = 0.1
"""Share by which figures of one memory differ, so that both are shown."""


@dataclass(frozen=True, slots=True)
class ReceiptFigure:
    """A figure of a receipt: a run of a preset, as it is."""

    tokens_per_second: float
    """The mean of the runs."""
    interval: tuple[float, float] | None = None
    """The mean's, with 95 % confidence; None for one run."""
    context: int | None = None
    """Tokens."""
    runs: int | None = None
    by: str = ""
    """Who measured; empty: not named."""
    receipt: str = ""
    """Name of its file without the suffix."""


@dataclass(frozen=True, slots=True)
class Measured:
    """A receipt of a preset: its figures, one for each context, and its cards."""

    cards: tuple[tuple[str, int], ...]
    """Name and MiB, as nvidia-smi lists them."""
    figures: tuple[ReceiptFigure, ...]


TOOLS = {"--jinja", "--enable-auto-tool-choice"}
TEMPLATE = "--chat-template-kwargs"


class Standing(IntEnum):
    """How well a preset is known on a machine's cards, the best first."""

    MEASURED = 0
    """By a receipt of such cards."""
    PUBLISHED = 1
    """Its figure was published for such cards."""
    ELSEWHERE = 2
    """Its figure was published for other cards."""
    COMPUTED = 3
    """It has no figure but a computed speed."""
    UNKNOWN = 4
    """It has no figure at all, or neither its context nor its memory is known: whether it fits is
    then not known, either."""


@dataclass(frozen=True, slots=True)
class Fitting:
    """A preset that runs on the machine."""

    preset: str
    quantization: str
    download: int
    """Bytes of its models; 0: not known."""
    downloadable: bool
    """Whether each of its models has a repository.  Without one, the user has to name a file."""
    recipe: str
    context: int
    """Tokens; 0: the engine's own default."""
    other_context: int | None
    """The context, where it is not the preset's own."""
    tokens_per_second: float | None
    """As published; None: it was not."""
    figure_context: int
    """The context of that figure; 0: not known."""
    measured_on: str
    measured_cards: int
    on_such_cards: bool
    """Whether that figure is of the machine's cards."""
    measured: ReceiptFigure | None
    """The figure of a receipt on such cards, which comes before the published figure."""
    computed: Computed | None
    """The speed that the bandwidth of the machine's cards allows; None: it cannot be computed."""
    not_computed: str
    memory: MemoryNeed | None
    """The largest known figure; None: not known; the machine has as much memory as the card of the
    publication."""
    other_memory: MemoryNeed | None
    """The smallest known figure, where both differ by more than ``DIFFERENCE``."""
    least: int
    """Bytes of the weights and of the cache, the least that the run takes; 0: not known."""
    certain: bool
    """Whether it is known that it fits, not by a figure that nobody confirmed, and that the driver
    is new enough."""
    filled: bool
    """Whether it is known that prompts fill the context in so much memory."""
    driver: str
    capabilities: tuple[str, ...]
    room: int
    caveats: tuple[str, ...]

    @property
    def standing(self) -> Standing:
        """How well it is known on the machine's cards."""
        if self.measured is not None:
            return Standing.MEASURED
        if not (self.context or self.memory):
            return Standing.UNKNOWN
        if self.tokens_per_second is None:
            return Standing.COMPUTED if self.computed else Standing.UNKNOWN
        return Standing.PUBLISHED if self.on_such_cards else Standing.ELSEWHERE


@dataclass(frozen=True, slots=True)
class Excluded:
    """A preset that does not run on the machine."""

    preset: str
    why: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Choice:
    """All presets that were asked for."""

    machine: Machine
    fits: tuple[Fitting, ...]
    """The best known first, then the fastest."""
    excluded: tuple[Excluded, ...]
    models: Mapping[str, str]
    """The short name of each preset's model, by the preset's name."""

    @property
    def recommended(self) -> tuple[Fitting, ...]:
        """The first preset of each model that can be downloaded and is known to fit."""
        first: dict[str, Fitting] = {}
        for each in self.fits:
            if each.downloadable and each.certain:
                first.setdefault(self.models[each.preset], each)
        return tuple(first.values())


@dataclass(frozen=True, slots=True)
class Question:
    """The machine, the wishes, and the known facts of presets."""

    machine: Machine
    catalog: Catalog
    cards: Mapping[str, Card]
    """The cards of ``cards/`` that presets were published for, by their file's name."""
    context: int = 0
    """The least context in tokens."""
    trials: Mapping[str, PresetUse] = field(default_factory=dict)
    """The recorded trials, by preset."""
    receipts: Mapping[str, Sequence[Measured]] = field(default_factory=dict)
    """The receipts that are runs of a preset, the newest first, by preset."""
    refused: Mapping[str, str] = field(default_factory=dict)
    """Why an image got no tag, by recipe."""
    options: tuple[str, ...] = ()
    """More arguments of the engine, which replace the same ones of a preset."""
    other_model: bool = False
    """Another model than the preset's: the figures of its memory say nothing."""


def matching(entries: Sequence[PresetEntry], text: str) -> list[PresetEntry]:
    """The presets whose name or model has every word of ``text``, in any case."""

    def words(text: str) -> list[str]:
        return re.sub(r"[-_/:@\s]+", " ", text.lower()).split()

    def described(entry: PresetEntry) -> str:
        model = entry.preset.model
        parts = (entry.name, model.name, model.repository, model.file, model.quantization)
        return " ".join(words(" ".join(filter(None, parts))))

    return [entry for entry in entries if all(word in described(entry) for word in words(text))]


def choose(entries: Sequence[PresetEntry], question: Question) -> Choice:
    """The presets that run on the machine, and the others with their reasons."""
    answers = [_Run(entry, question).answer() for entry in entries]
    fits = sorted((each for each in answers if isinstance(each, Fitting)), key=_place)
    excluded = tuple(each for each in answers if isinstance(each, Excluded))
    names = {entry.name: entry.preset.model.name for entry in entries}
    return Choice(question.machine, tuple(fits), excluded, short_names.models(names))


def _place(found: Fitting) -> tuple[bool, Standing, float, str]:
    speed = found.measured.tokens_per_second if found.measured else found.tokens_per_second
    if found.standing is Standing.COMPUTED and found.computed:
        speed = found.computed.tokens_per_second
    return not found.downloadable, found.standing, -(speed or 0), found.preset


def faults(entry: PresetEntry, question: Question) -> tuple[str, ...]:
    """Why a run of a preset with its own context, or exactly the question's, does not work.

    Above the preset's context, which a user may try, only what is known speaks against it.
    """
    preset, own = entry.preset, entry.preset.serve.context or 0
    asked = question.context or own
    larger = preset.published_context is None and asked > own
    run = _Run(entry, replace(question, context=own if larger else asked))
    found = run.answer()
    why = list(found.why) if isinstance(found, Excluded) else []
    if long := too_long(preset, question):
        return (*why, *long)
    if larger and not why:
        why += filter(None, [run.no_room(asked, run.figures(asked), published=not own)])
    return tuple(why)


def too_long(preset: Preset, question: Question) -> list[str]:
    """Why no card has the question's context: the model was not trained for it."""
    most = 0 if question.other_model else trained(preset, _options(preset, question))
    if not most or question.context <= most:
        return []
    return [f"its model was trained for {most} tokens of context, not for {question.context}"]


def capabilities(preset: Preset) -> tuple[str, ...]:
    """``vision``, ``tools``, and ``thinking`` or ``no thinking``, as far as its options show them.

    llama.cpp, tools/server/README.md: ``--jinja`` is for tool calls, ``--mmproj`` for pictures,
    ``--reasoning-budget 0`` turns thinking off, and so does ``enable_thinking`` of a chat template.
    vLLM, "Tool Calling" and "Reasoning Outputs": ``--enable-auto-tool-choice``,
    ``--reasoning-parser``.
    """
    options = {
        command.option_of(first): first.partition("=")[2] or " ".join(values)
        for first, *values in command.groups(preset.serve.arguments)
    }
    try:
        template = json.loads(options.get(TEMPLATE, ""))
    except ValueError:
        template = None
    off = isinstance(template, dict) and template.get("enable_thinking") is False
    found = ["vision"] if preset.mmproj is not None or "--mmproj" in options else []
    found += ["tools"] if TOOLS & options.keys() else []
    if options.get("--reasoning-budget") == "0" or off:
        found.append("no thinking")
    elif "--reasoning-parser" in options:
        found.append("thinking")
    return tuple(found)


def figure_on(
    runs: Sequence[Measured], cards: Sequence[HostCard], context: int
) -> ReceiptFigure | None:
    """The figure of the newest run on such cards: of the context, else of its largest one."""
    for run in runs:
        left = list(cards)
        for name, memory in run.cards:
            same = (card for card in left if is_listed_as(card, name, memory))
            card = next(same, None)
            if card is None:
                break
            left.remove(card)
        else:
            if not left:
                return max(
                    run.figures, key=lambda each: (each.context == context, each.context or 0)
                )
    return None


def _options(preset: Preset, question: Question) -> dict[str, str]:
    recipe = question.catalog.engine(preset.recipe).recipe
    written = command.written(preset, recipe, (), question.options)
    return command.values_by_setting(written, recipe)


@dataclass(frozen=True)
class _Run:
    """A preset on the machine of a question."""

    entry: PresetEntry
    question: Question

    @property
    def preset(self) -> Preset:
        return self.entry.preset

    @cached_property
    def recipe(self) -> Recipe:
        return self.question.catalog.engine(self.preset.recipe).recipe

    @cached_property
    def cards(self) -> list[HostCard]:
        """The cards of the machine that it would get: they have most memory."""
        machine = self.question.machine
        able = [
            card
            for card in machine.cards
            if runs_on(self.recipe, card.capability, machine.platform)
        ]
        return sorted(able, key=lambda card: -card.memory)[: self.preset.cards]

    @cached_property
    def published_card(self) -> Card | None:
        return self.question.cards.get(self.preset.card)

    @cached_property
    def trial(self) -> PresetUse | None:
        return self.question.trials.get(self.entry.name)

    @cached_property
    def options(self) -> dict[str, str]:
        return _options(self.preset, self.question)

    @cached_property
    def changed(self) -> bool:
        lists = (self.preset.serve.arguments, self.question.options)
        own, new = (command.values_by_setting(words, self.recipe) for words in lists)
        differ = {name for name, value in new.items() if own.get(name) != value}
        return self.question.other_model or bool(RESIZING & differ)

    @cached_property
    def part(self) -> float | None:
        """The largest part of the run on one card; None: each card holds as much as it can."""
        return largest_part(self.recipe, self.options, len(self.cards))

    @cached_property
    def smaller_cards(self) -> bool:
        """Whether the cards have less memory than the publication's, or it is not known."""
        own = self.published_card
        if own is None:
            return True
        if self.part is not None:
            return any(card.memory < own.memory for card in self.cards)
        return sum(card.memory for card in self.cards) < own.memory * self.preset.cards

    def least(self, context: int) -> tuple[int, int] | None:
        return least_memory(self.preset, self.options, context, self.trial)

    def figures(self, context: int, result: Result | None = None) -> list[MemoryNeed]:
        """The figures of the memory with a context that can be right, the largest first.

        The user's options may change them: then there is none.
        """
        if self.changed:
            return []
        weights, _ = self.least(context) or (0, 0)
        found = figures(self.preset, context, result, self.trial)
        return [each for each in found if each.by == "trial" or each.size >= weights]

    def answer(self) -> Fitting | Excluded:
        wanted, contexts = self.question.context, self.contexts()
        wide = [each for each in contexts if each[0] >= wanted]
        why = [*self.unable(), *([] if wide else [self.too_short(contexts[0][0])])]
        if why:
            return Excluded(self.entry.name, tuple(why))
        lacks = ""
        # With a requested context, the smallest that is enough comes first; else the largest.
        for context, result in reversed(wide) if wanted else wide:
            known = self.figures(context, result)
            fault = self.no_room(context, known)
            if not fault:
                return self.fitting(context, result, known)
            # Report the fault of the smallest context.
            lacks = lacks if lacks and wanted else fault
        use = self.trial
        if use is None or use.smaller is None or wanted > use.context:
            return Excluded(self.entry.name, (lacks,))
        # Between both trials: the requested context, else the largest multiple of STEP with room.
        least, last = use.smaller.context, use.context // STEP * STEP
        multiples = range(last, least - 1, -STEP)
        tries = (max(wanted, least),) if wanted else multiples
        if context := next(filter(self.has_room, tries), 0):
            return self.fitting(context, None, self.figures(context))
        if wanted:
            lacks = self.no_room(wanted, self.figures(wanted))
            if fits := next(filter(self.has_room, multiples), 0):
                lacks = f"{lacks}; a context of {fits} tokens fits"
        return Excluded(self.entry.name, (lacks,))

    def unable(self) -> Iterator[str]:
        """Why no context helps: the image, the cards, the driver."""
        recipe, machine, cards = self.recipe, self.question.machine, self.cards
        if refused := self.question.refused.get(recipe.name):
            yield refused
        if why := [*no_image(recipe, machine.cards, machine.platform)]:
            yield from why
        elif len(cards) < self.preset.cards:
            yield f"it needs {self.preset.cards} cards, this machine has {len(cards)} for it"
        driver = driver_on(recipe, self.question.catalog, cards)
        if gpus.is_older(machine.driver, driver):
            yield f"the driver {machine.driver} is too old: it needs {driver} or newer"

    def contexts(self) -> list[tuple[int, Result | None]]:
        """The contexts that it was published with, and the figure of each; largest first.

        One that was too large for the preset's card is for cards with more memory: cards of one
        nominal size differ by 1 - ``USABLE``.
        """
        preset, tried = self.preset, self.published_card
        own = preset.serve.context or 0
        too_large = preset.published_context is not None and (
            tried is None or any(card.memory * USABLE <= tried.memory for card in self.cards)
        )
        found: dict[int, Result | None] = {own: None}
        for result in preset.result:
            context = preset.context_of(result)
            fits = context <= own or not too_large
            if result.of_preset and fits and found.get(context) is None:
                found[context] = result
        return sorted(found.items(), key=lambda each: -each[0])

    def too_short(self, largest: int) -> str:
        wanted, published = self.question.context, self.preset.published_context or 0
        if not largest:
            return f"its context is not known, {wanted} tokens are asked for"
        text = f"its context is {largest} tokens, {wanted} are asked for"
        if largest >= published:
            return text
        return f"{text}; the published {published} did not fit the {self.preset.card}"

    def has_room(self, context: int) -> bool:
        known = self.figures(context)
        return bool(known) and not self.no_room(context, known)

    def no_room(self, context: int, known: Sequence[MemoryNeed], *, published: bool = True) -> str:
        """What the run lacks on its cards; empty: nothing is known.

        ``known`` are its figures.  ``published``: cards as small as the cards of the publication
        are enough where nothing else is known of its memory, and smaller ones are not.
        """
        cards = self.cards
        if unknown := [card.name for card in cards if not card.memory]:
            return f"the memory of the {unknown[0]} is not known"
        least = None if self.question.other_model else self.least(context)
        if least and (lacks := self.lacks(sum(least), of_share=True)):
            what = "its weights and its cache take" if least[1] else "its weights take"
            return f"{what} {sizes.gib(sum(least))} at least{lacks}"
        if known:
            need = known[0]
            source = {
                "trial": "as tried",
                "filled": "with a full context",
                "estimate": "as estimated",
            }
            by = source.get(need.by, "as published")
            whole = need.by in {"source", "unverified"} and sum(need.kinds.values()) == need.size
            lacks = self.lacks(need.on(cards), of_share=whole)
            return f"it takes {sizes.gib(need.on(cards))} ({by}){lacks}" if lacks else ""
        if not published or self.changed or not self.smaller_cards:
            return ""
        card = self.published_card
        if card is None:
            return f"its memory is not known, nor the memory of the {self.preset.card}"
        ran = sizes.gib(card.memory * self.preset.cards)
        return f"its memory is not known; it ran with {ran}, and here are {self.room}"

    @property
    def room(self) -> str:
        if self.part is not None and len(self.cards) > 1:
            return " and ".join(sizes.gib(card.memory) for card in self.cards)
        return sizes.gib(sum(card.memory for card in self.cards))

    def lacks(self, size: int, *, of_share: bool) -> str:
        """How much the cards have too little for a run; empty: they have enough."""
        share, part = share_of_cards(self.options) if of_share else 1.0, self.part
        if part is None or len(self.cards) == 1:
            lacking, each = size - share * sum(card.memory for card in self.cards), ""
        else:
            lacking = size * part - share * min(card.memory for card in self.cards)
            each = f", {sizes.gib(round(size * part))} of it on one card"
        if lacking <= 0:
            return ""
        here = f"here are {self.room}" + (
            f", of which it may take {share:.0%}" if share < 1 else ""
        )
        return f"{each}, and {here}: {sizes.gib(ceil(lacking))} too little"

    def fitting(self, context: int, result: Result | None, known: list[MemoryNeed]) -> Fitting:
        preset, cards, use, own = self.preset, self.cards, self.trial, self.published_card
        room = sum(card.memory for card in cards)
        figure = result or preset.published
        files = [file.known_size for file in model_files.of_preset(preset).values()]
        computed, not_computed = None, ""
        try:
            bandwidth = own.bandwidth if own is not None else 0
            computed = computed_speed(preset, self.recipe.engine, cards[0].bandwidth, bandwidth)
        except NotComputedError as error:
            not_computed = str(error)
        differ = bool(known) and known[0].size > known[-1].size * (1 + DIFFERENCE)
        confirmed = any(each.by in {"trial", "filled", "source"} for each in known)
        catalog, driver = self.question.catalog, self.question.machine.driver
        return Fitting(
            preset=self.entry.name,
            quantization=preset.model.quantization or "",
            download=sum(size for size in files if size) if all(files) else 0,
            downloadable=model_files.downloadable(preset),
            recipe=preset.recipe,
            context=context,
            other_context=None if context in {0, preset.serve.context} else context,
            tokens_per_second=round(figure.tokens_per_second.middle, 2) if figure else None,
            figure_context=preset.context_of(figure) if figure else 0,
            measured_on=preset.card,
            measured_cards=preset.cards,
            on_such_cards=own is not None and all(card == host_card(own) for card in cards),
            measured=figure_on(self.question.receipts.get(self.entry.name, ()), cards, context),
            computed=computed,
            not_computed=not_computed,
            memory=known[0] if known else None,
            other_memory=known[-1] if differ else None,
            least=sum(self.least(context) or ()),
            certain=(not self.smaller_cards or confirmed)
            and is_new_enough(driver, self.recipe, catalog),
            filled=(bool(known) and known[0].by == "filled")
            or (
                use is not None
                and bool(use.filled)
                and context <= use.context
                and room >= use.memory
            ),
            driver=driver_on(self.recipe, catalog, cards),
            capabilities=capabilities(preset),
            room=room,
            caveats=(*preset.slower(figure), *(each.shown for each in preset.caveat)),
        )
