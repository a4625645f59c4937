"""Tiny models: what gguf and our own reader read of them, and what their weights are good for."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import gguf as real
import numpy as np
import pytest
from gguf import quants

from builder.presets import made_models, shapes
from builder.presets.made_models import TinyModel
from simulator import gguf
from support.environment import REPOSITORY

# Each type beside the one of published files, and each shape.
MODELS = (
    *(TinyModel("llama", kind) for kind in ("F16", "Q8_0", "Q4_0", "Q4_K", "Q6_K")),
    TinyModel("qwen35", "Q4_K"),
    TinyModel("qwen35moe", "Q4_K"),
    TinyModel("gemma4", "Q8_0"),
    TinyModel("gemma4-assistant", "Q8_0", target="gemma4"),
    TinyModel("dflash", "Q8_0", target="qwen35moe"),
    TinyModel("dspark", "Q8_0", target="qwen35"),
    TinyModel("eagle3", "Q8_0", target="llama"),
)
# The published shape of the same architecture: its layers have the same tensors.
PUBLISHED = {
    "qwen35": "qwen3.6-27b-mtp",
    "qwen35moe": "qwen3.6-35b-a3b-mtp",
    "gemma4": "gemma-4-e2b",
    "gemma4-assistant": "gemma-4-e2b-assistant",
    "dflash": "qwen3.6-27b-dflash",
}
SAME = pytest.mark.parametrize("model", MODELS, ids=lambda model: model.name.replace(" ", "-"))


def values(file: Path) -> dict[str, np.ndarray]:
    """The values of all tensors, as gguf's package reads them."""
    return {
        each.name: each.data
        if each.tensor_type is real.GGMLQuantizationType.I64
        else quants.dequantize(each.data, each.tensor_type)
        for each in real.GGUFReader(file).tensors
    }


@SAME
def test_a_file_has_the_tensors_and_values_of_its_shape(model: TinyModel, tmp_path: Path) -> None:
    file = tmp_path / "model.gguf"
    made_models.write_tiny(model, file)
    shape = shapes.tiny(model.shape)
    with file.open("rb") as stream:
        header = gguf.read(stream)
    assert header.architecture == shape.architecture
    assert {each.name: each.shape for each in header.tensors} == shape.tensors
    assert header.end == file.stat().st_size < 6 << 20
    found = values(file)
    assert {name: array.shape[::-1] for name, array in found.items()} == shape.tensors
    assert all(np.isfinite(array).all() for array in found.values())
    types = {each.tensor_type.name for each in real.GGUFReader(file).tensors}
    assert model.kind in types
    for name, array in found.items():
        if array.ndim > 1 and array.shape[-1] > 4 and name != "output.weight":
            norm = array.std() * math.sqrt(array.shape[-1])
            assert norm > 0.5, f"{name} would add nothing"


@pytest.mark.parametrize(("name", "published"), PUBLISHED.items())
def test_the_tensors_are_those_of_the_published_model(name: str, published: str) -> None:
    def kinds(shape: shapes.Shape) -> set[str]:
        return {made_models.LAYER.sub("", tensor) for tensor in shape.tensors}

    more = {"output.weight"} if name == "gemma4" else set()  # an output of its own
    assert kinds(shapes.tiny(name)) == kinds(shapes.shape_of(published)) | more
    ours, theirs = shapes.tiny(name).values.keys(), shapes.shape_of(published).values.keys()
    # A sliding window of DFlash is optional: files of June have it.
    assert ours >= {key for key in theirs if "sliding_window" not in key or name != "dflash"}


