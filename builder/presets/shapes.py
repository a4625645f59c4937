"""Models by their shape: GGUF files with the tensors of real models, and holes for the weights.

An engine allocates the same memory for such a file as for the model itself.  The shapes are files
of ``shapes/``, which name their sources.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from itertools import combinations, count, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

from pydantic import Field

from builder.core.errors import RecipeError, suggestion
from builder.core.farm import installed
from builder.recipes.catalog import read_model
from builder.recipes.fields import Model, Text

if TYPE_CHECKING:
    import gguf
    from gguf import GGMLQuantizationType


# The contents of a model's GGUF file, without the weights: ``shapes/NAME.toml``.
#
# A file has the values of the model's GGUF and names groups of tensors of ``shapes/tensors``,
# whose dimensions follow from these values.

TINY = "tiny"  # the folder of shapes that stand for no published model
Value = str | bool | int | float | list[bool] | list[int] | list[float]
Dimensions = tuple[int, ...]
"""A tensor's, in ggml's order: the length of a row first."""
Count = Annotated[int, Field(gt=0)]
T = TypeVar("T")


class NoShapeError(ValueError):
    """There is no shape of a name; the text names the nearest one."""


class Tokenizer(Model):
    """A vocabulary of ``size`` tokens, as ``write_tokens`` makes it."""

    model: Text
    """``tokenizer.ggml.model``: gpt2 or gemma4."""
    size: Count
    pre: str = ""
    """``tokenizer.ggml.pre``; empty where the model decides it."""
    mask: int | None = None
    """The id of the token that stands for one to be drafted."""


class Layers(Model):
    """Layers that follow each other, ``times`` over."""

    times: Count
    kinds: list[Text]


class TensorFile(Model):
    """``shapes/tensors/NAME.toml``: tensors that models have in common, in groups."""

    blocks: Text = "blk"
    """The prefix before the number of a layer in the names of its tensors."""
    fixed: dict[str, Text] = Field(default_factory=dict)
    """ggml's types of tensors whose type no quantization changes, by a part of their names."""
    group: dict[str, dict[str, list[Count | Text]]]
    """Dimensions by the name of a tensor: numbers, or sums of products of numbers and of values of
    the GGUF, such as ``2 * ssm.state_size + ssm.inner_size``; ``vocabulary`` is the tokenizer's
    size.  A value with an element for each layer has the one of the layer."""


class ShapeFile(Model):
    """``shapes/NAME.toml``: a model."""

    architecture: Text
    kind: Text = "model"
    """``general.type``: model, or mmproj for a multimodal projector."""
    tensors: Text
    """The file of ``shapes/tensors`` that has the groups."""
    parts: list[Text]
    """The groups outside of the layers."""
    kinds: dict[str, list[Text]]
    """The groups of each kind of layer."""
    layers: list[Layers]
    repositories: list[Text] = Field(default_factory=list)
    """Repositories of the Hugging Face Hub whose files have this shape."""
    tokenizer: Tokenizer | None = None
    values: dict[str, Value]
    """By key, without the architecture before it: ``attention.head_count``."""


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
    files = {name: read_model(_folder() / f"{name}.toml", ShapeFile) for name in shape_names()}
    return {repository: name for name, file in files.items() for repository in file.repositories}


@cache
def shape_of(name: str) -> Shape:
    """The shape of this name; raises ``NoShapeError``, and ``RecipeError`` for an invalid file."""
    known = shape_names()
    if name not in known:
        raise NoShapeError(f"no shape is named {name}{suggestion(name, list(known))}")
    return read_shape(_folder() / f"{name}.toml")


def tiny_names() -> tuple[str, ...]:
    """The names of the shapes of tiny models: ``shapes/tiny``."""
    return tuple(sorted(file.stem for file in (_folder() / TINY).glob("*.toml")))


@cache
def tiny(name: str) -> Shape:
    """The shape of a tiny model of this name; raises ``RecipeError`` for an invalid file."""
    return read_shape(_folder() / TINY / f"{name}.toml", _folder())


def read_shape(path: Path, folder: Path | None = None) -> Shape:
    """The shape of a file; raises ``RecipeError`` where it is invalid.

    ``folder`` has the folder ``tensors``; None: the file's own.
    """
    file = read_model(path, ShapeFile)
    common = read_model((folder or path.parent) / "tensors" / f"{file.tensors}.toml", TensorFile)
    tensors: dict[str, Dimensions] = {}
    for name, dimensions in _Tensors(path, file, common).all():
        if name in tensors:
            raise _invalid(path, f"it has the tensor {name} twice")
        tensors[name] = dimensions
    return Shape(file.architecture, file.kind, file.values, tensors, common.fixed, file.tokenizer)


