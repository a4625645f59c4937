"""The format of a preset: a run of a recipe's image that somebody published, and how to repeat it.

A preset without a source and results was composed for this farm: nobody published such a run.
A fact that the source does not state is absent.  A stated fact that nobody could confirm is in the
preset, and named in ``[unverified]``.
"""

from __future__ import annotations

import hashlib
import json
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Annotated, Literal, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    Field,
    StringConstraints,
    ValidationError,
    model_validator,
)

from builder.core.errors import RecipeError
from builder.core.json_model import first_error
from builder.core.names import why_not_writable
from builder.recipes import fields
from builder.recipes.fields import PLAIN, Commit, Model, Name, Sha256, Text, Value, VariableName
from simulator.work import Work, WorkPath

M = TypeVar("M", bound=BaseModel)
TRIALS = "trials"  # the directory of what images showed without a GPU
DIRECTORY = "/models"  # the models directory in a container
TABLES = {"model": "model", "draft": "drafter", "mmproj": "mmproj"}
"""The tables of models, by the placeholders of their files in arguments."""

# The figures of a preset: speeds, acceptance and memory, as they were published.

ROUNDING = 0.005  # of published means: 178.6 for 178.61, and means of rounded runs
Positive = Annotated[float, Field(gt=0)]
Level = Annotated[float, Field(ge=0)]
Count = Annotated[int, Field(ge=1)]

UNITS = {"MB": 10**6, "MiB": 1 << 20, "GB": 10**9, "GiB": 1 << 30}  # bytes of the units of sources


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
class Generation:
    """One answer of a server.  Speeds are the server's own if it reports them."""

    tokens: int
    tokens_per_second: float
    """Speed of the generation, without the prompt."""
    prompt_tokens: int
    seconds: float
    """Wall time of the whole request, measured by the client."""
    seed: int
    prompt_tokens_per_second: float | None = None
    drafted: int | None = None
    """Tokens that the draft model proposed; None if the server does not report them."""
    accepted: int | None = None
    timed_by: Literal["server", "client"] = "server"
    """Whose clock: the client's (first token to last) if the server reports no timings."""

    @property
    def acceptance(self) -> float | None:
        """Accepted share of the drafted tokens, from 0 to 1; None without a draft."""
        if self.drafted is None or self.accepted is None or self.drafted == 0:
            return None
        return self.accepted / self.drafted


@dataclass(frozen=True, slots=True)
class PresetUse:
    """The use of a simulated card by the server of a preset; sizes are bytes."""

    identity: str  # ``Preset.identity`` of the preset that was tried
    context: int  # tokens; 0: the engine's default
    card: str
    cards: int
    memory: int  # sum of all cards
    peak: int
    own: int  # the memory of the CUDA contexts, part of the peak
    by_kind: Mapping[str, int]  # memory at the peak: weights, KV cache, compute, projector, other
    smaller: ContextUse | None = None  # the same with a smaller context; None: it was not tried
    paths: tuple[WorkPath, ...] = ()
    filled: int = 0
    """Tokens of the prompts that filled the context; 0: none were sent, or not all were
    answered."""


def read_trials(file: Path, model: type[M]) -> M | None:
    """A file of ``trials/`` as far as ``model`` needs it; None where there is none."""
    try:
        return model.model_validate_json(file.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValidationError) as error:
        fault = first_error(error) if isinstance(error, ValidationError) else str(error)
        hint = f"`builder ci trials {file.stem}` writes it anew from the record of the image"
        raise RecipeError(f"{file} cannot be read", fault, hint) from error


# The preset.


def _writable(path: str) -> str:
    if why := why_not_writable(path):
        raise ValueError(f"no file can have this name: {why}")
    return path


class Origin(Model):
    """Where the run was published."""

    title: Text | None = None
    """Title of the page or of the thread."""
    url: Annotated[str, StringConstraints(pattern=fields.WEB_URL), PLAIN] | None = None
    """Address of the page."""
    published: Annotated[str, StringConstraints(pattern=fields.MONTH), PLAIN] | None = None
    """Month or day: "2026-05", "2026-05-23"."""

    @model_validator(mode="after")
    def _require_title_or_url(self) -> Origin:
        if self.title is None and self.url is None:
            raise ValueError("give title or url")
        return self


