"""Receipts, and the card that they are of."""

from __future__ import annotations

from typing import Any

from builder.presets.receipts import Receipt
from builder.presets.schema import Preset

DIGEST = f"sha256:{'d' * 64}"
KEY = "0123456789ab" + "0" * 52
CARD = {"name": "NVIDIA GeForce RTX 5090", "capability": "12.0", "memory": 32607}


def run(speed: float, seed: int, **more: Any) -> dict[str, Any]:
    """A run of 2000 tokens, whose prompt took a tenth of a second."""
    figures = {
        "tokens": 2000,
        "tokens_per_second": speed,
        "prompt_tokens": 100,
        "prompt_tokens_per_second": 1000.0,
        "seconds": round(2000 / speed + 0.2, 3),
        "seed": seed,
        "drafted": 1500,
        "accepted": 1200,
        "timed_by": "server",
    }
    return figures | more


def measured(*runs: dict[str, Any], **more: Any) -> dict[str, Any]:
    """The runs with a context of 32768 tokens."""
    each = list(runs) or [run(100.0, 1), run(104.0, 2)]
    figures = {
        "context": 32768,
        "layers": [(65, 65)],
        "memory": {"weights": 15 << 30, "KV cache": 2 << 30, "compute": 1 << 30},
        "warm_ups": [run(90.0, 0)],
        "runs": each,
    }
    return figures | more


def data(recipe: str = "llama-cpp-b9831", **more: Any) -> dict[str, Any]:
    """What the file of a receipt has."""
    given: dict[str, Any] = {
        "version": 2,
        "image": {"recipe": recipe, "key": KEY, "digest": DIGEST},
        "device": "GPU",
        "cards": [CARD],
        "driver": "580.65.06",
        "cpu": "AMD Ryzen 9 9950X 16-Core Processor x 32",
        "model": {"name": "Qwen3.6-27B-Q4_K_M.gguf", "size": 16 << 30, "sha256": "e" * 64},
        "arguments": ["--model", "{model}", "-ngl", "99", "--host", "127.0.0.1"],
        "request": {
            "prompt": "f" * 64,
            "tokens": 2000,
            "temperature": 0.6,
            "top_k": 20,
            "min_p": 0.0,
            "fill": 0.0,
        },
        "measured": [measured()],
        "created": "2026-11-01T12:00:00Z",
        "builder": "0.1.0",
    }
    return given | more


def of_dflash(preset: Preset, **more: Any) -> dict[str, Any]:
    """What the receipt of a run of qwen3.6-27b-dflash@5090-laptop has, on another card."""
    own = ["--model", "{model}", "--ctx-size", "{context}", "--n-gpu-layers", "99"]
    given = {
        "arguments": [*own, "--model-draft", "{draft}", *preset.serve.arguments],
        "model": {"name": "Qwen3.6-27B-UD-Q3_K_XL.gguf", "size": 3, "sha256": "e" * 64},
        "draft": {"name": "dflash-draft-3.6-q8_0.gguf", "size": 3, "sha256": "f" * 64},
        "by": "@me",
    }
    return data(**({"recipe": preset.recipe} | given | more))


def receipt(**more: Any) -> Receipt:
    """A receipt with nothing wrong, but for what is given."""
    import json

    return Receipt.model_validate_json(json.dumps(data(**more)))
