"""Model files that we write by their shape: with holes for the weights, or tiny, with random ones.

An engine allocates the same memory for a hole as for the model itself.
"""

from __future__ import annotations

import math
import re
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, count, pairwise
from pathlib import Path
from typing import TYPE_CHECKING

from builder.presets import shapes
from builder.presets.shapes import Dimensions, Shape, Tokenizer

if TYPE_CHECKING:
    import gguf
    import numpy as np
    from gguf import GGMLQuantizationType as Kind
    from numpy.typing import NDArray

    Values = NDArray[np.float64]

# Types of tensors, so that a file has a wanted size.
#
# Published files mix types.  Here most tensors have one type and some the next larger one: the
# memory on the card follows from the sum.  As in files of llama.cpp's ``llama-quantize``, norms,
# biases and routers are not quantized, the output has six bits at least, and a tensor whose rows
# do not divide into blocks of 256 gets a type with blocks of 32.

LADDER = ("IQ2_XXS", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "Q8_0", "F16", "F32")
USUAL = "Q4_K"  # where no size is wanted
USUAL_OF_PROJECTORS = "F16"
OUTPUT = "Q6_K"  # the least type of the output
# tensor_type_fallback of src/llama-quant.cpp
FALLBACKS = dict.fromkeys(("IQ2_XXS", "Q2_K", "Q3_K"), "Q4_0")
FALLBACKS |= {"Q4_K": "Q5_0", "Q5_K": "Q5_1", "Q6_K": "Q8_0"}
EMBEDDINGS = ("token_embd.weight", "per_layer_token_embd.weight")
ALIGNMENT = 32  # bytes
CLOSE = 1 << 20  # bytes: closer is not looked for

Kinds = Mapping[str, "Kind"]


class SizeError(ValueError):
    """No types of tensors give a model the wanted size."""


def usual(shape: Shape) -> Kinds:
    """The types where no size is wanted."""
    return _all(shape, USUAL_OF_PROJECTORS if shape.kind == "mmproj" else USUAL)


def reaching(shape: Shape, wanted: int) -> Kinds:
    """Types with which the tensors have ``wanted`` bytes, or as close below as they come."""
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


def nbytes(dimensions: Dimensions, kind: Kind) -> int:
    """The bytes of a tensor."""
    from gguf import GGML_QUANT_SIZES

    elements, size = GGML_QUANT_SIZES[kind]
    return math.prod(dimensions) // elements * size


def _all(shape: Shape, usual: str) -> Kinds:
    return {name: _kind(shape, name, usual) for name in shape.tensors}


def _unquantized(shape: Shape, name: str) -> Kind | None:
    from gguf import GGMLQuantizationType

    fixed = next((kind for part, kind in shape.fixed.items() if part in name), None)
    if fixed is None and len(shape.tensors[name]) == 1:
        fixed = "F32"
    return None if fixed is None else GGMLQuantizationType[fixed]


def _kind(shape: Shape, name: str, usual: str) -> Kind:
    from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

    if (fixed := _unquantized(shape, name)) is not None:
        return fixed
    dimensions = shape.tensors[name]
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

    tokens = [*bytes_as_characters(), *_with_space(WORDS, SPACE_GPT2)]
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


def bytes_as_characters() -> list[str]:
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


def write_shape(name: str, file: Path, size: int | None = None) -> Path:
    """Write the model: its header, and a hole for its weights.

    A file of ``size`` bytes is smaller by some kB, a small one by up to 2 %, and never larger;
    without a size, most tensors have four bits a weight, and a projector's tensors sixteen.

    Raises ``SizeError`` where no quantization of the model has this size.
    """
    shape = shapes.shape_of(name)
    header = _write_shape(name, shape, file, usual(shape))
    if size is not None:
        _write_shape(name, shape, file, reaching(shape, size - header))
    return file


def _write_shape(name: str, shape: Shape, file: Path, kinds: Kinds) -> int:
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


