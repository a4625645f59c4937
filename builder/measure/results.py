"""The results of a benchmark, with all settings that are needed to repeat it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from builder.checks.series import Generation
from builder.core.json_model import first_error


@dataclass(frozen=True, slots=True)
class Loaded:
    """Where the engine's log states that it put the models; both are empty where it does not."""

    layers: tuple[tuple[int, int], ...]
    """Layers on the GPU and in all, of each model."""
    memory: Mapping[str, int]
    """Bytes on all GPUs by kind: weights, KV cache, compute."""


@dataclass(frozen=True, slots=True)
class Point:
    """The runs with one context size."""

    context: int | None
    """Context size in tokens; None if the server was not started by us."""
    warm_ups: tuple[Generation, ...]
    runs: tuple[Generation, ...]
    loaded: Loaded | None = None
    """None if the server was not started by us, or by an older builder."""


class Benchmark(BaseModel):
    """All points of one benchmark, with subject, model, machine and settings."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")

    format: Literal[1] = 1
    subject: Mapping[str, Any]
    """The image (reference, digest, recipe, key) or the URL, and its flags."""
    model: Mapping[str, Any]
    """Files by role: name, size in bytes, sha256; or the name that the server lists."""
    machine: Mapping[str, Any]
    """GPUs (name, compute capability, driver, memory in MiB), CPU, engine, kernel."""
    settings: Mapping[str, Any]
    """Prompt, tokens, sampling, seeds, warm-ups."""
    points: tuple[Point, ...]
    created: str
    """RFC 3339, UTC."""
    builder: str
    """Version of builder."""

    def as_json(self) -> dict[str, Any]:
        """The benchmark as JSON data."""
        return self.model_dump(mode="json")


def parse(text: str) -> Benchmark:
    """The benchmark in the text of a file; raises ``ValueError`` for any other text."""
    try:
        return Benchmark.model_validate_json(text)
    except ValidationError as error:
        raise ValueError(f"it is no benchmark of builder: {first_error(error)}") from error
