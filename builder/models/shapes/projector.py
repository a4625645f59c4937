"""Multimodal projectors of Qwen3.5 and Qwen3.6: a vision tower, and its way into the model.

Tensors and keys: llama.cpp, ``tools/mtmd/clip.cpp`` and ``conversion/qwen3vl.py``.
"""

from __future__ import annotations

from dataclasses import dataclass

from builder.models.shapes.shape import Dimensions, Shape, Tensors

NORMAL = (0.5, 0.5, 0.5)  # image_mean and image_std of preprocessor_config.json


@dataclass(frozen=True, slots=True)
class Vision:
    """Figures of a vision_config; ``merged``: patches to a side that become one token."""

    layers: int
    embedding: int
    heads: int
    inner: int
    patch: int
    positions: int
    merged: int
    output: int
    """The model's own width: out_hidden_size."""


# vision_config of Qwen/Qwen3.6-27B; that of Qwen3.6-35B-A3B differs in its output alone
QWEN36_27B = Vision(27, 1152, 16, 4304, 16, 2304, 2, 5120)
QWEN36_35B_A3B = Vision(27, 1152, 16, 4304, 16, 2304, 2, 2048)


def shape(vision: Vision) -> Shape:
    """Its values and tensors."""
    return Shape(
        "clip",
        {
            "has_vision_encoder": True,
            "projector_type": "qwen3vl_merger",
            "use_gelu": True,
            "vision.projection_dim": vision.output,
            "vision.image_size": int(vision.positions**0.5) * vision.patch,
            "vision.patch_size": vision.patch,
            "vision.embedding_length": vision.embedding,
            "vision.feed_forward_length": vision.inner,
            "vision.block_count": vision.layers,
            "vision.attention.head_count": vision.heads,
            "vision.attention.layer_norm_epsilon": 1e-6,
            "vision.image_mean": NORMAL,
            "vision.image_std": NORMAL,
            "vision.spatial_merge_size": vision.merged,
            "vision.is_deepstack_layers": [False] * vision.layers,
        },
        dict(_tensors(vision)),
        fixed={"patch_embd": "F16", "position_embd": "F32"},
        kind="mmproj",
    )


def _tensors(vision: Vision) -> Tensors:
    width, patch = vision.embedding, vision.patch
    for name in ("v.patch_embd.weight", "v.patch_embd.weight.1"):  # two images a step of time
        yield name, (patch, patch, 3, width)
    yield "v.patch_embd.bias", (width,)
    yield "v.position_embd.weight", (width, vision.positions)
    yield from _linear("v.post_ln", (width,))
    for number in range(vision.layers):
        before = f"v.blk.{number}."
        yield from _linear(f"{before}ln1", (width,))
        yield from _linear(f"{before}ln2", (width,))
        yield from _linear(f"{before}attn_qkv", (width, 3 * width))
        yield from _linear(f"{before}attn_out", (width, width))
        yield from _linear(f"{before}ffn_up", (width, vision.inner))
        yield from _linear(f"{before}ffn_down", (vision.inner, width))
    merged = width * vision.merged**2
    yield from _linear("mm.0", (merged, merged))
    yield from _linear("mm.2", (merged, vision.output))


def _linear(name: str, dimensions: Dimensions) -> Tensors:
    """Weights and a bias."""
    yield f"{name}.weight", dimensions
    yield f"{name}.bias", dimensions[-1:]
