"""What happened, as one JSON file an image: written whole or not at all."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from builder.smoke.verdict import Check, Verdict
from builder.tools.files import write_json


@dataclass(frozen=True, slots=True)
class Record:
    """One image that was built and smoke-tested."""

    recipe: str
    key: str
    contract: str
    """sha256 of what the smoke test checks: a verdict holds for one contract."""
    references: tuple[str, ...]
    digest: str
    verdict: Verdict
    created: str
    """RFC 3339, UTC."""
    seconds: Mapping[str, float]
    """By stage."""
    base: Mapping[str, str] = field(default_factory=dict)
    """Digests of the base's images, by name."""
    log: str = ""

    def as_json(self) -> dict[str, Any]:
        """The record as JSON data."""
        return asdict(self)


def path_of(state: Path, recipe: str, key: str, digest: str = "") -> Path:
    """Where the record of an image stands: of the engine's own, or of one that a registry gave,
    which is known by its digest."""
    apart = f"-{digest.removeprefix('sha256:')[:12]}" if digest else ""
    return state / "records" / recipe / f"{key[:12]}{apart}.json"


def write(state: Path, record: Record, *, apart: bool = False) -> Path:
    """Write a record, ``apart`` where a registry gave the image and the engine may have another
    one of that key; raises ``OSError`` when the disk does not take it."""
    path = path_of(state, record.recipe, record.key, record.digest if apart else "")
    write_json(path, record.as_json())
    return path


def read(state: Path, recipe: str, key: str, digest: str = "") -> Record | None:
    """The record of an image, or None where there is none of this format."""
    try:
        found = json.loads(path_of(state, recipe, key, digest).read_text("utf-8"))
        verdict = found["verdict"]
        checks = tuple(Check(**check) for check in verdict["checks"])
        found["verdict"] = Verdict(**(verdict | {"checks": checks}))
        found["references"] = tuple(found["references"])
        record = Record(**found)
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return record if record.key == key else None
