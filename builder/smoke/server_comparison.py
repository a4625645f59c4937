"""The answers of two images' servers on a card that computes, and the launch where they part."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from builder.servers.predictions import described, difference
from builder.simulator.outputs import parting
from builder.smoke.model_numbers import ModelNumbers, Numbers
from builder.smoke.server_trials import TOKENS


@dataclass(frozen=True, slots=True)
class ModelComparison:
    """The answers of two servers with a model, compared."""

    model: str
    unanswered: tuple[str, str] = ("", "")
    """Why a server did not answer; empty: it did."""
    differs: str = ""
    """How far the second text is from the first one, where that is beyond the model's limit."""
    launch: str = ""
    """The first launch that is not the same, where the texts differ."""


def compared(before: Numbers, after: Numbers, work: Path) -> Iterator[ModelComparison]:
    """Compare the servers of two images, model by model.

    Both have ``outputs``; ``work`` is a directory that the images' own users may enter.  Raises
    ``InapplicableError`` where a server has no probabilities, and like ``SimulatedServer.on``.
    """
    folders = [work / name for name in ("before", "after", "again")]
    for folder in folders:
        folder.mkdir()
        folder.chmod(0o755)
    sides = zip((before, after, before), folders, strict=True)
    models = [side.models(folder) for side, folder in sides]
    for one, other, again in zip(*models, strict=False):
        yield _compared(one, other, again)


def _compared(one: ModelNumbers, other: ModelNumbers, again: ModelNumbers) -> ModelComparison:
    name, limit = one.trial.model.name, one.trial.limit
    first, second = one.answered(), other.answered()
    if isinstance(first, str) or isinstance(second, str):
        whys = [each if isinstance(each, str) else "" for each in (first, second)]
        return ModelComparison(name, (whys[0], whys[1]))
    found = difference(first[0], second[0])
    if found.within(limit):
        return ModelComparison(name)
    repeated = again.answered()
    report = None if isinstance(repeated, str) else repeated[1]
    launch = parting(first[1], report, second[1])
    return ModelComparison(name, differs=described(found, TOKENS, limit), launch=launch)
