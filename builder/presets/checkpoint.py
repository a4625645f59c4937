"""Model folders of the Hugging Face Hub, as vLLM loads them, without their weights.

Transformers' layout: ``config.json``, a tokenizer, and weights in safetensors.  Headers of weights
are real, with a hole behind them; other files are copied.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from pydantic import BaseModel, Field, ValidationError

from builder.core.errors import FetchError
from builder.core.log import Log
from builder.presets import hub
from builder.presets.hollow import cut, require_holes, write_file
from builder.presets.models import REPOSITORY, Location, on_the_hub
from simulator import safetensors
from simulator.safetensors import NotSafetensorsError

CONFIGURATION = "config.json"
WEIGHTS = ".safetensors"
COPIED = (".json", ".txt", ".model", ".jinja", ".tiktoken", ".py")
"""The ends of the names of configurations, tokenizers, chat templates, and code of models."""
OTHER_WEIGHTS = (".bin", ".pt", ".pth", ".gguf", ".onnx")
LARGEST = 64 << 20
"""Bytes of the largest file that is copied; tokenizers have up to 35 MB."""
EXAMPLE = "Qwen/Qwen3-0.6B"


class _Text(BaseModel):
    max_position_embeddings: int | None = Field(None, ge=1)


class _Configuration(_Text):
    """The parts of a ``config.json`` that we read."""

    architectures: list[str] = Field(min_length=1)
    text_config: _Text = _Text()
    """Models that also take pictures have their text part here."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A model folder whose weights are holes; ``file`` is the folder."""

    file: Path
    name: str
    architecture: str
    """Its class: "Qwen3ForCausalLM"."""
    context: int | None
    """The context that it was trained for, in tokens."""
    size: int
    """Bytes of all real files with weights; 0: it has none, and the engine makes weights up."""
    weights: int
    """Bytes of all tensors."""
    read: int
    """Bytes that were read of the real files."""


def write(text: str, folder: Path, log: Log) -> Checkpoint:
    """Write the model folder that ``text`` names, a folder or OWNER/NAME of the Hub.

    The new folder is in ``folder``.  Raises ``FetchError`` where the model cannot be read, is cut,
    or has no weights in safetensors; ``WorldError`` where the file system keeps no holes.
    """
    require_holes(folder)
    name, files = _files(text)
    if CONFIGURATION not in files:
        raise FetchError(
            f"there is no model in {text}",
            f"it has no {CONFIGURATION}",
            f"name a folder or a repository as Transformers loads it, for example {EXAMPLE}",
        )
    others = sorted(each for each in files if each.endswith(OTHER_WEIGHTS))
    if others and not any(each.endswith(WEIGHTS) for each in files):
        raise FetchError(
            f"the weights of {text} cannot be read",
            f"{others[0]} is not in safetensors",
            "name a repository with weights in safetensors",
        )
    target = folder / name
    target.mkdir()
    target.chmod(0o755)  # the image's own user reads it
    size = weights = read = 0
    for path, location in sorted(files.items()):
        if path.endswith(WEIGHTS):
            header = _write_hollow(location, target / path, log)
            size, weights, read = size + header.end, weights + header.weights, read + header.size
        elif path.endswith(COPIED):
            read += _copy(location, target / path, log)
    described = _described(target / CONFIGURATION, text)
    context = described.max_position_embeddings or described.text_config.max_position_embeddings
    return Checkpoint(target, name, described.architectures[0], context, size, weights, read)


def _files(text: str) -> tuple[str, Mapping[str, Location]]:
    """The name of a model, and its files by name; folders in it are left out."""
    folder = Path(text).expanduser()
    if folder.is_dir():
        files = {
            each.name: Location(str(each), f"{text}/{each.name}")
            for each in folder.iterdir()
            if each.is_file()
        }
        return folder.resolve().name, files
    if not REPOSITORY.fullmatch(text):
        raise FetchError(
            f"there is no model {text}",
            "it is neither a folder nor a repository of the Hugging Face Hub, which this engine "
            "loads",
            f"for example {EXAMPLE}",
        )
    paths = [PurePosixPath(each.path) for each in hub.files(text)]
    names = [path.name for path in paths if len(path.parts) == 1]
    return text.partition("/")[2], {name: on_the_hub(text, name) for name in names}


def _write_hollow(location: Location, target: Path, log: Log) -> safetensors.Header:
    try:
        header, size = write_file(location, target, safetensors.read, log)
    except NotSafetensorsError as error:
        raise FetchError(
            f"{location.shown} is not a file of safetensors", str(error), "download it again"
        ) from error
    if header.end != size:
        raise cut(location, size, header.end)
    return header


def _copy(location: Location, target: Path, log: Log) -> int:
    """Copy a file; the bytes that it has."""
    with location.opened(log) as real:
        if real.size > LARGEST:
            raise FetchError(f"{location.shown} has {real.size} bytes: more than {LARGEST}")
        target.write_bytes(real.stream.read(real.size))
    target.chmod(0o644)
    return real.size


def _described(file: Path, text: str) -> _Configuration:
    try:
        return _Configuration.model_validate_json(file.read_bytes())
    except ValidationError as error:
        raise FetchError(
            f"{CONFIGURATION} of {text} describes no model",
            "it needs architectures and, if it has it, a number as max_position_embeddings",
        ) from error
