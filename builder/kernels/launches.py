"""The launches of a run on a simulated card, from its report or the verdict of a smoke test."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from builder.errors import WorldError
from builder.kernels.compare import library_name

WRITE = "write it with `builder smoke RECIPE --json`, where the server runs on a simulated card"
"""The next step where a file has no launches."""


@dataclass(frozen=True, slots=True)
class Launches:
    """How often each kernel was launched."""

    counts: Mapping[tuple[str, str], int]
    """By the name of its library, empty where it is not known, and its mangled name."""

    def of(self, library: str, kernel: str) -> int:
        """The launches of a kernel of a library."""
        return self.counts.get((library, kernel), 0) + self.counts.get(("", kernel), 0)

    def besides(self, known: Collection[tuple[str, str]]) -> list[tuple[str, str]]:
        """The launched kernels that are not among these."""
        names = {kernel for _, kernel in known}
        return sorted(
            (library, kernel)
            for library, kernel in self.counts
            if ((library, kernel) not in known if library else kernel not in names)
        )


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True)


class _Launch(_Part):
    kernel: str
    file: str
    count: int


class _Device(_Part):
    launches: dict[str, int]


class _Verdict(_Part):
    device: _Device


class _File(_Part):
    """The parts that the ledger needs: of a report the first one, of a verdict the second."""

    launches: tuple[_Launch, ...] | None = None
    verdict: _Verdict | None = None


def launches(file: Path) -> Launches:
    """The launches in a report of a simulated card, or in the output of ``builder smoke --json``.

    Raises ``WorldError`` where the file cannot be read, or has no launches.
    """
    try:
        found = _File.model_validate_json(file.read_bytes())
    except OSError as error:
        raise WorldError(f"cannot read {file}", error.strerror or str(error), WRITE) from error
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        raise _no_launches(file, f"{place}: {first['msg']}" if place else first["msg"]) from error
    counts: Counter[tuple[str, str]] = Counter()
    if found.launches is not None:
        for launch in found.launches:
            counts[library_name(launch.file), launch.kernel] += launch.count
    elif found.verdict is not None:
        counts.update({("", name): count for name, count in found.verdict.device.launches.items()})
    else:
        raise _no_launches(file, "it has neither launches nor a verdict")
    return Launches(counts)


def _no_launches(file: Path, why: str) -> WorldError:
    return WorldError(
        f"{file} has no launches of a simulated card",
        why,
        WRITE,
    )
