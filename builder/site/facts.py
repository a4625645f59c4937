"""The facts that the pages of the site and ``index.json`` show.

A fact that is not known is empty or None, and then stands neither on a page nor in the file.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from pydantic_core import to_jsonable_python

from builder.choose.choice import ReceiptFigure
from builder.compilers.table import Table, Thread
from builder.kernels.paths import CodePaths
from builder.nightly.history import NightlyRun
from builder.site.published import PublishedTag

FORMAT = 3
"""The format of ``index.json``."""

Mark = Literal["compiled", "run without a GPU", "run on a card"]
"""``compiled``: an image was built and passed its checks; ``run without a GPU``: the preset's
server ran on a simulated card; ``run on a card``: its figures were published by somebody."""


@dataclass(frozen=True, slots=True)
class PatchFact:
    """A patch of an image."""

    name: str
    where: str
    """Its page or its repository."""
    why: str
    drop_when: str
    applied: bool
    """False: it is not needed, because the code that it changes is absent."""


@dataclass(frozen=True, slots=True)
class ImageFact:
    """The image of a recipe; sizes are bytes."""

    recipe: str
    summary: str
    repository: str
    """Its repository, with the registry; empty where it is not published."""
    url: str
    license: str
    source: tuple[str, ...]
    """The pin, line by line."""
    bases: tuple[str, ...]
    channel: str
    """The moving tag that nightly runs move."""
    code: tuple[str, ...]
    """GPU code: ``sm_120a``, ``compute_120``."""
    driver: str
    """The oldest driver."""
    port: int | None
    digest: str
    created: str
    """RFC 3339, of the image with that digest."""
    download_size: int | None
    unpacked_size: int | None
    device_code: tuple[CodePaths, ...]
    """The device code of its libraries, the largest first."""
    checks: Mapping[str, int]
    """The number of checks that passed, by kind."""
    patches: tuple[PatchFact, ...]
    starts: tuple[Mapping[str, Any], ...]
    """Scripts that patch it when a container starts."""
    notes: tuple[str, ...]
    presets: tuple[str, ...]
    tags: tuple[PublishedTag, ...]
    nights: tuple[NightlyRun, ...]
    """Newest first."""


@dataclass(frozen=True, slots=True)
class Figure(ReceiptFigure):
    """A speed on a card."""

    card: str = ""
    """The card that it was published for; empty: the card that is asked for."""
    cards: int = 1
    """The number of them."""


@dataclass(frozen=True, slots=True)
class NextStep:
    """A missing part, and the command that brings it; empty: the user has to bring it."""

    why: str
    command: str


@dataclass(frozen=True, slots=True)
class Option:
    """A preset that runs on a card."""

    preset: str
    short_name: str
    """The model's, as ``builder run`` takes it: several names of models may have one."""
    recommended: bool
    """Whether it is the best known preset of the short name."""
    recipe: str
    model: str
    quantization: str
    download: int | None
    """Bytes of its models."""
    context: int
    """Tokens; 0: the engine's default."""
    needs_file: bool
    """Whether the user has to name a file of its models, because no repository is known."""
    known: str
    """How its speed is known on the card: the standing of ``builder choose`` in lower case."""
    figure: Figure | None
    computed: Figure | None
    """The computed speed, where the figure is of another card."""
    not_computed: str
    """Why no speed is known, not even a computed one."""
    memory: int | None
    """Bytes: the largest known figure."""
    memory_by: str
    """``trial``, ``filled``, ``estimate``, ``source`` or ``unverified``."""
    driver: str
    capabilities: tuple[str, ...]
    """``vision``, ``tools``, ``thinking``, as far as its options say so."""
    caveats: tuple[str, ...]
    command: str
    other_context: int | None
    """The context of the command, where it is not the preset's."""
    compose: str
    """Path of its file for Docker Compose; empty where the file could not start."""
    missing: tuple[NextStep, ...]
    """The missing parts of that file; last, the command that writes it when all are there."""
    other_memory: int | None = None
    """Bytes: the smallest known figure, where it differs much."""
    least: int | None = None
    """Bytes of its weights and cache, at least; None: not known."""
    filled: bool = False
    """Whether prompts are known to fill the context in so much memory."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """A preset that does not run on a card, and why."""

    preset: str
    short_name: str
    model: str
    why: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class CardFact:
    """A card, the presets that run on one of it, the best known and fastest first, and the rest."""

    card: str
    name: str
    capability: str
    memory: int
    """Bytes that CUDA can allocate."""
    fits: tuple[Option, ...]
    excluded: tuple[Refusal, ...]


@dataclass(frozen=True, slots=True)
class PublishedFigure:
    """A published speed."""

    context: int | None
    """Tokens."""
    tokens_per_second: float
    least: float
    most: float
    runs: int | None
    acceptance: float | None
    """Percent."""
    baseline: float | None
    """Tokens in a second without speculation."""
    differs: str
    """The difference from the preset."""


@dataclass(frozen=True, slots=True)
class Speed:
    """The published figures of a preset."""

    preset: str
    recipe: str
    model: str
    card: str
    cards: int
    figures: tuple[PublishedFigure, ...]
    """The preset's own first, then the larger contexts."""
    by: str
    """Title of the page where they were published."""
    url: str
    published: str
    marks: tuple[Mark, ...]


@dataclass(frozen=True, slots=True)
class Measurement:
    """A figure of a receipt."""

    recipe: str
    digest: str
    hardware: str
    driver: str
    model: str
    """Name of the file."""
    model_sha256: str
    context: int
    tokens_per_second: float
    """The mean of the runs."""
    interval: tuple[float, float] | None
    """The mean's, with 95 % confidence; None for one run."""
    runs: tuple[float, ...]
    """Tokens in a second of each run."""
    by: str
    """Who measured; empty: not named."""
    created: str
    """RFC 3339."""


@dataclass(frozen=True, slots=True)
class Site:
    """All facts."""

    created: str
    """RFC 3339, UTC."""
    builder: str
    """Version of builder."""
    repository: str
    """URL of the farm's git repository; empty: not configured."""
    cards: tuple[CardFact, ...]
    images: tuple[ImageFact, ...]
    speeds: tuple[Speed, ...]
    """The fastest first."""
    measurements: tuple[Measurement, ...]
    """The figures of all receipts, the fastest first."""
    compilers: tuple[Table, ...]
    compiler_threads: tuple[Thread, ...]
    composes: Mapping[str, str]
    """The files for Docker Compose, by path; not in ``index.json``."""

    def as_json(self) -> dict[str, Any]:
        """The known facts as JSON data."""
        found: dict[str, Any] = _known(to_jsonable_python(self, exclude={"composes"}))
        return {"format": FORMAT, **found}


def _known(value: Any) -> Any:
    if isinstance(value, dict):
        pairs = {name: _known(each) for name, each in value.items()}
        return {name: each for name, each in pairs.items() if each not in (None, "", [], {})}
    if isinstance(value, list):
        return [_known(each) for each in value]
    return value
