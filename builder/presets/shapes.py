"""Models by their shape, and what follows for a preset: the speed on a card, and the memory.

A shape is a file of ``shapes/``, which names its sources.  It has the values of the model's GGUF
file and names groups of tensors of ``shapes/tensors``, whose dimensions follow from these values.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import Field, StringConstraints, model_validator

from builder.core.errors import RecipeError, suggestion
from builder.core.farm import installed
from builder.presets.cards import HostCard
from builder.presets.command import drafted_tokens, values_of
from builder.presets.schema import ModelFile, Preset, PresetUse, Result
from builder.recipes.catalog import read_model
from builder.recipes.fields import PLAIN, WEB_URL, Model, Text

TINY = "tiny"  # the folder of shapes that stand for no published model
Value = str | bool | int | float | list[bool] | list[int] | list[float]
Dimensions = tuple[int, ...]  # a tensor's, in ggml's order: the length of a row first
Count = Annotated[int, Field(gt=0)]
T = TypeVar("T")


class Tokenizer(Model):
    """A vocabulary of ``size`` tokens, as ``write_tokens`` makes it."""

    model: Text  # ``tokenizer.ggml.model``: gpt2 or gemma4
    size: Count
    pre: str = ""  # ``tokenizer.ggml.pre``; empty where the model decides it
    mask: int | None = None  # the id of the token that stands for one to be drafted


class Layers(Model):
    """Layers that follow each other, ``times`` over."""

    times: Count
    kinds: list[Text]


class TensorFile(Model):
    """``shapes/tensors/NAME.toml``: tensors that models have in common, in groups."""

    blocks: Text = "blk"  # the prefix before the number of a layer in the names of its tensors
    fixed: dict[str, Text] = Field(default_factory=dict)
    """ggml's types of tensors whose type no quantization changes, by a part of their names."""
    group: dict[str, dict[str, list[Count | Text]]]
    """Dimensions by the name of a tensor: numbers, or sums of products of numbers and of values of
    the GGUF, such as ``2 * ssm.state_size + ssm.inner_size``; ``vocabulary`` is the tokenizer's
    size.  A value with an element for each layer has the one of the layer."""


class ListedFile(ModelFile):
    """A GGUF that a repository of the Hugging Face Hub lists; its size has a source."""

    source: Annotated[str, StringConstraints(pattern=WEB_URL), PLAIN]
    """Address of the page that states the size."""

    @property
    def bytes(self) -> int:
        """Its size."""
        return self.known_size or 0

    @model_validator(mode="after")
    def _require_what_a_list_has(self) -> ListedFile:
        if self.repository is None or self.file is None or not self.of_quantization([self.file]):
            raise ValueError("give repository, quantization, and a file that is named by it")
        if self.known_size is None:
            raise ValueError('give size in bytes, or published_size: "9.4 GB"')
        return self


class ShapeFile(Model):
    """``shapes/NAME.toml``: a model."""

    architecture: Text
    kind: Text = "model"  # ``general.type``: model, or mmproj for a multimodal projector
    tensors: Text  # the file of ``shapes/tensors`` that has the groups
    parts: list[Text]  # the groups outside of the layers
    kinds: dict[str, list[Text]]  # the groups of each kind of layer
    layers: list[Layers]
    repositories: list[Text] = Field(default_factory=list)
    """Repositories of the Hugging Face Hub whose files have this shape."""
    same: list[Text] = Field(default_factory=list)
    """Names of other models whose tensors have this shape."""
    tokenizer: Tokenizer | None = None
    values: dict[str, Value]  # by key, without the architecture before it: ``attention.head_count``
    file: list[ListedFile] = Field(default_factory=list)
    """Files of ``repositories`` whose size somebody states."""

    @model_validator(mode="after")
    def _require_own_files(self) -> ShapeFile:
        names = [(each.repository, each.file) for each in self.file]
        if len({*names}) < len(names):
            raise ValueError("a file is listed twice")
        for repository, file in names:
            if repository not in self.repositories:
                raise ValueError(f"{file} is of {repository}, which is not in repositories")
        return self


@dataclass(frozen=True, slots=True)
class Shape:
    """A model's values and tensors."""

    architecture: str
    kind: str
    values: Mapping[str, Value]
    tensors: Mapping[str, Dimensions]
    fixed: Mapping[str, str]
    tokenizer: Tokenizer | None = None


@cache
def shape_names() -> tuple[str, ...]:
    """The names of all shapes."""
    return tuple(sorted(file.stem for file in _folder().glob("*.toml")))