def _folder() -> Path:
    return installed() / "shapes"


def _invalid(path: Path, why: str) -> RecipeError:
    return RecipeError(f"{path.name} is no shape of a model", why, f"correct {path}")


class _Tensors:
    """The tensors of a file; its methods raise ``RecipeError`` for a name that is not there."""

    def __init__(self, path: Path, file: ShapeFile, common: TensorFile) -> None:
        self._path, self._file, self._common = path, file, common
        self._kinds = [kind for each in file.layers for kind in each.kinds * each.times]
        self._values: dict[str, Any] = dict(file.values)
        if file.tokenizer is not None:
            self._values["vocabulary"] = file.tokenizer.size

    def all(self) -> Iterator[tuple[str, Dimensions]]:
        """Each with its dimensions: those outside of the layers first."""
        for part in self._file.parts:
            yield from self._group(part, "")
        for layer, kind in enumerate(self._kinds):
            for part in self._found(self._file.kinds, kind, "kind of layer"):
                yield from self._group(part, f"{self._common.blocks}.{layer}.", layer)

    def _group(self, part: str, before: str, layer: int = 0) -> Iterator[tuple[str, Dimensions]]:
        for name, dimensions in self._found(self._common.group, part, "group").items():
            yield f"{before}{name}", tuple(self._size(each, layer) for each in dimensions)

    def _size(self, dimension: int | str, layer: int) -> int:
        products = (term.split("*") for term in str(dimension).split("+"))
        return sum(math.prod(self._factor(each.strip(), layer) for each in p) for p in products)

    def _factor(self, text: str, layer: int) -> int:
        if text.isdigit():
            return int(text)
        value = self._found(self._values, text, "value")
        if not isinstance(value, list):
            return int(value)
        if len(value) != len(self._kinds):
            why = f"{text} has {len(value)} elements, and there are {len(self._kinds)} layers"
            raise _invalid(self._path, why)
        return int(value[layer])

    def _found(self, table: Mapping[str, T], name: str, what: str) -> T:
        if name not in table:
            why = f"there is no {what} {name}{suggestion(name, list(table))}"
            raise _invalid(self._path, why)
        return table[name]


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
    """The bytes of so many tokens in the cache; a layer with a window has no more than fit."""
    pattern = shape.values.get("attention.sliding_window_pattern")
    total = 0.0
    for name, dimensions in shape.tensors.items():
        if name.endswith("attn_k.weight"):
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


# Types of tensors, so that a file has a wanted size.
#
# Published files mix types.  Here most tensors have one type and some the next larger one: the
# memory on the card follows from the sum.  As in files of llama.cpp's ``llama-quantize``, norms,
# biases and routers are not quantized, the output has six bits at least, and a tensor whose rows
# do not divide into blocks of 256 gets a type with blocks of 32.

