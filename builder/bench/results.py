"""What a benchmark found, and everything that is needed to do it again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

FORMAT = 1


@dataclass(frozen=True, slots=True)
class Generation:
    """One answer of a server.  Speeds are the server's own where it tells them."""

    tokens: int
    """Tokens that were generated."""
    tokens_per_second: float
    """Of the generation, without the prompt."""
    prompt_tokens: int
    seconds: float
    """Wall clock of the whole request, as the client saw it."""
    seed: int
    prompt_tokens_per_second: float | None = None
    drafted: int | None = None
    """Tokens that a draft proposed; None where the server does not tell."""
    accepted: int | None = None
    """Of these, the tokens that the model took."""
    timed_by: str = "server"
    """``server``, or ``client``: first token to last, where the server tells no timings."""

    @property
    def acceptance(self) -> float | None:
        """Share of the drafted tokens that were taken, from 0 to 1; None without a draft."""
        if self.drafted is None or self.accepted is None or self.drafted == 0:
            return None
        return self.accepted / self.drafted


@dataclass(frozen=True, slots=True)
class Point:
    """The runs with one size of the context."""

    context: int | None
    """Tokens that the server was given room for; None where it was not started by us."""
    warm_ups: tuple[Generation, ...]
    runs: tuple[Generation, ...]


@dataclass(frozen=True, slots=True)
class Benchmark:
    """All points of one benchmark, with what was measured, on what, and how."""

    subject: Mapping[str, Any]
    """The image (reference, digest, recipe, key) or the URL, and its flags."""
    model: Mapping[str, Any]
    """Files by role: name, size in bytes, sha256; or the name that a server gives."""
    machine: Mapping[str, Any]
    """GPUs (name, compute capability, driver, memory), CPU, engine."""
    settings: Mapping[str, Any]
    """Prompt, tokens, sampling, seeds, warm-ups."""
    points: tuple[Point, ...]
    created: str
    """RFC 3339, UTC."""
    builder: str
    """Version of builder."""
    format: int = field(default=FORMAT)

    def as_json(self) -> dict[str, Any]:
        """The benchmark as JSON data."""
        return asdict(self)


def from_json(data: Any) -> Benchmark:
    """What ``as_json`` gave; raises ``ValueError`` where it is no benchmark of this format."""
    try:
        if data["format"] != FORMAT:
            raise ValueError(f"its format is {data['format']}, not {FORMAT}")
        points = tuple(
            Point(
                point["context"],
                tuple(Generation(**run) for run in point["warm_ups"]),
                tuple(Generation(**run) for run in point["runs"]),
            )
            for point in data["points"]
        )
        return Benchmark(**(data | {"points": points}))
    except (KeyError, TypeError) as error:
        raise ValueError(f"it is no benchmark of builder: {error}") from error
