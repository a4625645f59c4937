"""A farm's manifest: all its published tags and what they run, for programs; and a choice from a
stranger's.

docs/publishing.md has its fields.  Whatever it says is a stranger's word: fields have bounds, and
commands are made here, of fields that are checked.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, StringConstraints, ValidationError

from builder.core.errors import FetchError
from builder.core.json_model import JsonModel, first_error
from builder.core.names import REPOSITORY
from builder.core.sizes import gib
from builder.core.web import PATIENT, Client, WebError
from builder.docker.gpus import version_numbers
from builder.engines.device_code import code_of
from builder.presets.cards import Machine
from builder.presets.schema import DIRECTORY
from simulator import selection

NAME = "manifest.json"
LARGEST = 16 << 20  # bytes
SIGNED = ".sig"  # the suffix of the file with the signature

Text = Annotated[str, StringConstraints(max_length=500, pattern=r"^[^\x00-\x1f\x7f-\x9f]*$")]
Word = Annotated[str, StringConstraints(max_length=2000, pattern=r"^[^\x00-\x1f\x7f-\x9f]*$")]
Digest = Annotated[str, StringConstraints(pattern=r"^sha256:[0-9a-f]{64}$")]
Code = Annotated[str, StringConstraints(pattern=r"^(sm|compute)_[0-9]{2,3}[af]?$")]
Driver = Annotated[str, StringConstraints(pattern=r"^(\d{3}(\.\d+){0,2})?$")]
Repository = Annotated[
    str,
    StringConstraints(
        max_length=255, pattern=rf"^(?:[a-z0-9][a-z0-9.-]*(?::[0-9]+)?/)?{REPOSITORY[1:]}"
    ),
]
HubName = Annotated[str, StringConstraints(max_length=200, pattern=r"^\w[\w.-]*/\w[\w.-]*$")]
FileName = Annotated[
    str, StringConstraints(max_length=300, pattern=r"^\w[\w.+ -]*(?:/\w[\w.+ -]*)*$")
]
Variable = Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,99}$")]
Size = Annotated[int, Field(ge=0, le=1 << 50)]
Count = Annotated[int, Field(ge=0, le=10**9)]


class Tag(JsonModel):
    """A tag of an image; ``digest`` is of the index where it has several platforms."""

    tag: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_][A-Za-z0-9._-]{0,127}$")]
    digest: Digest
    created: Text
    version: Text
    platforms: dict[Text, Digest]
    size: Size  # bytes to download; of several platforms, the largest
    checks: dict[Text, Count]  # the number of checks that passed, by kind
    signed: bool
    reproduced: Text
    """When it was built again with the same digest, by a trusted signer; empty: it is not known."""


class Image(JsonModel):
    """The image of a recipe, with its tags."""

    recipe: Text
    engine: Text
    version: Text
    repository: Repository
    architectures: Annotated[list[Code], Field(max_length=50)]
    driver: Driver  # the oldest driver; empty: it is not known
    channel: Text
    tags: Annotated[list[Tag], Field(max_length=500)]
    presets: Annotated[list[Text], Field(max_length=500)]


class ModelPlace(JsonModel):
    """A model on the Hugging Face Hub; the whole repository where there is no file."""

    repository: HubName
    file: FileName | None


class Run(JsonModel):
    """A preset with all that starts it: the models are below ``/models``."""

    preset: Text
    model: Text
    quantization: Text
    recipe: Text
    digest: Digest
    context: Count  # tokens; 0: the engine's default
    download: Size | None
    memory: Size | None  # bytes on all cards, the largest known figure; None: it is not known
    cards: Annotated[int, Field(ge=1, le=64)]
    driver: Driver
    tokens_per_second: Annotated[float, Field(ge=0, le=1e6)] | None
    on: Text  # the card of that figure
    port: Annotated[int, Field(ge=1, le=65535)]
    arguments: Annotated[list[Word], Field(max_length=500)]
    environment: Annotated[dict[Variable, Word], Field(max_length=100)]
    models: Annotated[list[ModelPlace], Field(max_length=20)]


class Signer(JsonModel):
    """Who signs the images and this file: a public key (PEM), or an identity."""

    key: Annotated[str, StringConstraints(max_length=10_000)]
    identity: Text
    issuer: Text


class Manifest(JsonModel):
    """The manifest of a farm."""

    format: Literal[1] = 1
    created: Text
    builder: Text
    farm: Text  # URL of its git repository; empty: it is not known
    signers: Annotated[list[Signer], Field(max_length=20)]
    images: Annotated[list[Image], Field(max_length=2000)]
    runs: Annotated[list[Run], Field(max_length=5000)]

    def text(self) -> str:
        """The file."""
        return json.dumps(self.model_dump(mode="json"), indent=1) + "\n"


@dataclass(frozen=True, slots=True)
class Fetched:
    """A manifest with the bytes that are signed; ``signature`` is empty where there is none."""

    manifest: Manifest
    text: str
    signature: str


def fetch(place: str) -> Fetched:
    """The manifest at a URL, of the file or of the site that has it, or in a file."""
    place = place if place.endswith(".json") else f"{place.rstrip('/')}/{NAME}"
    content, signature = _read(place, LARGEST), b""
    try:
        manifest = Manifest.model_validate_json(content)
        signature = _read(place + SIGNED, 1 << 20, optional=True)
        return Fetched(manifest, content.decode(), signature.decode().strip())
    except ValidationError as error:
        raise FetchError(
            f"{place} is no manifest of format 1", first_error(error), "ask the farm's owner"
        ) from error
    except UnicodeDecodeError as error:
        raise FetchError(f"{place}{SIGNED} is no signature", str(error)) from error


def _read(place: str, limit: int, *, optional: bool = False) -> bytes:
    what = f"cannot read the manifest {place}"
    if not place.startswith(("https://", "http://")):
        try:
            with Path(place).open("rb") as file:
                content = file.read(limit + 1)
        except OSError as error:
            if optional:
                return b""
            raise FetchError(what, error.strerror or str(error), "give a URL or a file") from error
        if len(content) > limit:
            raise FetchError(what, f"it has more than {limit} bytes")
        return content
    try:
        response = Client().request("GET", place, limit=limit, **PATIENT)
        if optional and response.status in {403, 404}:
            return b""
        response.require(200)
    except WebError as error:
        raise FetchError(what, error.why, "look at the address in a browser") from error
    return response.content


def obstacles(run: Run, image: Image, machine: Machine, context: int) -> Iterator[str]:
    """Why a run does not start on a machine; nothing where it does."""
    cards = machine.cards
    codes = [code_of(name) for name in image.architectures]
    if not any(selection.runs(code, card.capability) for code in codes for card in cards):
        yield f"its image has only {', '.join(image.architectures) or 'unknown code'}"
    if len(cards) < run.cards:
        yield f"it needs {run.cards} cards"
    oldest = max(run.driver, image.driver, key=version_numbers)
    if machine.driver and version_numbers(machine.driver) < version_numbers(oldest):
        yield f"it needs driver {oldest}"
    if context and run.context < context:
        yield f"its context is {run.context or 'not known'}"
    room = sum(sorted(card.memory for card in cards)[-run.cards :])
    if run.memory is None:
        yield "its memory is not known"
    elif run.memory > room:
        yield f"it takes {gib(run.memory)}, the cards have {gib(room)}"


def choose(
    manifest: Manifest, machine: Machine, context: int, model: str
) -> tuple[list[tuple[Run, Image]], Mapping[str, Sequence[str]]]:
    """The runs that start on a machine, the largest download first; why the others do not."""
    images = {
        (image.recipe, digest): image
        for image in manifest.images
        for tag in image.tags
        for digest in (tag.digest, *tag.platforms.values())
    }
    fits, refused = [], {}
    for run in manifest.runs:
        if not all(word in f"{run.preset} {run.model}".lower() for word in model.lower().split()):
            continue
        image = images.get((run.recipe, run.digest))
        why = [*obstacles(run, image, machine, context)] if image else ["no tag has its image"]
        if image and not why:
            fits.append((run, image))
        else:
            refused[run.preset] = why
    return sorted(fits, key=lambda each: (-(each[0].download or 0), each[0].preset)), refused


def commands(run: Run, image: Image) -> list[str]:
    """The commands that download the models of a run, and start it; by digest."""
    found = []
    for each in run.models:
        named = [each.file] if each.file else []
        # The shell expands ~ where it is not quoted.
        folder = f"~/models/{shlex.quote(each.repository)}"
        download = shlex.join(["hf", "download", each.repository, *named])
        found.append(f"{download} --local-dir {folder}")
    settings = [part for pair in run.environment.items() for part in ("-e", "=".join(pair))]
    head = ["docker", "run", "--rm", "--gpus", "all", "-p", f"127.0.0.1:{run.port}:{run.port}"]
    tail = [*settings, f"{image.repository}@{run.digest}", *run.arguments]
    mount = f"-v ~/models:{DIRECTORY}:ro"
    return [*found, f"{shlex.join(head)} {mount} {shlex.join(tail)}"]
