"""The models of a preset as files: in the models directory, on the Hub, and in a container.

The models directory has the paths of the Hub: ``OWNER/NAME/FILE``, as
``hf download OWNER/NAME FILE --local-dir DIRECTORY/OWNER/NAME`` writes them.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from builder.presets.schema import ModelFile, Preset
from builder.presets.service import OPTIONS_OF_PLACES, Files, Mount
from simulator.gguf import PART, parts_of

DIRECTORY = "/models"
"""The models directory in a container."""
UNKNOWN = {"model": "MODEL.gguf", "draft": "DRAFT.gguf", "mmproj": "MMPROJ.gguf"}
"""Stand for files whose names nobody knows yet."""
UNFINISHED = (".part", ".incomplete")
"""The ends of the files of a download that was cut: builder's, and the Hub's own client's."""
CONFIGURATIONS = {"config.json", "params.json"}
"""Configuration of a model in a repository: of Transformers, of Mistral."""
TABLES = {"model": "model", "draft": "drafter", "mmproj": "mmproj"}
"""The tables of a preset, by the placeholders of their files in arguments."""


def of_preset(preset: Preset) -> dict[str, ModelFile]:
    """The files of a preset by ``model``, ``draft`` and ``mmproj``."""
    found = {place: getattr(preset, table) for place, table in TABLES.items()}
    return {place: file for place, file in found.items() if file is not None}


def downloadable(preset: Preset) -> bool:
    """Whether each file has a repository; without one, the user has to name a file."""
    return all(file.repository is not None for file in of_preset(preset).values())


def chosen(file: ModelFile, names: Iterable[str]) -> list[str]:
    """The paths in a repository that belong to a model: all parts of a split one, in order.

    Empty where none is the model, or a part is missing.  A whole repository has all of them.
    """
    known = sorted(names)
    if file.whole:
        return known
    if file.file is not None:
        first = [file.file] if file.file in known else []
    else:
        first = _of_quantization(file.quantization or "", known)[:1]
    return [part for name in first for part in _parts(name, known)]


def complete(file: ModelFile, names: Iterable[str]) -> list[str]:
    """Like ``chosen``, of files on a disk: empty where a download was cut.

    A repository is complete with its configuration, which ``download`` writes last, and without
    unfinished files.
    """
    known = [*names]
    found = chosen(file, known)
    if file.whole:
        unfinished = any(name.endswith(UNFINISHED) for name in known)
        return found if not unfinished and CONFIGURATIONS & {*known} else []
    return found


def _of_quantization(quantization: str, names: list[str]) -> list[str]:
    """The GGUFs of a quantization; those whose names end with it, and nothing more, are first.

    ``Q4_K_M`` is also the end of ``UD-Q4_K_M``, which comes after it.
    """
    exact = re.compile(rf"(?<![A-Za-z0-9_]){re.escape(quantization)}(?![A-Za-z0-9_])", re.I)
    found = [
        name
        for name in names
        if name.endswith(".gguf") and "mmproj" not in name and exact.search(name.split("/")[-1])
    ]
    other = re.compile(rf"UD-{re.escape(quantization)}", re.I)
    return sorted(found, key=lambda name: (other.search(name) is not None, len(name), name))


def _parts(name: str, names: list[str]) -> list[str]:
    found, split = parts_of(name, names), PART.search(name)
    return found if split is None or len(found) == int(split[2]) else []


def names_below(folder: Path) -> list[str]:
    """The paths of the files below a directory; empty where it is none."""
    if not folder.is_dir():
        return []
    return [path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()]


def in_directory(file: ModelFile, directory: Path) -> Path | None:
    """A model in the models directory: its (first) file, or its repository's folder.

    None where it is not there, or not all of it: a download that was cut.
    """
    if file.repository is None:
        return None
    folder = directory / file.repository
    found = complete(file, names_below(folder))
    if not found:
        return None
    return folder if file.whole else folder / found[0]


def mounted(files: Mapping[str, ModelFile], directory: str, names: Mapping[str, str]) -> Files:
    """Models under the models directory, which is mounted as a whole.

    ``names`` are the paths in their repositories that were found; where one is not known, a name
    stands for it, and ``incomplete`` says how to learn it.
    """
    places, missing, incomplete = {}, [], []
    for place, file in files.items():
        name = names.get(place) or file.file
        is_file = file.quantization is not None or place == "mmproj"  # else it may be a directory
        unknown = UNKNOWN[place] if is_file else Path(UNKNOWN[place]).stem
        path = "/".join(filter(None, (file.repository, None if file.whole else name or unknown)))
        places[place] = f"{DIRECTORY}/{path}"
        command = download(file, directory, [name] if name else [])
        if file.whole or name is not None:
            line = f"Needs {file.shown} at {directory}/{path}"
            missing.append(f"{line}: {command}" if command else line)
        elif command:
            incomplete.append(f"The file of {file.shown} is not known: {command}; then try again")
        else:
            option = f"{OPTIONS_OF_PLACES[place]} FILE"
            incomplete.append(f"No repository of {file.shown} is known: name a file with {option}")
    mounts = (Mount(directory, DIRECTORY),) if places else ()
    return Files(places, mounts, tuple(missing), tuple(incomplete))


def download(file: ModelFile, directory: str, names: Sequence[str]) -> str:
    """The command of the Hub's own client that brings a model; empty without a repository.

    ``names`` are its files in the repository; empty: they are not known.
    """
    if file.repository is None:
        return ""
    words = ["hf", "download", file.repository]
    if not file.whole:
        words += names or ["--include", f"*{file.quantization}*"]
    return shlex.join([*words, "--local-dir", f"{directory}/{file.repository}"])