LADDER = ("Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "Q8_0", "F16", "F32")
USUAL = "Q4_K"  # where no size is wanted
USUAL_OF_PROJECTORS = "F16"
OUTPUT = "Q6_K"  # the least type of the output
# tensor_type_fallback of src/llama-quant.cpp
FALLBACKS = {"Q2_K": "Q4_0", "Q3_K": "Q4_0", "Q4_K": "Q5_0", "Q5_K": "Q5_1", "Q6_K": "Q8_0"}
EMBEDDINGS = ("token_embd.weight", "per_layer_token_embd.weight")
ALIGNMENT = 32  # bytes
CLOSE = 1 << 20  # bytes: closer is not looked for

Kinds = Mapping[str, "GGMLQuantizationType"]


class SizeError(ValueError):
    """No types of tensors give a model the wanted size."""


def usual(shape: Shape) -> Kinds:
    """The types where no size is wanted."""
    return _all(shape, USUAL_OF_PROJECTORS if shape.kind == "mmproj" else USUAL)


def reaching(shape: Shape, wanted: int) -> Kinds:
    """Types with which the tensors have ``wanted`` bytes, or as close below as they come.

    Raises ``SizeError`` where the least types are too large, or the largest too small.
    """
    ladder = [_all(shape, name) for name in LADDER]
    sums = [total(shape, kinds) for kinds in ladder]
    if not sums[0] <= wanted <= sums[-1]:
        raise SizeError(f"{wanted} bytes are not between {sums[0]} and {sums[-1]}")
    steps = zip(pairwise(ladder), pairwise(sums), strict=True)
    low, high = next(pair for pair, (least, most) in steps if least <= wanted <= most)
    return _mixed(shape, low, high, wanted)


def _mixed(shape: Shape, low: Kinds, high: Kinds, wanted: int) -> Kinds:
    """Some tensors of larger types: as few embeddings as possible, because engines keep embeddings
    in the host's memory, then the largest tensors first."""
    more = {
        name: nbytes(dimensions, high[name]) - nbytes(dimensions, low[name])
        for name, dimensions in shape.tensors.items()
    }
    embeddings = [name for name in EMBEDDINGS if name in more]
    others = sorted(more.keys() - set(embeddings), key=lambda name: (-more[name], name))
    best, gap = low, wanted
    for moved in range(len(embeddings) + 1):
        for chosen in combinations(embeddings, moved):
            left = wanted - total(shape, low) - sum(more[name] for name in chosen)
            taken = set(chosen)
            for name in others:
                if more[name] <= left:
                    taken.add(name)
                    left -= more[name]
            if 0 <= left < gap:
                best, gap = {name: (high if name in taken else low)[name] for name in more}, left
            if gap < CLOSE:
                return best
    return best


def total(shape: Shape, kinds: Kinds) -> int:
    """The bytes of all tensors in a file."""
    sizes = (nbytes(dimensions, kinds[name]) for name, dimensions in shape.tensors.items())
    return sum(-(-size // ALIGNMENT) * ALIGNMENT for size in sizes)


def nbytes(dimensions: Dimensions, kind: GGMLQuantizationType) -> int:
    """The bytes of a tensor."""
    from gguf import GGML_QUANT_SIZES

    elements, size = GGML_QUANT_SIZES[kind]
    return math.prod(dimensions) // elements * size


def _all(shape: Shape, usual: str) -> Kinds:
    """The types of all tensors, where most have this one."""
    return {name: _kind(shape, name, usual) for name in shape.tensors}


def _kind(shape: Shape, name: str, usual: str) -> GGMLQuantizationType:
    from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

    dimensions = shape.tensors[name]
    for part, fixed in shape.fixed.items():
        if part in name:
            return GGMLQuantizationType[fixed]
    if len(dimensions) == 1:
        return GGMLQuantizationType.F32
    output = "output.weight" if "output.weight" in shape.tensors else "token_embd.weight"
    if name == output:
        usual = max(usual, OUTPUT, key=LADDER.index)
    kind = GGMLQuantizationType[usual]
    if dimensions[0] % GGML_QUANT_SIZES[kind][0]:
        kind = GGMLQuantizationType[FALLBACKS.get(usual, "F16")]
    if dimensions[0] % GGML_QUANT_SIZES[kind][0]:
        kind = GGMLQuantizationType.F16
    return kind


# Vocabularies of the real size: characters and words, no text of anyone's tokenizer.
#
# Every byte can be written with them, so that any prompt can be sent.  A character is a token; the
# text of a real tokenizer has about four characters a token.

PAIRS = ("h e", "{space} t", "{space}t he")  # a tokenizer without merges is refused
WORDS = ("he", "{space}t", "{space}the")
SPACE_GPT2, SPACE_GEMMA = "\u0120", "\u2581"
SPECIAL_GPT2 = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
SPECIAL_GEMMA = ("<pad>", "<eos>", "<bos>", "<unk>", "<mask>")


PRINTABLE = range(33, 127)  # the characters of ASCII that are seen


def printable(tokenizer: Tokenizer) -> range:
    """The ids of the tokens that are one character of ``PRINTABLE``, in its order."""
    # A character of gpt2 stands for its byte; in gemma4 a line feed and a space come before.
    first = PRINTABLE.start
    if tokenizer.model == "gemma4":
        first = len(SPECIAL_GEMMA) + 256 + len(("\n", SPACE_GEMMA))
    return range(first, first + len(PRINTABLE))


def write_tokens(writer: gguf.GGUFWriter, tokenizer: Tokenizer) -> None:
    """Add the vocabulary to a file."""
    (_gemma4 if tokenizer.model == "gemma4" else _gpt2)(writer, tokenizer)
    if tokenizer.mask is not None:
        writer.add_mask_token_id(tokenizer.mask)


def _gpt2(writer: gguf.GGUFWriter, tokenizer: Tokenizer) -> None:
    """A character for each byte, then words, then special tokens, as of Qwen."""
    from gguf import TokenType

    tokens = [*_bytes_as_characters(), *_with_space(WORDS, SPACE_GPT2)]
    rest = tokenizer.size - len(tokens) - len(SPECIAL_GPT2)
    tokens += [f"{SPACE_GPT2}word{number}" for number in range(rest)]
    kinds = [int(TokenType.NORMAL)] * len(tokens) + [int(TokenType.CONTROL)] * len(SPECIAL_GPT2)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(tokenizer.pre)
    writer.add_token_list([*tokens, *SPECIAL_GPT2])
    writer.add_token_types(kinds)
    writer.add_token_merges(_with_space(PAIRS, SPACE_GPT2))
    writer.add_eos_token_id(tokenizer.size - 1)
    writer.add_pad_token_id(tokenizer.size - 3)
    writer.add_add_bos_token(False)


def _bytes_as_characters() -> list[str]:
    """GPT-2's table: bytes that print are themselves, the others begin at U+0100."""
    shown = [*PRINTABLE, *range(161, 173), *range(174, 256)]
    others = count(256)
    return [chr(byte if byte in shown else next(others)) for byte in range(256)]


def _gemma4(writer: gguf.GGUFWriter, tokenizer: Tokenizer) -> None:
    """Special tokens, bytes, characters, then words; a space is U+2581."""
    from gguf import TokenType

    characters = ["\n", SPACE_GEMMA, *map(chr, PRINTABLE), *_with_space(WORDS, SPACE_GEMMA)]
    tokens = [*SPECIAL_GEMMA, *(f"<0x{byte:02X}>" for byte in range(256)), *characters]
    rest = range(tokenizer.size - len(tokens))
    kinds = [int(TokenType.CONTROL)] * len(SPECIAL_GEMMA) + [int(TokenType.BYTE)] * 256
    kinds += [int(TokenType.NORMAL)] * (len(characters) + len(rest))
    writer.add_tokenizer_model("gemma4")
    writer.add_token_list([*tokens, *(f"{SPACE_GEMMA}word{number}" for number in rest)])
    writer.add_token_scores([0.0] * tokenizer.size)
    writer.add_token_types(kinds)
    writer.add_token_merges(_with_space(PAIRS, SPACE_GEMMA))
    writer.add_pad_token_id(0)
    writer.add_eos_token_id(1)
    writer.add_bos_token_id(2)
    writer.add_unk_token_id(3)
    writer.add_add_space_prefix(False)
    writer.add_add_bos_token(True)


def _with_space(texts: tuple[str, ...], space: str) -> list[str]:
    return [text.format(space=space) for text in texts]


def write(name: str, file: Path, size: int | None = None) -> Path:
    """Write the model: its header, and a hole for its weights.

    A file of ``size`` bytes is smaller by some kB, a small one by up to 2 %, and never larger;
    without a size, most tensors have four bits a weight, and a projector's tensors sixteen.

    Raises ``NoShapeError``, and ``SizeError`` where no quantization of the model has this size.
    """
    shape = shape_of(name)
    header = _write(name, shape, file, usual(shape))
    if size is not None:
        _write(name, shape, file, reaching(shape, size - header))
    return file


def _write(name: str, shape: Shape, file: Path, kinds: Kinds) -> int:
    """Write the file; the size of its header in bytes."""
    import gguf
    import numpy as np

    writer = gguf.GGUFWriter(file, shape.architecture)
    writer.add_type(shape.kind)
    writer.add_name(f"{name} without its weights")
    describe(writer, shape)
    for tensor, dimensions in shape.tensors.items():
        kind, numpys = kinds[tensor], tuple(reversed(dimensions))  # numpy's first is ggml's last
        count = nbytes(dimensions, kind)
        writer.add_tensor_info(tensor, numpys, np.dtype(np.float32), count, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    writer.close()
    with file.open("r+b") as stream:
        header = -(-stream.seek(0, 2) // ALIGNMENT) * ALIGNMENT
        stream.truncate(header + total(shape, kinds))
    return header


def describe(writer: gguf.GGUFWriter, shape: Shape) -> None:
    """Add the values of a model and its vocabulary to a file."""
    for key, value in shape.values.items():
        full = f"{shape.architecture}.{key}"
        match value:
            case str():
                writer.add_string(full, value)
            case bool():
                writer.add_bool(full, value)
            case int():
                writer.add_uint32(full, value)
            case float():
                writer.add_float32(full, value)
            case _:
                writer.add_array(full, value)
    if shape.tokenizer is not None:
        write_tokens(writer, shape.tokenizer)