@cache
def published_shape() -> Mapping[str, str]:
    """The shape of the models of a repository of the Hugging Face Hub, by its name."""
    files = _shape_files().items()
    return {repository: name for name, file in files for repository in file.repositories}


def listed_files(name: str) -> list[ListedFile]:
    """The files that repositories list of the model of a shape, the largest first."""
    file = _shape_files().get(name)
    return sorted(file.file if file else [], key=lambda each: -each.bytes)


@cache
def _shape_files() -> Mapping[str, ShapeFile]:
    return {name: read_model(_folder() / f"{name}.toml", ShapeFile) for name in shape_names()}


@cache
def shape_of(name: str) -> Shape:
    """The shape of this name; raises ``RecipeError`` for an invalid file, and without one."""
    if name not in shape_names():
        raise RecipeError(f"no shape is named {name}{suggestion(name, list(shape_names()))}")
    return read_shape(_folder() / f"{name}.toml")


@cache
def tiny(name: str) -> Shape:
    """The shape of a tiny model of ``shapes/tiny``; raises ``RecipeError`` for an invalid file."""
    return read_shape(_folder() / TINY / f"{name}.toml", _folder())


def read_shape(path: Path, folder: Path | None = None) -> Shape:
    """The shape of a file; raises ``RecipeError`` where it is invalid.

    ``folder`` has the folder ``tensors``; None: the file's own.
    """
    file = read_model(path, ShapeFile)
    common = read_model((folder or path.parent) / "tensors" / f"{file.tensors}.toml", TensorFile)
    tensors: dict[str, Dimensions] = {}
    for name, dimensions in _tensors(path, file, common):
        if name in tensors:
            raise _invalid(path, f"it has the tensor {name} twice")
        tensors[name] = dimensions
    return Shape(file.architecture, file.kind, file.values, tensors, common.fixed, file.tokenizer)


def _folder() -> Path:
    return installed() / "shapes"


def _invalid(path: Path, why: str) -> RecipeError:
    return RecipeError(f"{path.name} is no shape of a model", why, f"correct {path}")


def _tensors(path: Path, file: ShapeFile, common: TensorFile) -> Iterator[tuple[str, Dimensions]]:
    kinds = [kind for each in file.layers for kind in each.kinds * each.times]
    values: dict[str, Any] = dict(file.values)
    if file.tokenizer is not None:
        values["vocabulary"] = file.tokenizer.size

    def found(table: Mapping[str, T], name: str, what: str) -> T:
        if name not in table:
            raise _invalid(path, f"there is no {what} {name}{suggestion(name, list(table))}")
        return table[name]

    def factor(text: str, layer: int) -> int:
        value = int(text) if text.isdigit() else found(values, text, "value")
        if isinstance(value, list) and len(value) != len(kinds):
            why = f"{text} has {len(value)} elements, and there are {len(kinds)} layers"
            raise _invalid(path, why)
        return int(value[layer] if isinstance(value, list) else value)

    def size(dimension: int | str, layer: int) -> int:
        products = (term.split("*") for term in str(dimension).split("+"))
        return sum(math.prod(factor(each.strip(), layer) for each in p) for p in products)

    parts = [(part, "", 0) for part in file.parts]
    for layer, kind in enumerate(kinds):
        groups = found(file.kinds, kind, "kind of layer")
        parts += [(part, f"{common.blocks}.{layer}.", layer) for part in groups]
    for part, before, layer in parts:
        for name, dimensions in found(common.group, part, "group").items():
            yield f"{before}{name}", tuple(size(each, layer) for each in dimensions)


# The memory that one pass of a model reads: its weights by use, and its cache.

Use = Literal["rows", "layers", "experts", "output", "block", "block experts"]
"""The use of a tensor by a pass: it reads one of the ``rows``, all of ``layers`` and ``output``,
the ``experts`` that it needs; drafting reads the MTP block instead of the layers."""
SIXTEEN_BITS = 2  # bytes
UNQUANTIZED: frozenset[Use] = frozenset({"rows", "output", "block", "block experts"})


