"""The figures of a preset: speeds, acceptance and memory, as they were published."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import fmean
from typing import Annotated, Literal

from pydantic import Field, model_validator

from builder.recipes.fields import Model, Text, Value
from simulator.work import WorkPath

ROUNDING = 0.005  # of published means: 178.6 for 178.61, and means of rounded runs
Positive = Annotated[float, Field(gt=0)]
Level = Annotated[float, Field(ge=0)]
Count = Annotated[int, Field(ge=1)]

UNITS = {"MB": 10**6, "MiB": 1 << 20, "GB": 10**9, "GiB": 1 << 30}
"""Bytes of the units of sources."""


class Memory(Model):
    """Memory of the card as the source gives it."""

    unit: Literal["GB", "GiB"] = "GB"
    """Unit of the source."""
    total: Positive | None = None
    """All memory of the run."""
    kinds: dict[Text, Positive] = {}
    """Its parts: "weights", "KV cache", "compute", ..."""

    @model_validator(mode="after")
    def _require_parts_within_the_total(self) -> Memory:
        if self.total is None and not self.kinds:
            raise ValueError("give total or kinds")
        if self.total is not None and sum(self.kinds.values()) > self.total * (1 + ROUNDING):
            raise ValueError("its kinds sum up to more than total")
        return self

    def bytes_of(self, size: float) -> int:
        """A size of the source in bytes."""
        return round(size * UNITS[self.unit])

    @property
    def whole(self) -> int | None:
        """All of it in bytes; None where the source gives parts without weights or KV cache."""
        if self.total is not None:
            return self.bytes_of(self.total)
        if {"weights", "KV cache"} <= self.kinds.keys():
            return self.bytes_of(sum(self.kinds.values()))
        return None


class Filled(Model):
    """Memory that was enough for prompts that fill the context, on a simulated card."""

    tokens: Count
    """Tokens that prompts filled."""
    mib: Count
    """MiB of a card's memory that were enough: the peak, or all that the card has."""


class Figures(Model):
    """A measured quantity: each run, or the source's summary of the runs."""

    runs: list[Level] = []
    """Each run, in order."""
    mean: Level | None = None
    """Mean of the runs."""
    min: Level | None = None
    """The least of the runs."""
    max: Level | None = None
    """The largest of the runs."""
    count: Count | None = None
    """Number of runs, where they are not listed."""

    @model_validator(mode="after")
    def _require_that_they_agree(self) -> Figures:
        if not self.runs and self.mean is None and (self.min is None or self.max is None):
            raise ValueError("give runs, mean, or min and max")
        if self.runs and self.count is not None:
            raise ValueError("count is for runs that are not listed")
        low, mean, high = self.least, self.middle, self.most
        if not low * (1 - ROUNDING) <= mean <= high * (1 + ROUNDING):
            raise ValueError(f"the mean {mean:g} is not between {low:g} and {high:g}")
        if self.runs and abs(mean - fmean(self.runs)) > ROUNDING * mean:
            raise ValueError(f"the mean is {mean:g}, and the mean of the runs {fmean(self.runs):g}")
        return self

    @property
    def least(self) -> float:
        """The least that is known."""
        return self.min if self.min is not None else min(self.runs, default=self.middle)

    @property
    def most(self) -> float:
        """The largest that is known."""
        return self.max if self.max is not None else max(self.runs, default=self.middle)

    @property
    def middle(self) -> float:
        """The mean, else the mean of the runs, else the middle of the range."""
        if self.mean is not None:
            return self.mean
        return fmean(self.runs) if self.runs else ((self.min or 0) + (self.max or 0)) / 2


class Method(Model):
    """How the runs were made, where a result does not differ."""

    task: Text | None = None
    """The generated text, or the name of the test set."""
    tokens: Count | None = None
    """Tokens generated in a run."""
    temperature: Level | None = None
    """Sampling temperature (0 = greedy)."""
    top_k: Annotated[int, Field(ge=0)] | None = None
    """Number of tokens that are sampled from."""
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    """Least probability of a sampled token, relative to the most probable one."""
    seeds: list[int] = []
    """Seeds of the sampler."""
    streams: Count | None = None
    """Requests at the same time."""