# Tiny models with random weights, written with llama.cpp's ``gguf`` package: a few megabytes.
#
# The shapes are files of ``shapes/tiny``.  A model continues a text so that its numbers matter:
#
# - The output gives each printable token two likely successors, and the output of the layers
#   decides between the two: a text follows from all numbers before it, and ties are rare.
# - Weights are scaled so that layers add about as much as the embedding, and attention looks at
#   several tokens.
# - A block or a model that drafts sees the same embeddings through layers of its own: some of its
#   drafts are right, others wrong.  DFlash does not see the token before the one that it drafts, so
#   none is right; the head of DSpark does.

LIKELY = 8.0  # the logit of a successor, where layers add nothing
VARIED = 1.5  # standard deviation of all logits
PEAKED = 2.0  # standard deviation of the scores of attention
ROUTED = (4.0, 3.0)  # the scores of a token's two experts, where layers add nothing
ADDED = 0.5  # what a part of a layer adds, where a norm is behind it
OF_STATE = 0.5  # share of the target's hidden state in the input of a block that drafts
GEMMA, EAGLE3 = "gemma4", "eagle3"
TRIAL = 2**-10  # a scale of blocks of random bits, by which their deviation is measured
PROJECTION = "nextn.pre_projection.weight"
LAYER = re.compile(r"^blk\.(\d+)\.")
BLOCK = "nextn."
"""In the names of tensors of a layer that drafts (llama.cpp, gguf-py/gguf/constants.py)."""
BLOCKS = "nextn_predict_layers"
ADDING = {"attn_output", "ssm_out", "ffn_down", "ffn_down_exps", "ffn_down_shexp", "proj"}
"""The last matrix of each part of a layer: its result is added to the input of the layer."""

OF_TOKEN = {"attn_q", "attn_k", "attn_v", "attn_output"}

# Types that gguf reads and does not write: where the scales in half precision are in a block
# (ggml-common.h), with the factor by which their values cancel.  Other bytes may be any.
SCALES = {"Q4_K": {0: 1.0, 2: 7.5}, "Q6_K": {208: 1.0}}
# Tensors whose values are chosen, so that they have a type that gguf writes.
CHOSEN = {"token_embd", "output", "nextn.eh_proj", "nextn.pre_projection", "markov_w1", "markov_w2"}


@dataclass(frozen=True, slots=True)
class TinyModel:
    """A tiny model: its shape, and the type of its weights."""

    shape: str  # a name in ``shapes/tiny``
    kind: str  # ggml's name of the type: Q4_K.  Norms, routers and the like have types of their own
    seed: int = 1
    target: str | None = None
    """The shape of the model that this one drafts for; both have the same seed."""
    layers: int | None = None
    """So many layers, the first ones, add to their input; the others have zeros for that.  None:
    all add."""
    block: bool = True  # with the block that drafts, where the shape has one

    @property
    def name(self) -> str:
        """As reports have it: ``llama Q4_K``."""
        return f"{self.shape} {self.kind}{'' if self.block else ' without its block'}"


def tiny_layers(model: TinyModel) -> int:
    """The number of layers, without the block that drafts."""
    shape = shapes.tiny(model.shape)
    return len(_layers_with("", shape) - _layers_with(BLOCK, shape))


def has_block(model: TinyModel) -> bool:
    """Whether the model has a block that drafts for it.  Raises ``RecipeError``."""
    return model.block and bool(_layers_with(BLOCK, shapes.tiny(model.shape)))