def weight_bytes(shape: Shape, size: int, *, checkpoint: bool) -> Mapping[Use, float]:
    """The bytes of a model of ``size`` bytes, by use; a use that is absent has none.

    All tensors have as many bits.  A ``checkpoint`` for vLLM keeps 16 where quantizers leave
    tensors alone: the embedding, the output and the MTP block.
    """
    layers = number(shape, "block_count", 0) - number(shape, "nextn_predict_layers", 0)
    output = "output.weight" if "output.weight" in shape.tensors else "token_embd.weight"
    parameters: Counter[Use] = Counter()
    for name, dimensions in shape.tensors.items():
        parameters[_use(name, layers, output)] += math.prod(dimensions)
    kept = {use: count for use, count in parameters.items() if checkpoint and use in UNQUANTIZED}
    if SIXTEEN_BITS * sum(kept.values()) >= size:
        kept = {}  # it is too small: they are quantized, too
    others = {use: count for use, count in parameters.items() if use not in kept}
    each = (size - SIXTEEN_BITS * sum(kept.values())) / sum(others.values())
    if checkpoint:  # its files may have other tensors, such as a vision encoder
        each = min(each, SIXTEEN_BITS)
    found = {use: count * each for use, count in others.items()}
    return Counter(found | {use: float(count * SIXTEEN_BITS) for use, count in kept.items()})


def expert_bytes(shape: Shape, tokens: int) -> float:
    """The part of the experts that a pass of so many tokens reads, if each chooses by itself."""
    chosen = number(shape, "expert_used_count", 1) / number(shape, "expert_count", 1)
    return 1 - (1 - chosen) ** tokens


def cache_bytes(shape: Shape, key_bits: float, value_bits: float, tokens: int) -> float:
    """The bytes of so many tokens in the cache; a layer with a window has no more than fit.

    The last layers may share the cache of others (Gemma 4 E2B and E4B).
    """
    pattern = shape.values.get("attention.sliding_window_pattern")
    total, count = 0.0, number(shape, "block_count", 0)
    own = count - number(shape, "attention.shared_kv_layers", 0)
    for name, dimensions in shape.tensors.items():
        if name.endswith("attn_k.weight") and int(name.split(".")[1]) < own:
            windowed = isinstance(pattern, list) and pattern[int(name.split(".")[1])]
            held = min(tokens, number(shape, "attention.sliding_window", 0)) if windowed else tokens
            values = shape.tensors.get(name.replace("attn_k", "attn_v"), dimensions)
            total += held * (dimensions[1] * key_bits + values[1] * value_bits) / 8
    return total


def number(shape: Shape, key: str, default: int) -> int:
    """A value of the model that is one number."""
    value = shape.values.get(key, default)
    return value if isinstance(value, int) else default


def own_contexts() -> dict[str, int]:
    """The contexts of models, in tokens, by the repository that publishes one; 0: not known."""
    names = published_shape().items()
    return {each: number(shape_of(name), "context_length", 0) for each, name in names}


def _use(name: str, layers: int, output: str) -> Use:
    if name == output:
        return "output"
    if name in ("token_embd.weight", "per_layer_token_embd.weight"):
        return "rows"
    experts = "_exps." in name
    if name.startswith("blk.") and int(name.split(".")[1]) >= layers:
        return "block experts" if experts else "block"
    return "experts" if experts else "layers"


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
FIXED = 2.1e-3  # seconds of a step beside the bytes
INTERVAL = (0.83, 1.35)
"""Nine of ten published speeds are between these multiples of the computed speed."""
HOST = 96_000_000_000
"""Bytes a second of a machine's memory: two channels of DDR5-6000, which most published runs with
experts on the CPU had.  llama.cpp reaches ``UNEVEN`` of them, too."""
FILLED = 1000
"""Tokens in the cache: the middle of an answer of 2000 tokens, as most published runs have it."""

BITS = {"q8_0": 8.5, "q5_1": 6, "q5_0": 5.5, "q4_1": 5, "q4_0": 4.5, "fp8": 8, "fp8_e5m2": 8}
"""Bits of a number in the cache, by the type's name; other types count with 16."""
SIXTEEN = {"auto", "f16", "bf16", "float16", "bfloat16"}
ACTIVE = re.compile(r"(\d+(?:\.\d+)?)B-A(\d+(?:\.\d+)?)B", re.I)


class NotComputedError(ValueError):
    """A fact is missing without which no speed can be computed; the text says which."""


@dataclass(frozen=True, slots=True)
class Figure:
    """A speed on a card."""

    tokens_per_second: float  # the mean of the runs
    interval: tuple[float, float] | None = None
    """The mean of a receipt with 95 % confidence; nine of ten runs for a computed speed."""
    context: int | None = None
    runs: int | None = None
    by: str = ""
    receipt: str = ""  # name of its file without the suffix
    card: str = ""  # another card than the machine's, which it was published for
    cards: int = 1

    @property
    def source(self) -> Literal["receipt", "computed", "published"]:
        """How it is known."""
        return "receipt" if self.receipt else "computed" if self.interval else "published"


