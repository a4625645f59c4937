"""Models without their weights: the real headers, then holes of the right length.

An engine that loads one allocates and computes as with the real model.  A hole takes no space on
the disk, and no download; it reads as zeros.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import BinaryIO, TypeVar

from pydantic import AliasPath, BaseModel, Field, ValidationError

from builder.core.errors import FetchError, WorldError
from builder.core.log import Log
from builder.core.names import SPLIT
from builder.presets import models
from builder.presets.models import REPOSITORY, Location, locate, on_the_hub
from simulator import gguf as headers
from simulator.gguf import CutError, Header, NotGgufError, NotSafetensorsError, Readable

HOLE = 64 << 20  # bytes of the hole by which a file system is tried
MOST_PARTS = 999
H = TypeVar("H")


@dataclass(frozen=True, slots=True)
class HollowModel:
    """A model whose weights are holes; sizes are bytes."""

    file: Path  # the first file, with the others beside it; the folder of a checkpoint
    name: str
    architecture: str  # the engine's name of its kind, or its class: "qwen35", "Qwen3ForCausalLM"
    context: int | None  # the context that it was trained for, in tokens
    size: int  # all real files with weights; 0: it has none, and the engine makes weights up
    weights: int  # all tensors
    read: int  # what was read of the real files
    header: Header | None = None
    """The first GGUF's, which alone describes the model; None: it is a checkpoint for vLLM."""


def write_hollow(text: str, folder: Path, log: Log) -> HollowModel:
    """Write the hollow files of the model that ``text`` names into ``folder``.

    The headers of all parts of a split model are read.
    """
    location = locate(text)
    require_holes(folder)
    if location.remote:
        log(f"reading the header of {location.shown}")
    found = SPLIT.search(location.name)
    if found and int(found[1]) != 1:
        raise FetchError(
            f"{location.shown} is part {int(found[1])} of a split model",
            "engines load the first part, and find the others beside it",
            f"name {location.part(1, int(found[2])).shown}",
        )
    written = [_write_gguf(location, folder, log)]
    first, parts = written[0][0], int(found[2]) if found else 1
    if first.parts != parts or parts > MOST_PARTS:
        raise FetchError(
            f"{location.shown} has the wrong name for a part of a split model",
            f"its header says {first.parts} parts, its name {parts}",
            "give it the name that llama-gguf-split gave it: NAME-00001-of-00003.gguf",
        )
    for number in range(2, parts + 1):
        written.append(_write_gguf(location.part(number, parts), folder, log))
    return HollowModel(
        folder / location.name,
        location.name,
        first.architecture,
        first.of_architecture("context_length"),
        sum(size for _, size in written),
        sum(header.weights for header, _ in written),
        sum(header.size for header, _ in written),
        first,
    )


def _write_gguf(location: Location, folder: Path, log: Log) -> tuple[Header, int]:

    def read(stream: Readable) -> Header:
        try:
            return headers.read(stream)
        except CutError as error:
            raise FetchError(f"{location.shown} is cut", str(error), "download it again") from error
        except NotGgufError as error:
            raise FetchError(
                f"{location.shown} is not a GGUF file for llama.cpp",
                str(error),
                "name a complete .gguf file: models in other formats must be converted first",
            ) from error

    header, size = _write_file(location, folder / location.name, read, log)
    if header.end > size:
        raise _cut(location, size, header.end)
    return header, size


def _write_file(
    location: Location, target: Path, read: Callable[[Readable], H], log: Log
) -> tuple[H, int]:
    """Copy the bytes that ``read`` takes of a file, with a hole behind them; the real size."""
    with location.opened(log) as (stream, size), target.open("wb") as sink:
        header = read(_Copying(stream, sink))
        sink.truncate(size)
    target.chmod(0o644)  # the image's own user reads it
    return header, size


def _cut(location: Location, size: int, whole: int) -> FetchError:
    return FetchError(
        f"{location.shown} is cut",
        f"it has {size} bytes; with its weights it would have {whole}",
        "download it again",
    )


