"""What a pass reads of a model, counted by hand."""

from __future__ import annotations

import math

import pytest

from builder.presets import shapes
from builder.presets.shapes import Shape, shape_of

# One layer and an MTP block, four experts in each, and an output of its own.
TENSORS = {
    "token_embd.weight": (10, 100),  # 1000
    "output.weight": (10, 100),  # 1000
    "blk.0.attn_k.weight": (10, 4),  # 40
    "blk.0.attn_v.weight": (10, 2),  # 20
    "blk.0.ffn_up_exps.weight": (10, 10, 4),  # 400
    "blk.1.attn_k.weight": (10, 4),  # 40
    "blk.1.ffn_up_exps.weight": (10, 10, 4),  # 400
    "blk.1.nextn.eh_proj.weight": (20, 5),  # 100
}
VALUES = {"block_count": 2, "nextn_predict_layers": 1, "expert_count": 4, "expert_used_count": 1}
SHAPE = Shape("any", "model", VALUES, TENSORS, {})
ALL = 3000


def test_weights_of_a_file_have_as_many_bits() -> None:
    assert shapes.weight_bytes(SHAPE, ALL // 2, checkpoint=False) == {
        "rows": 500,
        "output": 500,
        "layers": 30,
        "experts": 200,
        "block": 70,
        "block experts": 200,
    }


def test_a_checkpoint_keeps_sixteen_bits_where_nothing_is_quantized() -> None:
    # Layers and experts are 460 parameters; the other 2540 take 5080 bytes.
    found = shapes.weight_bytes(SHAPE, 5080 + 230, checkpoint=True)
    assert (found["layers"], found["experts"]) == (30, 200)
    assert (found["output"], found["block"], found["block experts"]) == (2000, 280, 800)


def test_a_checkpoint_that_is_too_small_for_them_has_as_many_bits_everywhere() -> None:
    small = shapes.weight_bytes(SHAPE, ALL // 2, checkpoint=True)
    assert small == shapes.weight_bytes(SHAPE, ALL // 2, checkpoint=False)


def test_a_checkpoint_with_other_tensors_has_no_more_than_sixteen_bits() -> None:
    assert shapes.weight_bytes(SHAPE, 10**6, checkpoint=True)["layers"] == 120


def test_an_embedding_that_is_the_output_too_is_read_whole() -> None:
    tied = Shape("any", "model", VALUES, {"token_embd.weight": (10, 100)}, {})
    assert shapes.weight_bytes(tied, 500, checkpoint=False) == {"output": 500}


def test_more_tokens_need_more_experts() -> None:
    assert shapes.expert_bytes(SHAPE, 1) == 0.25
    assert shapes.expert_bytes(SHAPE, 2) == 1 - 0.75**2
    dense = Shape("any", "model", {}, {}, {})
    assert shapes.expert_bytes(dense, 1) == 1


def test_the_cache_has_keys_and_values_of_each_layer() -> None:
    # Layer 0: 4 keys and 2 values; layer 1 has no values: its keys are its values.
    assert shapes.cache_bytes(SHAPE, 16, 8, 10) == 10 * (4 * 2 + 2 * 1) + 10 * (4 * 2 + 4 * 1)


def test_a_layer_with_a_window_holds_no_more() -> None:
    window = {"attention.sliding_window": 8, "attention.sliding_window_pattern": [True, False]}
    shape = Shape("any", "model", VALUES | window, TENSORS, {})
    assert shapes.cache_bytes(shape, 8, 8, 10) == 8 * 6 + 10 * 8
    assert shapes.cache_bytes(shape, 8, 8, 5) == 5 * 6 + 5 * 8


@pytest.mark.parametrize(
    ("name", "active"),
    [("qwen3.6-35b-a3b", 3), ("gemma-4-26b-a4b", 4), ("gemma-4-e2b", 2.3), ("gemma-4-e4b", 4.5)],
)
def test_the_active_parameters_are_those_of_the_name(name: str, active: float) -> None:
    """A3B: 3 billion; E2B: 2.3 billion without the embeddings of each layer, by its card."""
    shape = shape_of(name)
    found = shapes.weight_bytes(shape, 10**12, checkpoint=False)
    share = found["layers"] + found["output"] + found["experts"] * shapes.expert_bytes(shape, 1)
    parameters = sum(math.prod(each) for each in shape.tensors.values())
    assert share / 1e12 * parameters == pytest.approx(active * 1e9, rel=0.06)
