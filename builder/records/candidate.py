"""Which candidate of a key this machine built: anybody can give an engine's image that name."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from builder.tools.files import write_json


class BuiltCandidate(BaseModel):
    """An image that this machine built, and that has no good verdict yet."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")

    format: int = 1
    """The version of the file."""
    key: str
    digest: str


def path_of(state: Path, recipe: str, key: str) -> Path:
    """The file of a candidate."""
    return state / "candidates" / recipe / f"{key[:12]}.json"


def write(state: Path, recipe: str, key: str, digest: str) -> None:
    """Write which image was built.  Raises ``OSError``."""
    candidate = BuiltCandidate(key=key, digest=digest)
    write_json(path_of(state, recipe, key), candidate.model_dump(mode="json"))


def digest_of(state: Path, recipe: str, key: str) -> str:
    """The digest of the candidate that this machine built; empty: it is not known to have."""
    try:
        found = BuiltCandidate.model_validate_json(path_of(state, recipe, key).read_bytes())
    except (OSError, ValueError):
        return ""
    return found.digest if found.key == key else ""


def remove(state: Path, recipe: str, key: str) -> None:
    """Forget a candidate that is gone, or has its good verdict."""
    with suppress(OSError):
        path_of(state, recipe, key).unlink()