def write_tiny(model: TinyModel, file: Path) -> None:
    """Write the model; equal models have equal bytes.  Raises ``RecipeError``."""
    import gguf

    shape = _shape(model)
    writer = gguf.GGUFWriter(file, shape.architecture)
    writer.add_type(shape.kind)
    writer.add_name(f"tiny {model.name}")
    describe(writer, shape)
    for name, values, kind in _tensors(model, shape):
        writer.add_tensor(name, values, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    file.chmod(0o644)  # the image's own user reads it


def _shape(model: TinyModel) -> Shape:
    whole = shapes.tiny(model.shape)
    if model.block:
        return whole
    blocks = _layers_with(BLOCK, whole)
    tensors = {
        name: dimensions for name, dimensions in whole.tensors.items() if _layer(name) not in blocks
    }
    values = {key: value for key, value in whole.values.items() if key != BLOCKS}
    return replace(whole, tensors=tensors, values={**values, "block_count": tiny_layers(model)})


def _layers_with(part: str, shape: Shape) -> set[int]:
    return {layer for name in shape.tensors if part in name and (layer := _layer(name)) is not None}


def _layer(name: str) -> int | None:
    found = LAYER.match(name)
    return None if found is None else int(found[1])


def _tensors(model: TinyModel, shape: Shape) -> Iterator[tuple[str, NDArray[np.generic], Kind]]:
    from gguf import quants

    weights = _Weights(model, shape)
    for name, dimensions in shape.tensors.items():
        kind = _tiny_kind(shape, name, model.kind)
        if kind.name in SCALES:
            blocks = _random_blocks(generator(model.seed, name), dimensions, kind)
        elif kind.name == "I64":
            blocks = weights.of(name).astype("int64")
        else:
            blocks = quants.quantize(weights.of(name), kind)
        layer = _layer(name)
        idle = model.layers is not None and layer is not None and layer >= model.layers
        # In each of these types, zeros are blocks of zeros.
        yield name, 0 * blocks if idle and _part(name) in ADDING else blocks, kind


def _tiny_kind(shape: Shape, name: str, usual: str) -> Kind:
    from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

    if (fixed := _unquantized(shape, name)) is not None:
        return fixed
    if _part(name) in CHOSEN and usual not in {"F32", "F16", "BF16"}:
        usual = "Q8_0"
    kind = GGMLQuantizationType[usual]
    rest = shape.tensors[name][0] % GGML_QUANT_SIZES[kind][0]
    return GGMLQuantizationType.F16 if rest else kind


def generator(seed: int, name: str) -> np.random.Generator:
    """Each tensor has its own, so that another model can have the same tensor."""
    import numpy as np

    return np.random.default_rng([seed, zlib.crc32(name.encode())])


def output_of(seen: Values, shown: Sequence[int], noise: Values, seed: int) -> Values:
    """The output: each shown token's row is like the embeddings of the two tokens that it follows.

    ``seen`` are the embeddings as the layers see them; ``noise`` has deviation 1.
    """
    import numpy as np

    rows, width, tokens = np.zeros(seen.shape), seen.shape[1], np.array(shown)
    for which in ("successor", "other successor"):
        round_trip = generator(seed, which).permutation(tokens)
        rows[np.roll(round_trip, -1)] += LIKELY / width * seen[round_trip]
    rows[tokens] += VARIED / math.sqrt(width) * noise[tokens]
    return rows


def _random_blocks(
    source: np.random.Generator, dimensions: Dimensions, kind: Kind
) -> NDArray[np.uint8]:
    """Blocks of random bits, scaled so that a product with normed values is about as large."""
    import numpy as np
    from gguf import GGML_QUANT_SIZES, quants

    elements, size = GGML_QUANT_SIZES[kind]
    width, *others = dimensions
    blocks = source.integers(0, 256, (math.prod(dimensions) // elements, size), np.uint8)

    def scale(by: float) -> None:
        for place, factor in SCALES[kind.name].items():
            blocks[:, place : place + 2] = np.array([by * factor], np.float16).view(np.uint8)

    scale(TRIAL)
    scale(TRIAL / float(quants.dequantize(blocks, kind).std()) / math.sqrt(width))
    return blocks.reshape(*reversed(others), width // elements * size)


def _part(name: str) -> str:
    return LAYER.sub("", name).removesuffix(".weight")


class _Weights:
    def __init__(self, model: TinyModel, shape: Shape) -> None:
        self._model, self._shape = model, shape
        self._gemma = shape.architecture.startswith(GEMMA)
        width, tokenizer = shape.values["embedding_length"], shape.tokenizer
        if not isinstance(width, int) or tokenizer is None:
            raise ValueError(f"{model.shape} is no shape of a model that continues texts")
        self._width, self._tokenizer = width, tokenizer

    def of(self, name: str) -> NDArray[np.float32]:
        import numpy as np

        match _part(name):
            case "token_embd":
                # A model that drafts embeds with its target's: its own tensor is its output.
                values = self._output() if self._model.target else self.seen()
                # Gemma multiplies embeddings by the root of their length.
                if self._gemma and not self._model.target:
                    values = values / math.sqrt(self._width)
            case "output" | "markov_w2":
                values = self._output()
                if self._shape.architecture == EAGLE3:
                    values = values[[*printable(self._tokenizer)]]
            case "d2t":
                values = np.array(printable(self._tokenizer))
            case "markov_w1":
                values = self.seen()
            case "nextn.eh_proj" | "nextn.pre_projection":
                values = self._projection(name)
            case "ffn_gate_inp":
                values = self._router(name)
            case _:
                values = self._plain(name)
        return values.astype(np.float32)

    def _normal(self, name: str, *dimensions: int) -> Values:
        return generator(self._model.seed, name).standard_normal(dimensions)

    def seen(self) -> Values:
        """The embeddings of the tokens as the layers see them, with deviation 1."""
        if self._model.target is None:
            return self._normal("token_embd.weight", self._tokenizer.size, self._width)
        target = TinyModel(self._model.target, self._model.kind, self._model.seed)
        seen = _Weights(target, shapes.tiny(target.shape)).seen()
        if PROJECTION not in self._shape.tensors:
            return seen
        return seen @ self._projection(PROJECTION)[:, : seen.shape[1]].T

    def _projection(self, name: str) -> Values:
        """From an embedding, and a hidden state of the target, to the input of the layers."""
        import numpy as np

        both, width = self._shape.tensors[name]
        half = both // 2
        values = self._normal(name, width, both) / math.sqrt(half)
        values[:, half:] *= OF_STATE
        if width == half:
            values[:, :half] = np.identity(half)
        return values

    def _output(self) -> Values:
        seen, shown = self.seen(), printable(self._tokenizer)
        return output_of(seen, shown, self._normal("output.weight", *seen.shape), self._model.seed)

    def _router(self, name: str) -> Values:
        """Two experts for each token; the output of earlier layers rarely changes the choice.

        Rounding would often turn the choice between random scores, and with it all that follows.
        """
        import numpy as np

        width, experts = self._shape.tensors[name]
        source, shown = generator(self._model.seed, name), [*printable(self._tokenizer)]
        first = source.integers(0, experts, len(shown))
        second = (first + source.integers(1, experts, len(shown))) % experts
        rows, seen = np.zeros((experts, width)), self.seen()[shown]
        for chosen, score in zip((first, second), ROUTED, strict=True):
            np.add.at(rows, chosen, score / width * seen)
        return rows

    def _plain(self, name: str) -> Values:
        import numpy as np

        dimensions = self._shape.tensors[name]
        values = self._normal(name, *reversed(dimensions))
        length = math.sqrt(dimensions[0])
        match _part(name):
            case "attn_q_norm" | "attn_k_norm":
                # Gemma does not divide scores by the root of the length of a head.
                return (1 + values / 10) * math.sqrt(PEAKED / (length if self._gemma else 1.0))
            case "post_attention_norm" | "post_ffw_norm" | "post_norm" if self._gemma:
                return (1 + values / 10) * ADDED
            case part if "norm" in part:
                return 1 + values / 10
            case "rope_freqs":  # conversion/gemma.py: a quarter of a head is rotated
                return np.where(np.arange(values.size) < values.size // 4, 1.0, 1e30)
            case "ssm_a":  # minus the speeds of forgetting
                return -np.exp(values - 1)
            case "layer_output_scale":
                return np.full(dimensions, 0.9)
            case part if part in OF_TOKEN and self._shape.architecture == EAGLE3:
                # EAGLE-3 sees the last token through attention alone: each looks at itself.
                values[:, : self._width] = length * np.eye(len(values), self._width)
                return values / length
            case "ssm_conv1d" | "ssm_dt.bias":
                return values / 2
            case _:
                return values / length
