"""The record of an image: how it was made and its verdict, as one JSON file.

Before an image has its good verdict, another file says which image this machine built: anybody can
give an image of the engine the name of a candidate.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from builder.checks.verdict import Verdict
from builder.core.files import write_json
from builder.core.log import CHECK_STAGE, build_stage, duration
from builder.core.platforms import Platform

# The fields of a record that only the build of its image gives.
BUILD_FACTS = {"created", "way", "built_here", "log", "objects", "reused"}


class Record(BaseModel):
    """One image that was built and smoke-tested."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")

    format: Literal[3] = 3  # a file of another one is not read
    recipe: str
    platform: Platform = "linux/amd64"
    key: str
    contract: str  # sha256 of the smoke test's inputs: a verdict holds for one contract
    references: tuple[str, ...]
    digest: str
    verdict: Verdict
    created: str  # when this machine began to build or first checked it; RFC 3339, UTC
    seconds: Mapping[str, float]  # by stage
    way: str = ""  # "native", "cross", "remote cross emulated"; empty: not known
    built_here: bool = False  # only an image that this machine built is vouched for
    base: Mapping[str, str] = {}  # digests of the base's images, by name
    log: str = ""
    objects: int = 0  # that the build compiled or took from the compiler cache; 0: not known
    reused: int = 0  # the objects of these that came from the compiler cache
    commit: str = ""  # the source's, by the image's label; empty: not known

    @property
    def build_seconds(self) -> float | None:
        """The time of the stage that built the image; None: not known."""
        return self.seconds.get(build_stage(self.recipe))

    @property
    def check_seconds(self) -> float | None:
        """The time of its checks; None: not known."""
        return self.seconds.get(CHECK_STAGE)

    def with_build_of(self, before: Record) -> Record:
        """This record, with what ``before`` knows of the build of the image."""
        return self.model_copy(update=before.model_dump(include=BUILD_FACTS))

    def as_json(self) -> dict[str, Any]:
        """The record as JSON data."""
        return self.model_dump(mode="json")


def path_of(state: Path, recipe: str, key: str) -> Path:
    """The file of a record."""
    return state / "records" / recipe / f"{key[:12]}.json"


def write(state: Path, record: Record) -> Path:
    """Write a record; raises ``OSError``, and an earlier file then stays."""
    path = path_of(state, record.recipe, record.key)
    write_json(path, record.as_json())
    return path


def read(state: Path, recipe: str, key: str) -> Record | None:
    """The record of an image; None where there is none, or its file cannot be read as one."""
    try:
        record = Record.model_validate_json(path_of(state, recipe, key).read_bytes())
    except (OSError, ValueError):
        return None
    return record if record.key == key else None


def newest_good(
    state: Path, recipe: str, way: str = "", platform: Platform | None = None
) -> Record | None:
    """The record of a recipe's newest image with a good verdict; None where there is none.

    ``recipe`` may be "*": any recipe's.  With ``way``, only images that were compiled that way;
    with ``platform``, only images for it.  Else, of images for several platforms, an image for
    linux/amd64: simulated cards are a PC's.
    """
    good = (each for each in _newest_first(state, recipe) if each.verdict.good)
    fitting = (each for each in good if not way or each.way == way)
    return next((each for each in fitting if platform in (None, each.platform)), None)


def newest_refused(state: Path, recipe: str) -> Record | None:
    """The record of a recipe's newest image of which a check failed; None where there is none."""
    return next((each for each in _newest_first(state, recipe) if each.verdict.failures), None)


def least_errors(state: Path) -> dict[str, tuple[float, str]]:
    """By case of the kernel test, the least error of the images with a good verdict, the newest of
    each recipe, and the name of that image."""
    newest: dict[str, Record] = {}
    for each in _newest_first(state, "*"):
        if each.verdict.good and each.verdict.errors:
            newest.setdefault(each.recipe, each)
    found: dict[str, tuple[float, str]] = {}
    for each in newest.values():
        for case, error in each.verdict.errors.items():
            found[case] = min((error, each.references[0]), found.get(case, (error, "~")))
    return found


def _newest_first(state: Path, recipe: str) -> list[Record]:
    found = []
    for path in (state / "records").glob(f"{recipe}/*.json"):
        with suppress(OSError, ValueError):
            found.append(Record.model_validate_json(path.read_bytes()))
    return sorted(
        found, key=lambda each: (each.platform == "linux/amd64", each.created), reverse=True
    )


def last_time(state: Path, way: str, recipe: str = "*") -> str:
    """How long a recipe's ("*": any) last build took this way: "hello-1: 2 min 3 s"; or empty."""
    kept = newest_good(state, recipe, way)
    took = kept.build_seconds if kept else None
    return f"{kept.recipe}: {duration(took)}" if kept and took is not None else ""


def candidate_path(state: Path, recipe: str, key: str) -> Path:
    """The file of a candidate."""
    return state / "candidates" / recipe / f"{key[:12]}.json"


def write_candidate(state: Path, recipe: str, key: str, digest: str) -> None:
    """Write which image was built, that has no good verdict yet."""
    write_json(candidate_path(state, recipe, key), {"format": 1, "key": key, "digest": digest})


def candidate_digest(state: Path, recipe: str, key: str) -> str:
    """The digest of the candidate that this machine built; empty: it is not known to have."""
    try:
        found = json.loads(candidate_path(state, recipe, key).read_bytes())
        return str(found["digest"]) if found["key"] == key else ""
    except (OSError, ValueError, LookupError, TypeError):
        return ""


def remove_candidate(state: Path, recipe: str, key: str) -> None:
    """Forget a candidate that is gone, or has its good verdict."""
    with suppress(OSError):
        candidate_path(state, recipe, key).unlink()
