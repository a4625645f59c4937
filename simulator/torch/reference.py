"""Continue a prompt by PyTorch on the CPU, in single precision: what a server is compared with.

    TORCH_DEVICE_BACKEND_AUTOLOAD=0 python3 reference.py FOLDER COUNT PROMPT

The model is Transformers', the weights are the folder's.  Where they are FP8, inputs of products
are rounded as engines do: one scale for so many values as a block of the weights has columns.  The
last line of the output is a completion of OpenAI's API, as vLLM writes it: the likeliest tokens by
their ids, and for each place the natural logarithms of the probabilities of all tokens.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import torch
from safetensors.torch import load_file
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

FP8 = torch.float8_e4m3fn
SCALE = "_scale_inv"  # what is added to the name of a weight


def main(folder: str, count: int, prompt: str) -> None:
    """Print the continued prompt."""
    model = _model(folder)
    tokens = AutoTokenizer.from_pretrained(folder)(prompt, return_tensors="pt")["input_ids"]
    first, rows = tokens.shape[1], []
    with torch.inference_mode():
        for _ in range(count):
            row = model(tokens).logits[0, -1].log_softmax(-1)
            rows.append(
                {f"token_id:{at}": round(value, 6) for at, value in enumerate(row.tolist())}
            )
            tokens = torch.cat([tokens, row.argmax().view(1, 1)], 1)
    names = [f"token_id:{token}" for token in tokens[0, first:].tolist()]
    found = {"text": "", "logprobs": {"tokens": names, "top_logprobs": rows}}
    print(json.dumps({"choices": [found]}))  # noqa: T201


def _model(folder: str) -> Any:
    config = AutoConfig.from_pretrained(folder)
    quantized = getattr(config, "quantization_config", None)
    if quantized is not None:
        del config.quantization_config  # Transformers' own code for it needs a card
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    found = load_file(f"{folder}/model.safetensors")
    model.load_state_dict(
        {
            name: _weight(value, found.get(name + SCALE))
            for name, value in found.items()
            if not name.endswith(SCALE)
        }
    )
    for name, part in model.named_modules():
        if quantized is not None and f"{name}.weight{SCALE}" in found:
            columns = quantized["weight_block_size"][1]
            part.register_forward_pre_hook(lambda _, given, n=columns: (_rounded(given[0], n),))
    return model


def _weight(value: Any, scale: Any) -> Any:
    if scale is None:
        return value.float()
    rows, columns = (each // of for each, of in zip(value.shape, scale.shape, strict=True))
    return value.float() * scale.repeat_interleave(rows, 0).repeat_interleave(columns, 1)


def _rounded(values: Any, columns: int) -> Any:
    groups = values.unflatten(-1, (-1, columns))
    scale = groups.abs().amax(-1, keepdim=True).clamp(min=1e-10) / torch.finfo(FP8).max
    return ((groups / scale).to(FP8).float() * scale).flatten(-2)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3])