@dataclass
class _Copying:
    stream: BinaryIO
    sink: BinaryIO

    def read(self, count: int) -> bytes:
        found = self.stream.read(count)
        self.sink.write(found)
        return found


def require_holes(folder: Path) -> None:
    """Raise ``WorldError`` where a hole takes space in ``folder``."""
    trial = folder / ".hole"
    try:
        with trial.open("wb") as stream:
            stream.truncate(HOLE)
        kept = is_hole(trial)
    finally:
        trial.unlink(missing_ok=True)
    if not kept:
        raise WorldError(
            f"the file system of {folder} keeps no holes in files",
            "a model of 17 GB would take 17 GB there",
            "set BUILDER_CACHE_DIR to a directory on ext4, XFS, Btrfs or ZFS",
        )


def is_hole(file: Path) -> bool:
    """Whether most of a file takes no space (stat(2): st_blocks counts 512 bytes)."""
    found = file.stat()
    return found.st_blocks * 512 < found.st_size / 2


# Model folders of the Hugging Face Hub, as vLLM loads them, without their weights.
#
# Transformers' layout: ``config.json``, a tokenizer, and weights in safetensors.  Headers of
# weights are real, with a hole behind them; other files are copied.

CONFIGURATION = "config.json"
POSITIONS = "max_position_embeddings"
WEIGHTS = ".safetensors"
COPIED = (".json", ".txt", ".model", ".jinja", ".tiktoken", ".py")
"""The ends of the names of configurations, tokenizers, chat templates, and code of models."""
OTHER_WEIGHTS = (".bin", ".pt", ".pth", ".gguf", ".onnx")
LARGEST = 64 << 20  # bytes of the largest file that is copied; tokenizers have up to 35 MB
EXAMPLE = "Qwen/Qwen3-0.6B"


class _Configuration(BaseModel):
    architectures: list[str] = Field(min_length=1)
    context: int | None = Field(None, ge=1, validation_alias=POSITIONS)
    # Models that also take pictures have their text part here.
    of_text: int | None = Field(None, ge=1, validation_alias=AliasPath("text_config", POSITIONS))


def write_checkpoint(text: str, folder: Path, log: Log) -> HollowModel:
    """Write the model folder that ``text`` names, a folder or OWNER/NAME of the Hub.

    The new folder is in ``folder``.
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
            header = _write_safetensors(location, target / path, log)
            size, weights, read = size + header.end, weights + header.weights, read + header.size
        elif path.endswith(COPIED):
            read += _copy(location, target / path, log)
    described = _described(target / CONFIGURATION, text)
    context, architecture = described.context or described.of_text, described.architectures[0]
    return HollowModel(target, name, architecture, context, size, weights, read)


def _files(text: str) -> tuple[str, Mapping[str, Location]]:
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
    paths = [PurePosixPath(each.path) for each in models.hub_files(text)]
    names = [path.name for path in paths if len(path.parts) == 1]
    return text.partition("/")[2], {name: on_the_hub(text, name) for name in names}


def _write_safetensors(location: Location, target: Path, log: Log) -> headers.SafetensorsHeader:
    try:
        header, size = _write_file(location, target, headers.read_safetensors, log)
    except NotSafetensorsError as error:
        raise FetchError(
            f"{location.shown} is not a file of safetensors", str(error), "download it again"
        ) from error
    if header.end != size:
        raise _cut(location, size, header.end)
    return header


def _copy(location: Location, target: Path, log: Log) -> int:
    with location.opened(log) as (stream, size):
        if size > LARGEST:
            raise FetchError(f"{location.shown} has {size} bytes: more than {LARGEST}")
        target.write_bytes(stream.read(size))
    target.chmod(0o644)
    return size


def _described(file: Path, text: str) -> _Configuration:
    try:
        return _Configuration.model_validate_json(file.read_bytes())
    except ValidationError as error:
        raise FetchError(
            f"{CONFIGURATION} of {text} describes no model",
            "it needs architectures and, if it has it, a number as max_position_embeddings",
        ) from error
