"""The facts that the pages of the site and ``index.json`` show.

A fact that is not known is empty or None, and then stands neither on a page nor in the file.
docs/site.md says what each fact is.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from pydantic_core import to_jsonable_python

from builder.build.compiler_table import Table, Thread
from builder.image.code_paths import CodePaths
from builder.presets.choose import ReceiptFigure
from builder.publish.nights import NightlyRun
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
    why: str
    drop_when: str
    applied: bool


@dataclass(frozen=True, slots=True)
class ImageFact:
    """The image of a recipe; sizes are bytes."""

    recipe: str
    summary: str
    repository: str
    url: str
    license: str
    source: tuple[str, ...]
    bases: tuple[str, ...]
    channel: str
    code: tuple[str, ...]
    driver: str
    port: int | None
    digest: str
    created: str
    download_size: int | None
    unpacked_size: int | None
    device_code: tuple[CodePaths, ...]
    checks: Mapping[str, int]
    patches: tuple[PatchFact, ...]
    starts: tuple[Mapping[str, Any], ...]
    notes: tuple[str, ...]
    presets: tuple[str, ...]
    tags: tuple[PublishedTag, ...]
    nights: tuple[NightlyRun, ...]


@dataclass(frozen=True, slots=True)
class Figure(ReceiptFigure):
    """A speed on a card."""

    card: str = ""
    cards: int = 1


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
    recommended: bool
    recipe: str
    model: str
    quantization: str
    download: int | None
    context: int
    needs_file: bool
    known: str
    figure: Figure | None
    computed: Figure | None
    not_computed: str
    memory: int | None
    memory_by: str
    driver: str
    capabilities: tuple[str, ...]
    caveats: tuple[str, ...]
    command: str
    other_context: int | None
    compose: str
    missing: tuple[NextStep, ...]
    other_memory: int | None = None
    least: int | None = None
    filled: bool = False


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
    fits: tuple[Option, ...]
    excluded: tuple[Refusal, ...]


@dataclass(frozen=True, slots=True)
class PublishedFigure:
    """A published speed."""

    context: int | None
    tokens_per_second: float
    least: float
    most: float
    runs: int | None
    acceptance: float | None
    baseline: float | None
    differs: str


@dataclass(frozen=True, slots=True)
class Speed:
    """The published figures of a preset."""

    preset: str
    recipe: str
    model: str
    card: str
    cards: int
    figures: tuple[PublishedFigure, ...]
    by: str
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
    model_sha256: str
    context: int
    tokens_per_second: float
    interval: tuple[float, float] | None
    runs: tuple[float, ...]
    by: str
    created: str


@dataclass(frozen=True, slots=True)
class Site:
    """All facts."""

    created: str
    builder: str
    repository: str
    cards: tuple[CardFact, ...]
    images: tuple[ImageFact, ...]
    speeds: tuple[Speed, ...]
    measurements: tuple[Measurement, ...]
    compilers: tuple[Table, ...]
    compiler_threads: tuple[Thread, ...]
    composes: Mapping[str, str]

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
