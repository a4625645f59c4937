"""What a GGUF file of an architecture holds, without the weights."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

Value = str | bool | int | float | Sequence[bool] | Sequence[int] | Sequence[float]
Dimensions = tuple[int, ...]
"""Of a tensor, in ggml's order: the length of a row first."""
Tensors = Iterator[tuple[str, Dimensions]]


@dataclass(frozen=True, slots=True)
class Tokenizer:
    """A vocabulary of ``size`` tokens, as ``tokens.write`` makes it."""

    model: str
    """``tokenizer.ggml.model``: gpt2 or gemma4."""
    size: int
    pre: str = ""
    """``tokenizer.ggml.pre``; empty where the model decides it."""
    mask: int | None = None
    """The id of the token that stands for one to be drafted."""


@dataclass(frozen=True, slots=True)
class Shape:
    """A model's values and tensors."""

    architecture: str
    values: Mapping[str, Value]
    """By key, without the architecture before it: ``attention.head_count``."""
    tensors: Mapping[str, Dimensions]
    tokenizer: Tokenizer | None = None
    fixed: Mapping[str, str] = field(default_factory=dict)
    """ggml's types of tensors whose type no quantization changes, by a part of their names."""
    kind: str = "model"
    """``general.type``: model, or mmproj for a multimodal projector."""


def weights(*pairs: tuple[str, Dimensions]) -> Tensors:
    """Tensors whose names end in ``.weight``."""
    return ((f"{name}.weight", dimensions) for name, dimensions in pairs)


def block(number: int, tensors: Iterable[tuple[str, Dimensions]]) -> Tensors:
    """The tensors of a layer, under the names that they have in a file."""
    return ((f"blk.{number}.{name}", dimensions) for name, dimensions in tensors)


def gated(width: int, inner: int) -> Tensors:
    """A feed-forward network with a gate."""
    return weights(
        ("ffn_gate", (width, inner)), ("ffn_up", (width, inner)), ("ffn_down", (inner, width))
    )