@dataclass(frozen=True, slots=True)
class DecodeStep:
    """One pass of the model, and of its drafter."""

    size: float  # bytes that it reads from the card's memory
    uneven: bool  # whether the engine reaches ``UNEVEN`` of the bandwidth, not ``STEADY``
    tokens: float | None
    """Tokens that it gives; None: the engine drafts, and the acceptance is not known."""
    host: float = 0  # bytes of experts that the CPU reads from the machine's memory

    def seconds(self, bandwidth: int) -> float:
        """The time that it takes with a bandwidth in bytes a second."""
        own = self.size / bandwidth / (UNEVEN if self.uneven else STEADY)
        return own + self.host / HOST / UNEVEN + FIXED


def computed_speed(
    preset: Preset,
    engine: str,
    bandwidth: int,
    published: int,
    accepted: float | None = None,
) -> Figure:
    """The speed of a preset on a card: of one stream, after a short prompt.

    ``engine`` is the recipe's.  ``bandwidth`` is the card's, ``published`` the bandwidth of
    the card of the published run, in bytes a second, 0: not known.  ``accepted`` is the share of
    drafted tokens that another run of the model had; where no acceptance is known, the published
    run gives the tokens of a step.  Raises ``NotComputedError``.
    """
    if preset.cards > 1:
        raise NotComputedError("it runs on several cards, whose exchange is not computed")
    if not bandwidth:
        raise NotComputedError("the bandwidth of the card is not known")
    now = step(preset, engine, accepted)
    tokens = now.tokens
    if tokens is None:
        own = preset.published
        if own is None or not published:
            raise NotComputedError("it drafts, and its acceptance is not known")
        tokens = own.tokens_per_second.middle * step(preset, engine).seconds(published)
    speed = tokens / now.seconds(bandwidth)
    low, high = (round(speed * share, 2) for share in INTERVAL)
    return Figure(round(speed, 2), (low, high))


def step(preset: Preset, engine: str, accepted: float | None = None) -> DecodeStep:
    """The bytes that a step of a preset reads, and its tokens; the arguments are as of
    ``computed_speed``.  Raises ``NotComputedError``."""
    size, options = _size(preset), values_of(preset.serve.arguments)
    if OFFLOADING & options.keys() - EXPERTS.keys():
        raise NotComputedError("the machine's memory holds a part of it")
    own = {"--spec-type", "--speculative-config"} & options.keys()
    itself = preset.drafter is None and bool(own)
    drafts = itself or preset.drafter is not None
    drafted = drafted_tokens(options) if drafts else 0
    accepted = accepted if preset.acceptance is None else preset.acceptance
    tokens = (
        1.0 if not drafts else 1 + drafted * accepted if drafted and accepted is not None else None
    )
    shape = model_shape(preset, own_drafts=itself)
    if shape is None:
        if EXPERTS.keys() & options.keys():
            raise NotComputedError("the tensors of its model are not known")
        return DecodeStep(_by_name(preset, size, drafts=drafts), engine != "vllm", tokens)
    weights = weight_bytes(shape, size, checkpoint=preset.model.whole)
    experts = weights["experts"] * expert_bytes(shape, drafted + 1)
    host = experts * _on_host(shape, options)
    read = weights["layers"] + weights["output"] + experts - host
    read += _drafter(preset, weights, shape, drafted)
    read += cache_bytes(shape, *cache_bits(options), FILLED)
    uneven = engine != "vllm" and (drafts or bool(weights["experts"]))
    return DecodeStep(read, uneven, tokens, host)


def expert_layers(shape: Shape) -> int:
    """The number of layers with experts."""
    return sum(name.endswith("ffn_down_exps.weight") for name in shape.tensors)


def _on_host(shape: Shape, options: Mapping[str, str]) -> float:
    given = [options.get(name, "") or of_all for name, of_all in EXPERTS.items() if name in options]
    layers = max((int(each) for each in given if each.isdecimal()), default=0)
    return min(1.0, layers / (expert_layers(shape) or 1))


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


def model_shape(preset: Preset, *, own_drafts: bool = False) -> Shape | None:
    """The model's shape, by the model's name; with its MTP block if it drafts itself."""
    known, name = shape_names(), re.sub(r"[\s_/]+", "-", preset.model.name.lower())
    name = next((of for of, file in _shape_files().items() if name in file.same), name)
    if own_drafts and f"{name}-mtp" in known:
        return shape_of(f"{name}-mtp")
    return shape_of(name) if name in known else None


