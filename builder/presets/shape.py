"""The contents of a model's GGUF file, without the weights: ``shapes/NAME.toml``.

A file has the values of the model's GGUF and names groups of tensors of ``shapes/tensors``, whose
dimensions follow from these values.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import Field

from builder.core.errors import RecipeError, suggestion
from builder.core.farm import installed
from builder.recipes.fields import Model, Text
from builder.recipes.parse import read_model

TINY = "tiny"  # the folder of shapes that stand for no published model
Value = str | bool | int | float | list[bool] | list[int] | list[float]
Dimensions = tuple[int, ...]
"""A tensor's, in ggml's order: the length of a row first."""
Count = Annotated[int, Field(gt=0)]
T = TypeVar("T")


class NoShapeError(ValueError):
    """There is no shape of a name; the text names the nearest one."""


class Tokenizer(Model):
    """A vocabulary of ``size`` tokens, as ``tokens.write`` makes it."""

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
def names() -> tuple[str, ...]:
    """The names of all shapes."""
    return tuple(sorted(file.stem for file in _folder().glob("*.toml")))


@cache
def published() -> Mapping[str, str]:
    """The shape of the models of a repository of the Hugging Face Hub, by its name."""
    files = {name: read_model(_folder() / f"{name}.toml", ShapeFile) for name in names()}
    return {repository: name for name, file in files.items() for repository in file.repositories}


@cache
def of(name: str) -> Shape:
    """The shape of this name; raises ``NoShapeError``, and ``RecipeError`` for an invalid file."""
    known = names()
    if name not in known:
        raise NoShapeError(f"no shape is named {name}{suggestion(name, list(known))}")
    return read(_folder() / f"{name}.toml")


def tiny_names() -> tuple[str, ...]:
    """The names of the shapes of tiny models: ``shapes/tiny``."""
    return tuple(sorted(file.stem for file in (_folder() / TINY).glob("*.toml")))


@cache
def tiny(name: str) -> Shape:
    """The shape of a tiny model of this name; raises ``RecipeError`` for an invalid file."""
    return read(_folder() / TINY / f"{name}.toml", _folder())


def read(path: Path, folder: Path | None = None) -> Shape:
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