class Result(Model):
    """One published figure; keys that it does not set are as in the preset."""

    context: Count | None = None
    """Size of the context in tokens, where [serve] has another one."""
    arguments: list[Value] = []
    """Arguments of this run that replace the same options of [serve]."""
    differs: Text | None = None
    """Other differences, in words; the figure is then not the preset's."""
    task: Text | None = None
    """The generated text, where [method] has another task."""
    tokens: Count | None = None
    """Tokens generated in a run, where [method] has another number."""
    seconds: Positive | None = None
    """Time in which they were generated."""
    warmups: Annotated[int, Field(ge=0)] | None = None
    """Runs before the first that counts."""
    tokens_per_second: Figures
    """Generated tokens in a second, of one stream."""
    first_token: Positive | None = None
    """Milliseconds to the first token."""
    acceptance: Figures | None = None
    """Percent of the drafted tokens that were accepted."""
    drafted: list[Count] = []
    """Drafted tokens of each run."""
    accepted: list[Annotated[int, Field(ge=0)]] = []
    """Accepted tokens of each run."""
    baseline: Positive | None = None
    """Tokens in a second of the same run without speculation."""
    memory: Memory | None = None
    """Memory of the card in this run."""

    @model_validator(mode="after")
    def _require_that_they_agree(self) -> Result:
        if len(self.drafted) != len(self.accepted):
            raise ValueError("drafted and accepted are not of the same number of runs")
        if any(got > of for got, of in zip(self.accepted, self.drafted, strict=True)):
            raise ValueError("more tokens were accepted than drafted")
        if self.acceptance and self.acceptance.most > 100:
            raise ValueError("acceptance is a percentage: at most 100")
        share = self.accepted_share
        stated = self.acceptance.middle if self.acceptance else share
        if share is not None and stated is not None and abs(share - stated) > 100 * ROUNDING:
            raise ValueError(f"accepted is {share:.2f} % of drafted, unlike acceptance")
        if self.tokens and self.seconds:
            speed, rate = self.tokens / self.seconds, self.tokens_per_second.middle
            if abs(speed - rate) > ROUNDING * rate:
                raise ValueError(f"tokens in seconds are {speed:.2f} a second, not {rate:g}")
        return self

    @property
    def accepted_share(self) -> float | None:
        """Percent of the drafted tokens that were accepted, over all runs; None: not counted."""
        return 100 * sum(self.accepted) / sum(self.drafted) if self.drafted else None

    @property
    def of_preset(self) -> bool:
        """Whether the run was made as the preset says, apart from the size of the context."""
        return not self.arguments and self.differs is None

    @property
    def loses(self) -> bool:
        """Whether it was slower than the same run without speculation."""
        return self.baseline is not None and self.tokens_per_second.middle < self.baseline


@dataclass(frozen=True, slots=True)
class ContextUse:
    """The use of the same card with another context; sizes are bytes."""

    context: int
    peak: int
    by_kind: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class PresetUse:
    """The use of a simulated card by the server of a preset; sizes are bytes."""

    identity: str
    """``Preset.identity`` of the preset that was tried."""
    context: int
    """Tokens; 0: the engine's default."""
    card: str
    cards: int
    memory: int
    """Sum of all cards."""
    peak: int
    own: int
    """The memory of the CUDA contexts, part of the peak."""
    by_kind: Mapping[str, int]
    """Memory at the peak: weights, KV cache, compute, projector, other."""
    smaller: ContextUse | None = None
    """The same with a smaller context; None: it was not tried."""
    paths: tuple[WorkPath, ...] = ()
    filled: int = 0
    """Tokens of the prompts that filled the context; 0: none were sent, or not all were
    answered."""
