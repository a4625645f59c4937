"""The requirements of a preset: code for the card, a driver, memory."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil, prod
from typing import Literal

from builder.core.platforms import Platform
from builder.docker import gpus
from builder.engines import entrypoint, families
from builder.engines.device_code import no_code, runs_on
from builder.presets import reads, speeds
from builder.presets.figures import PresetUse, Result
from builder.presets.machine import HostCard
from builder.presets.schema import Preset
from builder.presets.shape import Shape
from builder.recipes.catalog import Catalog
from builder.recipes.schema import Recipe

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


def least(
    preset: Preset, options: Mapping[str, str], context: int, trial: PresetUse | None
) -> tuple[int, int] | None:
    """The bytes of the weights, and of the cache, that a run takes at least; None: not known.

    A cache that is not known counts 0.  The least is by the sizes of the files, and by the tensors
    of the model's shape: their type is as the repository names it, 16 bits without a name.  Without
    a shape, a trial says more than a file, whose embedding llama.cpp may keep in the machine's
    memory.
    """
    shape = speeds.shape_of(preset)
    if (shape is None and trial is not None) or OFFLOADING & options.keys():
        return None
    layers = options.get("--n-gpu-layers", "")
    count = reads.number(shape, "block_count", 99) if shape is not None else 99
    if layers.isdecimal() and int(layers) < count:  # llama.cpp keeps others in host memory
        return None
    weights = max(_by_size(preset, options, shape), _by_shape(preset, options, shape))
    if not weights:
        return None
    drafter = preset.drafter.least_size if preset.drafter is not None else None
    bits = speeds.cache_bits(options, other=0)
    cache = reads.cache(shape, *bits, context) if shape is not None else 0
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
    shape = speeds.shape_of(preset)
    return 0 if shape is None or stretches(options) else reads.number(shape, "context_length", 0)


def stretches(options: Mapping[str, str]) -> bool:
    """Whether options let a model take more tokens than it was trained for."""
    return bool(STRETCHING & options.keys())


def share(options: Mapping[str, str]) -> float:
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
    return entrypoint.oldest_driver(recipe, next((base.cuda for base in bases if base.cuda), None))


def is_new_enough(driver: str, recipe: Recipe, catalog: Catalog) -> bool:
    """Whether no image of a recipe can need a newer driver; not known of an image without CUDA's
    version, unless every version takes the driver."""
    needed = oldest_driver(recipe, catalog) or max(entrypoint.OLDEST_DRIVERS.values())
    return not gpus.is_older(driver, needed)


def driver_on(recipe: Recipe, catalog: Catalog, cards: Sequence[HostCard]) -> str:
    """The oldest driver that a recipe's image runs with on cards; empty where it is not known."""
    first = (entrypoint.FIRST_DRIVERS.get(card.capability.major, "") for card in cards)
    return max((oldest_driver(recipe, catalog), *first), key=gpus.version_numbers)