@SAME
def test_layers_that_add_nothing_have_zeros(model: TinyModel, tmp_path: Path) -> None:
    made_models.write_tiny(model, tmp_path / "all.gguf")
    made_models.write_tiny(replace(model, layers=1), tmp_path / "first.gguf")
    every, first = values(tmp_path / "all.gguf"), values(tmp_path / "first.gguf")
    layers = {int(name.split(".")[1]) for name in every if name.startswith("blk.")}
    changed = {name for name, array in every.items() if not np.array_equal(array, first[name])}
    assert {int(name.split(".")[1]) for name in changed} == layers - {0}
    assert not any(first[name].any() for name in changed)
    for layer in layers - {0}:  # what attention gives, and what the experts or the network gives
        parts = {name.split(".")[2] for name in changed if name.startswith(f"blk.{layer}.")}
        assert parts & {"attn_output", "ssm_out"}
        assert parts & {"ffn_down", "ffn_down_exps"}


@pytest.mark.parametrize("name", ["qwen35", "qwen35moe"])
def test_a_model_without_its_block_has_the_same_weights(name: str, tmp_path: Path) -> None:
    whole = TinyModel(name, "Q4_K")
    assert made_models.has_block(whole)
    assert not made_models.has_block(replace(whole, block=False))
    made_models.write_tiny(whole, tmp_path / "whole.gguf")
    made_models.write_tiny(replace(whole, block=False), tmp_path / "part.gguf")
    every, part = values(tmp_path / "whole.gguf"), values(tmp_path / "part.gguf")
    last = f"blk.{made_models.tiny_layers(whole)}."
    assert part.keys() == {tensor for tensor in every if not tensor.startswith(last)}
    assert all(np.array_equal(array, every[tensor]) for tensor, array in part.items())
    fields = real.GGUFReader(tmp_path / "part.gguf").fields
    assert fields[f"{name}.block_count"].contents() == made_models.tiny_layers(whole)
    assert f"{name}.nextn_predict_layers" not in fields


def test_a_model_of_plain_layers_has_no_block() -> None:
    assert not made_models.has_block(TinyModel("llama", "F16"))


def test_every_shape_is_tried() -> None:
    assert {model.shape for model in MODELS} == {
        file.stem for file in (REPOSITORY / "shapes" / "tiny").glob("*.toml")
    }


def test_equal_models_have_equal_bytes_and_a_seed_of_their_own(tmp_path: Path) -> None:
    files = [tmp_path / name for name in ("one", "same", "other")]
    for file, seed in zip(files, (1, 1, 2), strict=True):
        made_models.write_tiny(TinyModel("llama", "Q4_K", seed), file)
    one, same, other = (file.read_bytes() for file in files)
    assert one == same
    assert len(one) == len(other)
    assert one != other


@pytest.mark.parametrize("kind", ["Q4_K", "Q6_K"])
def test_random_blocks_have_the_deviation_of_other_types(kind: str, tmp_path: Path) -> None:
    made_models.write_tiny(TinyModel("llama", kind), tmp_path / "random")
    made_models.write_tiny(TinyModel("llama", "F16"), tmp_path / "normal")
    random, normal = values(tmp_path / "random"), values(tmp_path / "normal")
    for part in ("attn_q", "ffn_down"):
        name = f"blk.0.{part}.weight"
        assert random[name].std() == pytest.approx(normal[name].std(), rel=0.05)
        assert abs(random[name].mean()) < random[name].std() / 10


@pytest.mark.parametrize("name", ["llama", "gemma4"])
def test_a_token_has_two_likely_successors_that_print(name: str, tmp_path: Path) -> None:
    made_models.write_tiny(TinyModel(name, "Q8_0"), tmp_path / "model")
    found = values(tmp_path / "model")
    shape = shapes.tiny(name)
    assert shape.tokenizer is not None
    shown = made_models.printable(shape.tokenizer)
    texts = real.GGUFReader(tmp_path / "model").fields["tokenizer.ggml.tokens"].contents()
    assert "".join(texts[token] for token in shown) == "".join(map(chr, range(33, 127)))
    embedding = found["token_embd.weight"]
    normed = embedding / np.sqrt(np.mean(embedding**2, axis=1, keepdims=True))
    logits = normed @ found["output.weight"].T
    for token in shown:
        first, second, third = np.sort(logits[token])[::-1][:3]
        assert {*np.argsort(logits[token])[::-1][:2]} <= set(shown)
        # Now and then both successors are the same.
        assert second - third > 0 or first > 1.5 * made_models.LIKELY
    successors = [int(logits[token].argmax()) for token in shown]
    assert len(set(successors)) > 50, "texts would soon repeat"


