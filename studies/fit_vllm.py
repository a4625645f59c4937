"""``builder fit`` for the published runs of Qwen3.6 27B with vLLM, as rows of studies/fit.md.

    ./farm build vllm-0.33.0-wheel
    .venv/bin/python studies/fit_vllm.py [ROW...] [--target RECIPE|IMAGE]

A model is a folder with a configuration and without weights: vLLM makes them up.  A row takes about
ten minutes on two cores.

Sizes: shapes/qwen3.6-27b.toml, by the names of Transformers' ``Qwen3_5Config``; the vision tower is
not loaded (``--language-model-only``).  Quantizations: auto-round's and compressed-tensors'
``quantization_config``.  Which layers of the published models are quantized is unverified.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

from fit import verdict

from builder.checks import serves

CARD, CONTEXT = "5090-laptop", "75000"
LAYERS = "model.language_model.layers"
TEXT = {
    "model_type": "qwen3_5_text",
    "attention_bias": False,
    "attn_output_gate": True,
    "dtype": "bfloat16",
    "eos_token_id": 256,  # of the tokenizer, the test model's
    "full_attention_interval": 4,
    "head_dim": 256,
    "hidden_act": "silu",
    "hidden_size": 5120,
    "intermediate_size": 17408,
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 128,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 48,
    "linear_value_head_dim": 128,
    "mamba_ssm_dtype": "float32",
    "max_position_embeddings": 262_144,
    "mtp_num_hidden_layers": 1,
    "mtp_use_dedicated_embeddings": False,
    "num_attention_heads": 24,
    "num_hidden_layers": 64,
    "num_key_value_heads": 4,
    "rms_norm_eps": 1e-6,
    "rope_parameters": {
        "mrope_interleaved": True,
        "mrope_section": [11, 11, 10],
        "rope_type": "default",
        "rope_theta": 10_000_000,
        "partial_rotary_factor": 0.25,
    },
    "tie_word_embeddings": False,
    "vocab_size": 248_320,
}
VISION = {
    "model_type": "qwen3_5",
    "depth": 27,
    "hidden_size": 1152,
    "intermediate_size": 4304,
    "num_heads": 16,
    "in_channels": 3,
    "patch_size": 16,
    "spatial_merge_size": 2,
    "temporal_patch_size": 2,
    "out_hidden_size": 5120,
    "num_position_embeddings": 2304,
    "hidden_act": "gelu_pytorch_tanh",
    "deepstack_visual_indexes": [],
}
PREPROCESSOR = {
    "size": {"longest_edge": 1 << 24, "shortest_edge": 1 << 16},
    "patch_size": 16,
    "temporal_patch_size": 2,
    "merge_size": 2,
    "image_mean": [0.5] * 3,
    "image_std": [0.5] * 3,
    "processor_class": "Qwen3VLProcessor",
    "image_processor_type": "Qwen2VLImageProcessorFast",
}
FP4 = {
    "num_bits": 4,
    "type": "float",
    "strategy": "tensor_group",
    "group_size": 16,
    "symmetric": True,
    "observer": "minmax",
}
COMMON = [
    *("--kv-cache-dtype", "fp8", "--gpu-memory-utilization", "0.97", "--max-num-seqs", "1"),
    *("--max-num-batched-tokens", "2048", "--language-model-only"),
]
MTP = ["--speculative-config", '{"method":"mtp","num_speculative_tokens":3}']


def autoround(blocks: str) -> dict[str, Any]:
    """Four bits for the layers of ``blocks``."""
    return {
        "quant_method": "auto-round",
        "bits": 4,
        "group_size": 128,
        "sym": True,
        "data_type": "int",
        "packing_format": "auto_round:auto_gptq",
        "block_name_to_quantize": blocks,
    }


NVFP4 = {
    "quant_method": "compressed-tensors",
    "format": "nvfp4-pack-quantized",
    "quantization_status": "compressed",
    "kv_cache_scheme": None,
    "ignore": ["lm_head", "re:.*mtp.*", "re:.*visual.*"],
    "config_groups": {
        "group_0": {
            "targets": ["Linear"],
            "format": "nvfp4-pack-quantized",
            "weights": {**FP4, "dynamic": False},
            "input_activations": {**FP4, "dynamic": "local"},
            "output_activations": None,
        }
    },
}
ROWS = {
    "autoround": (autoround(LAYERS), []),
    "autoround-mtp": (autoround(f"{LAYERS},mtp.layers"), MTP),
    "autoround-mtp-bf16": (autoround(LAYERS), MTP),
    "nvfp4-mtp": (NVFP4, MTP),
}


def write(folder: Path, quantization: dict[str, Any]) -> None:
    """The model: a configuration, and the tokenizer of the test model."""
    serves.write_model_folder(folder)
    (folder / serves.WEIGHTS).unlink()
    configuration = {
        "architectures": ["Qwen3_5ForConditionalGeneration"],
        "model_type": "qwen3_5",
        "tie_word_embeddings": False,
        "text_config": TEXT,
        "vision_config": VISION,
        "image_token_id": 248_056,
        "video_token_id": 248_057,
        "vision_start_token_id": 248_053,
        "vision_end_token_id": 248_054,
        "quantization_config": quantization,
    }
    (folder / "config.json").write_text(json.dumps(configuration))
    (folder / "preprocessor_config.json").write_text(json.dumps(PREPROCESSOR))


def main() -> None:
    """Print a row for each model."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("row", nargs="*", metavar="ROW", help=f"{', '.join(ROWS)}; default: all")
    parser.add_argument("--target", default="vllm-0.33.0-wheel")
    asked = parser.parse_args()
    if unknown := {*asked.row} - {*ROWS}:
        parser.error(f"no row is named {', '.join(sorted(unknown))}; the rows: {', '.join(ROWS)}")
    with tempfile.TemporaryDirectory() as work:
        for row in asked.row or ROWS:
            quantization, options = ROWS[row]
            model = Path(work) / row
            write(model, quantization)
            found = verdict(asked.target, model, CARD, CONTEXT, [*COMMON, *options])
            (trial,) = found["trials"]
            peak = max(round(each["peak"] / 2**20) for each in trial["cards"])
            paths = ", ".join(f"{each['work']}: {each['path']}" for each in trial["paths"])
            print(
                f"| {row} | {trial['stated']} | {peak} MiB | {trial['why'] or 'fits'} | {paths} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
