"""The next step for a model that does not fit; whether another context can fit."""

from __future__ import annotations

from collections.abc import Sequence

from builder.presets.command import option_of
from builder.presets.results import Fit, FitTrial

LAYERS = ("--n-gpu-layers", "--n_gpu_layers")
CACHE = ("--cache-type-k", "--cache-type-v", "--type_k", "--type_v")
"""Options of llama-server and of llama-cpp-python."""


def is_final(trial: FitTrial, options: Sequence[str]) -> bool:
    """Whether a trial decides for every context: the weights, or the user, leave no room for one.

    Engines load the weights first, and these are the same for every context.
    """
    if trial.fits:
        return False
    if trial.estimate is not None:
        return trial.estimate == 0
    if trial.refused is not None:
        return trial.refused.kind == "weights"
    return given(options, LAYERS) != ""


def advice(found: Fit) -> str:
    """The next step where no context fits; the smallest one is the most telling."""
    trial = found.trials[0]
    if trial.estimate is not None:
        free = " or ".join(each for each in found.room if not given(found.options, (each,)))
        steps = ["a smaller quantization", "a card with more memory"]
        steps += [f"{free} after --"] if free else []
        return f"take {', or '.join(steps)}"
    layers = given(found.options, LAYERS)
    if trial.refused is None and layers:
        return f"leave out {layers}: it keeps layers of the model from the card"
    if trial.refused is None or trial.refused.kind == "weights":
        return "take a smaller quantization, or more memory: --card may be given twice"
    steps = ["a smaller quantization"]
    if not given(found.options, CACHE):
        steps.append("a KV cache of another type (llama-server: -- --cache-type-k q8_0)")
    if found.step is None:
        steps.append("a smaller --context")
    return f"take {', or '.join(steps)}"


def given(options: Sequence[str], words: Sequence[str]) -> str:
    """The first of ``options`` that is one of ``words``, under any of its names; empty for none."""
    names = {option_of(word) for word in words} - {""}
    return next((word for word in options if option_of(word) in names), "")