def test_a_drafter_expects_the_successors_of_its_target(tmp_path: Path) -> None:
    made_models.write_tiny(TinyModel("gemma4", "Q8_0"), tmp_path / "target")
    made_models.write_tiny(
        TinyModel("gemma4-assistant", "Q8_0", target="gemma4"), tmp_path / "drafter"
    )
    target, drafter = values(tmp_path / "target"), values(tmp_path / "drafter")
    shape = shapes.tiny("gemma4")
    assert shape.tokenizer is not None
    shown = made_models.printable(shape.tokenizer)
    embedding = target["token_embd.weight"] * math.sqrt(256)  # as the engine scales it
    expected = embedding @ target["output.weight"].T
    inputs = embedding @ drafter["nextn.pre_projection.weight"][:, :256].T
    normed = inputs / np.sqrt(np.mean(inputs**2, axis=1, keepdims=True))
    drafted = normed @ drafter["token_embd.weight"].T
    both = [
        {*np.argsort(expected[token])[-2:]} & {*np.argsort(drafted[token])[-2:]} for token in shown
    ]
    assert sum(map(bool, both)) > 0.9 * len(shown)


@pytest.mark.parametrize(
    ("name", "target", "before", "after"),
    [
        ("eagle3", "llama", "token_embd.weight", "output.weight"),
        ("dspark", "qwen35", "markov_w1.weight", "markov_w2.weight"),
    ],
)
def test_a_drafter_knows_what_follows_the_token_before(
    name: str, target: str, before: str, after: str, tmp_path: Path
) -> None:
    made_models.write_tiny(TinyModel(target, "Q8_0"), tmp_path / "target")
    made_models.write_tiny(TinyModel(name, "Q8_0", target=target), tmp_path / "drafter")
    found, drafter = values(tmp_path / "target"), values(tmp_path / "drafter")
    tokenizer = shapes.tiny(target).tokenizer
    assert tokenizer is not None
    shown = made_models.printable(tokenizer)
    ids = drafter.get("d2t", np.arange(tokenizer.size))  # EAGLE-3 drafts a part of them
    expected = found["token_embd.weight"] @ found["output.weight"].T
    drafted = {**found, **drafter}[before] @ drafter[after].T
    for token in shown:
        assert ids[drafted[token].argmax()] in np.argsort(expected[token])[-3:]


def test_rounding_does_not_turn_the_choice_of_experts(tmp_path: Path) -> None:
    made_models.write_tiny(TinyModel("qwen35moe", "Q4_K"), tmp_path / "model")
    found = values(tmp_path / "model")
    shape = shapes.tiny("qwen35moe")
    assert shape.tokenizer is not None
    embedding = found["token_embd.weight"][[*made_models.printable(shape.tokenizer)]]
    normed = embedding / np.sqrt(np.mean(embedding**2, axis=1, keepdims=True))
    for layer in range(3):
        scores = np.sort(normed @ found[f"blk.{layer}.ffn_gate_inp.weight"].T, axis=1)
        used = scores[:, -2] - scores[:, -3]  # two experts are used
        assert np.mean(used > 1.0) > 0.6, "random scores of this size: 0.54"


def test_a_block_that_drafts_is_no_layer_of_the_text() -> None:
    assert [
        made_models.tiny_layers(TinyModel(name, "F16")) for name in ("llama", "qwen35", "gemma4")
    ] == [
        2,
        2,
        3,
    ]