def _by_name(preset: Preset, size: int, *, drafts: bool) -> float:
    found = ACTIVE.search(preset.model.name)
    if found is None or drafts:
        raise NotComputedError("the tensors of its model are not known")
    return size * float(found[2]) / float(found[1])


def _drafter(preset: Preset, weights: Mapping[Use, float], shape: Shape, drafted: int) -> float:
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


# The memory that a preset needs on its cards.

OFFLOADING = {
    *("--cpu-moe", "--n-cpu-moe", "--n-cpu-ffn", "--override-tensor", "--device", "--kv-offload"),
    *("--spec-draft-cpu-moe", "--spec-draft-n-cpu-moe", "--spec-draft-override-tensor"),
    *("--spec-draft-device", "--cpu-offload-gb", "--fit"),
}
"""Settings (``command.setting_of``) that keep weights or the cache in the machine's memory, or
choose what stays there."""
EXPERTS = {"--n-cpu-moe": "", "--cpu-moe": "9999"}
"""Settings of ``OFFLOADING`` that keep experts of so many layers there: their value, else this."""
ROWS = ("token_embd.weight", "per_layer_token_embd.weight")  # llama.cpp keeps them in host memory
ROW_BITS = 8.5  # of Q8_0: the most of a quantized file
NAMED_BITS = re.compile(
    r"(?:int|fp|w|q)([2-8])(?![0-9])|(?<![0-9])([2-8])-?bit|([2-8](?:\.\d+)?)bpw", re.I
)
FOUR_BITS = re.compile(r"awq|gptq|autoround|auto-round|nf4|bnb", re.I)
OTHER_BITS = re.compile(r"exl[23]|aqlm|hqq|quip|bitnet|mlx|gguf|quant|vptq|ptq|spqr", re.I)


@dataclass(frozen=True, slots=True)
class MemoryNeed:
    """Memory that a run takes on all its cards."""

    size: int  # bytes
    by: Literal["trial", "filled", "estimate", "source", "unverified"]
    """The trial on a simulated card, with a short request or with prompts that fill the context;
    the line between both; or the source of the preset, whose figure nobody confirmed if it is in
    [unverified]."""
    kinds: Mapping[str, int] = field(default_factory=dict)  # bytes by kind, where they are known
    own: int = 0  # bytes of the CUDA contexts of the card of the trial, part of ``size``

    def on(self, cards: Sequence[HostCard]) -> int:
        """Bytes on these cards, whose CUDA contexts may be larger or smaller."""
        contexts = sum(card.context for card in cards)
        return self.size - self.own + contexts if self.own and contexts else self.size


def memory_figures(
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
        found.append(tried_memory(trial, context))
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
    shape = model_shape(preset)
    if (shape is None and trial is not None) or OFFLOADING & options.keys():
        return None
    layers = options.get("--n-gpu-layers", "")
    count = number(shape, "block_count", 99) if shape is not None else 99
    if layers.isdecimal() and int(layers) < count:  # llama.cpp keeps others in host memory
        return None
    weights = max(_by_size(preset, options, shape), _by_shape(preset, options, shape))
    if not weights:
        return None
    drafter = preset.drafter.least_size if preset.drafter is not None else None
    bits = cache_bits(options, other=0)
    cache = cache_bytes(shape, *bits, context) if shape is not None else 0
    return weights + (drafter or 0), int(cache)


def _by_size(preset: Preset, options: Mapping[str, str], shape: Shape | None) -> int:
    """The bytes of the weights by the model's files, and by its source; 0: not known."""
    model, memory = preset.model, preset.memory
    size = model.least_size or 0
    if not model.whole:
        if shape is None:
            return size
        rows = [math.prod(shape.tensors[name]) for name in ROWS if name in shape.tensors]
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
    if shape is None or not preset.model.whole:
        return 0
    names = f"{preset.model.repository} {options.get('--quantization', '')}"
    found = NAMED_BITS.search(names)
    bits = (
        float(next(filter(None, found.groups()))) if found else 4 if FOUR_BITS.search(names) else 16
    )
    if found is None and OTHER_BITS.search(names) and not FOUR_BITS.search(names):
        return 0
    return int(sum(math.prod(each) for each in shape.tensors.values()) * bits / 8)


def tried_memory(use: PresetUse, context: int) -> MemoryNeed:
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
    return math.ceil(least + share * (most - least))


def _unconfirmed(preset: Preset, table: str, part: str) -> bool:
    return any(f"{table}.{part}.".startswith(f"{key}.") for key in preset.unverified)
