"""The format of a preset: one published run of a recipe's image, and how to repeat it.

A fact that the source does not state is absent.  A stated fact that nobody could confirm is in the
preset, and named in ``[unverified]``.
"""

from __future__ import annotations

import hashlib
import json
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, StringConstraints, model_validator

from builder.core.names import why_not_writable
from builder.presets.figures import UNITS, Count, Filled, Memory, Method, Result
from builder.recipes.fields import (
    HUB_FILE,
    HUB_REPOSITORY,
    MEMORY_SIZE,
    MONTH,
    PLAIN,
    THREAD,
    WEB_URL,
    Commit,
    Model,
    Name,
    Sha256,
    Text,
    Value,
    VariableName,
)
from simulator.work import Work


def _writable(path: str) -> str:
    if why := why_not_writable(path):
        raise ValueError(f"no file can have this name: {why}")
    return path


class Origin(Model):
    """Where the run was published."""

    title: Text | None = None
    """Title of the page or of the thread."""
    url: Annotated[str, StringConstraints(pattern=WEB_URL), PLAIN] | None = None
    """Address of the page."""
    published: Annotated[str, StringConstraints(pattern=MONTH), PLAIN] | None = None
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
    repository: Annotated[str, StringConstraints(pattern=HUB_REPOSITORY), PLAIN] | None = None
    """OWNER/NAME on the Hugging Face Hub; without it, the user names a file."""
    file: (
        Annotated[str, StringConstraints(pattern=HUB_FILE), PLAIN, AfterValidator(_writable)] | None
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
    shm_size: Annotated[str, StringConstraints(pattern=MEMORY_SIZE), PLAIN] | None = None
    """Size of /dev/shm (``docker run --shm-size``): "16g"."""
    memlock: bool = False
    """True: it locks memory without a limit (``docker run --ulimit memlock=-1``)."""
    capabilities: list[Literal["IPC_LOCK"]] = []
    """Linux capabilities to add; engines need IPC_LOCK for --mlock, and no other."""


class Caveat(Model):
    """A known problem of the run."""

    text: Text
    """The problem, in a sentence."""
    thread: Annotated[str, StringConstraints(pattern=THREAD), PLAIN] | None = None
    """Where it is discussed: "Anbeeld/beellama.cpp#7"."""

    @property
    def shown(self) -> str:
        """The problem, with its thread."""
        return f"{self.text} ({self.thread})" if self.thread else self.text


class Preset(Model):
    """A run of a recipe's image on a card, as it was published."""

    recipe: Text
    """Name of the recipe whose image is run."""
    summary: Text
    """The run and its card, in one line."""
    card: Name
    """Card that it was run on: a file of ``cards/``, or listed in ``[unverified]``."""
    cards: Annotated[int, Field(ge=1, le=8)] = 1
    """Number of these cards."""
    loses_to: Text | None = None
    """Name of a preset that is faster on the same card; this one is published as a warning."""
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
    def published(self) -> Result | None:
        """The preset's own figure: the figure of the largest context; None where it has none."""
        own = [each for each in self.result if each.of_preset]
        return max(own, key=self.context_of, default=None)

    def slower(self, figure: Result | None) -> tuple[str, ...]:
        """The sentences on what was faster: another preset, or the run without speculation."""
        found = [f"{self.loses_to} is faster on the same card"] if self.loses_to else []
        if figure is not None and figure.loses:
            found.append(f"without speculation it was {figure.baseline:g} tokens/s")
        return (*found,)

    def context_of(self, result: Result) -> int:
        """The context of a result in tokens; 0 where it is not known."""
        return result.context or self.serve.context or 0