class ModelFile(Model):
    """A model: a file of a repository on the Hugging Face Hub, or the whole repository.

    With ``file`` it is that file; with ``quantization`` alone, the GGUF of that quantization; with
    neither, the whole repository.
    """

    name: Text | None = None
    """Its usual name: "Qwen3.6 27B"."""
    repository: Annotated[str, StringConstraints(pattern=fields.HUB_REPOSITORY), PLAIN] | None = (
        None
    )
    """OWNER/NAME on the Hugging Face Hub; without it, the user names a file."""
    file: (
        Annotated[str, StringConstraints(pattern=fields.HUB_FILE), PLAIN, AfterValidator(_writable)]
        | None
    ) = None
    """Path of the file in the repository."""
    quantization: Text | None = None
    """Quantization as GGUF files are named by it: "UD-Q3_K_XL"."""
    revision: Commit | None = None
    """Commit of the repository on the Hub."""
    sha256: Sha256 | None = None
    """sha256 of the file."""
    size: Count | None = None
    """Size of the file in bytes."""
    published_size: Text | None = None
    """Size as the source gives it: "14.5 GB"."""

    @model_validator(mode="after")
    def _require_one_file_for_its_digest(self) -> ModelFile:
        if self.file is None and (self.sha256 or self.size):
            raise ValueError("sha256 and size need file as well")
        return self

    @property
    def known_size(self) -> int | None:
        """Its size in bytes, as exactly as it is known: "14.5 GB" is 14500000000."""
        return self._less_steps(0)

    @property
    def least_size(self) -> int | None:
        """The least size in bytes that the source rounds to its own: "15 GB" may be 14500000000."""
        return self._less_steps(0.5)

    def _less_steps(self, steps: float) -> int | None:
        """Its exact size, else the published one less so many units of its last digit."""
        if self.size is not None or self.published_size is None:
            return self.size
        number, _, unit = self.published_size.partition(" ")
        step = 0.1 ** len(number.partition(".")[2])
        try:
            return round((float(number) - steps * step) * UNITS[unit])
        except (ValueError, KeyError):
            return None

    @property
    def whole(self) -> bool:
        """Whether it is a whole repository, as vLLM takes it."""
        return self.repository is not None and self.file is None and self.quantization is None

    def of_quantization(self, names: Iterable[str]) -> list[str]:
        """The GGUFs of its quantization; those whose names end with it, and nothing more, first.

        ``Q4_K_M`` is also the end of ``UD-Q4_K_M``, which comes after it.
        """
        text = re.escape(self.quantization or "")
        exact = re.compile(rf"(?<![A-Za-z0-9_]){text}(?![A-Za-z0-9_])", re.I)
        found = [
            name
            for name in names
            if name.endswith(".gguf") and "mmproj" not in name and exact.search(name.split("/")[-1])
        ]
        other = re.compile(rf"UD-{text}", re.I)
        return sorted(found, key=lambda name: (other.search(name) is not None, len(name), name))

    def download(self, directory: str, names: Sequence[str]) -> str:
        """The command of the Hub's own client that brings it; empty without a repository.

        ``names`` are its files in the repository; empty: they are not known.
        """
        if self.repository is None:
            return ""
        words = ["hf", "download", self.repository]
        if not self.whole:
            words += names or ["--include", f"*{self.quantization}*"]
        return shlex.join([*words, "--local-dir", f"{directory}/{self.repository}"])

    @property
    def shown(self) -> str:
        """REPOSITORY:FILE, REPOSITORY and quantization, or its name; sizes behind it."""
        known = self.repository or self.name or ""
        if self.file is not None:
            known = f"{known}:{self.file}"
        elif self.quantization is not None:
            known = f"{known} {self.quantization}"
        return f"{known} ({self.published_size})" if self.published_size else known


class MainModel(ModelFile):
    """The model that is served."""

    name: Text
    """Its usual name: "Qwen3.6 27B"."""


class ServeOptions(Model):
    """How the server is started.

    In the arguments ``{model}``, ``{draft}`` and ``{mmproj}`` stand for the files in the
    container.  Where no argument has one of them, the recipe's [serve], or its family, adds the
    option that it knows; so it does for the size of the context.
    """

    arguments: list[Value] = []
    """Arguments after the entrypoint, without the options that name the model and the context."""
    environment: dict[VariableName, Value] = {}
    """Environment variables of the container."""
    context: Count | None = None
    """Size of the context in tokens; default: the engine's."""


class ContainerOptions(Model):
    """Needs of the container beside the GPU and the models."""

    ipc: Literal["host"] | None = None
    """IPC namespace (``docker run --ipc``)."""
    shm_size: Annotated[str, StringConstraints(pattern=fields.MEMORY_SIZE), PLAIN] | None = None
    """Size of /dev/shm (``docker run --shm-size``): "16g"."""
    memlock: bool = False
    """True: it locks memory without a limit (``docker run --ulimit memlock=-1``)."""
    capabilities: list[Literal["IPC_LOCK"]] = []
    """Linux capabilities to add; engines need IPC_LOCK for --mlock, and no other."""


