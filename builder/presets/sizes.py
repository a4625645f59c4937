"""Types of tensors, so that a file has a wanted size.

Published files mix types.  Here most tensors have one type and some the next larger one: the memory
on the card follows from the sum.  As in files of llama.cpp's ``llama-quantize``, norms, biases and
routers are not quantized, the output has six bits at least, and a tensor whose rows do not divide
into blocks of 256 gets a type with blocks of 32.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import combinations, pairwise
from typing import TYPE_CHECKING

from builder.presets.shape import Dimensions, Shape

if TYPE_CHECKING:
    from gguf import GGMLQuantizationType

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
    for count in range(len(embeddings) + 1):
        for chosen in combinations(embeddings, count):
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
