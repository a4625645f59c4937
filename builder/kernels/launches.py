"""The launches in the report of a run on the simulated card."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from builder.errors import WorldError
from builder.kernels.compare import library_name


class _Launch(BaseModel):
    model_config = ConfigDict(frozen=True)

    kernel: str
    file: str
    count: int


class _Report(BaseModel):
    """The part of a report that the ledger needs."""

    model_config = ConfigDict(frozen=True)

    launches: tuple[_Launch, ...]


def launches(file: Path) -> Mapping[tuple[str, str], int]:
    """How often each kernel was launched, by the name of its library and its mangled name.

    Raises ``WorldError`` where the file cannot be read as a report.
    """
    try:
        report = _Report.model_validate_json(file.read_bytes())
    except OSError as error:
        raise WorldError(f"cannot read {file}", error.strerror or str(error)) from error
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        raise WorldError(
            f"{file} is no report of a simulated card",
            f"{place}: {first['msg']}" if place else first["msg"],
            "give the JSON file that a run on a simulated card wrote",
        ) from error
    found: Counter[tuple[str, str]] = Counter()
    for launch in report.launches:
        found[library_name(launch.file), launch.kernel] += launch.count
    return found