class Caveat(Model):
    """A known problem of the run."""

    text: Text
    """The problem, in a sentence."""
    thread: Annotated[str, StringConstraints(pattern=fields.THREAD), PLAIN] | None = None
    """Where it is discussed: "Anbeeld/beellama.cpp#7"."""
    only: Literal["memory", "HAMi", "source"] | None = None
    """Where alone it holds: on cards with no more memory than the preset's; on vGPU hosts; for the
    published run or its engine, not for this image. Default: everywhere. `choose` shows it where
    it holds."""

    @property
    def shown(self) -> str:
        """The problem, with its thread."""
        return f"{self.text} ({self.thread})" if self.thread else self.text


class Preset(Model):
    """A run of a recipe's image on a card, as it was published or composed for this farm."""

    recipe: Text
    """Name of the recipe whose image is run."""
    summary: Text
    """The run and its card, in one line."""
    card: Name
    """Card that it was run on, or is composed for: a file of ``cards/``, or listed in
    ``[unverified]``."""
    cards: Annotated[int, Field(ge=1, le=8)] = 1
    """Number of these cards."""
    loses_to: Text | None = None
    """Name of a preset that is faster on the same card; this one is published as a warning."""
    acceptance_of: Text | None = None
    """Name of the preset whose published acceptance the computed speed of this one takes: it has
    the same model and drafts as many tokens."""
    source: Origin | None = None
    model: MainModel
    drafter: ModelFile | None = None
    """The draft model of speculative decoding."""
    mmproj: ModelFile | None = None
    """The multimodal projector."""
    serve: ServeOptions = ServeOptions()
    container: ContainerOptions = ContainerOptions()
    memory: Memory | None = None
    """Memory of the card with the context of [serve]."""
    published_context: Count | None = None
    """Tokens of context as published, where the card has no room for a prompt that fills it, and
    [serve] has a smaller context."""
    filled: list[Filled] = []
    """Memory with prompts that fill the context, where it is more than a short request takes."""
    paths: dict[Work, list[Text]] = {}
    """The paths that the engine may take for its work on the card: attention = ["mma", "vec"]."""
    method: Method = Method()
    result: list[Result] = []
    caveat: list[Caveat] = []
    unverified: dict[Text, Text] = {}
    """Keys, such as "model.repository", whose value nobody confirmed, and why."""

    @property
    def identity(self) -> str:
        """sha256 (hex) over how the server is started, with which models, and on which cards.

        Checks of the preset hold for one identity; its figures and caveats are no part of it.
        """
        decides = {"recipe", "card", "cards", "model", "drafter", "mmproj", "serve", "memory"}
        decides |= {"paths"} if self.paths else set()  # most have none
        text = json.dumps(self.model_dump(mode="json", include=decides), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()

    @property
    def composed(self) -> bool:
        """Whether it was composed for this farm: nobody published such a run."""
        return self.source is None and not self.result

    @property
    def files(self) -> dict[str, ModelFile]:
        """Its models by ``model``, ``draft`` and ``mmproj``."""
        found = {place: getattr(self, table) for place, table in TABLES.items()}
        return {place: file for place, file in found.items() if file is not None}

    @property
    def downloadable(self) -> bool:
        """Whether each model has a repository; without one, the user has to name a file."""
        return all(file.repository is not None for file in self.files.values())

    @property
    def published(self) -> Result | None:
        """The preset's own figure: the figure of the largest context; None where it has none."""
        own = [each for each in self.result if each.of_preset]
        return max(own, key=self.context_of, default=None)

    @property
    def acceptance(self) -> float | None:
        """The published share of the drafted tokens that were accepted; None: not known."""
        for each in (result for result in self.result if result.of_preset):
            stated = each.acceptance.middle if each.acceptance else each.accepted_share
            if stated is not None:
                return stated / 100
        return None

    def notes(self, figure: Result | None) -> tuple[str, ...]:
        """The sentences on its origin, and on what was faster: a preset, or no speculation."""
        found = ["nobody published this run: it was composed here"] if self.composed else []
        found += [f"{self.loses_to} is faster on the same card"] if self.loses_to else []
        if figure is not None and figure.loses:
            found.append(f"without speculation it was {figure.baseline:g} tokens/s")
        return (*found,)

    def context_of(self, result: Result) -> int:
        """The context of a result in tokens; 0 where it is not known."""
        return result.context or self.serve.context or 0
