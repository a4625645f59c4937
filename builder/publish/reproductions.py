"""Statements that an image of a registry was built again, with the same digest."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from builder.core.errors import WorldError
from builder.core.files import workspace
from builder.core.settings import Settings
from builder.publish.referrers import annotations_of
from builder.publish.verdicts import trust_of

REPRODUCTION = "application/vnd.builder.reproduction.v1+json"
TEXT = "builder.reproduction"
SIGNATURE = "builder.reproduction.signature"
"""The annotations of an attached ``ReproductionStatement``: its JSON and its signature (base64)."""


class ReproductionStatement(BaseModel):
    """That an image was built again, as it is attached and signed."""

    model_config = ConfigDict(frozen=True, strict=True)

    digest: str
    """The image's; ``sha256:`` and 64 hex digits."""
    recipe: str
    architecture: str
    """The machine's that built it again: "x86_64"."""
    version: str
    """Version of builder."""
    created: str
    """When it was built again; RFC 3339, UTC."""


@dataclass(frozen=True, slots=True)
class Reproduced:
    """A statement that an image was built again, and whether it is trusted."""

    created: str
    """When it was built again; RFC 3339, UTC."""
    architecture: str
    """The machine's that built it again: "x86_64"."""
    key: str = ""
    """The trusted key that signed the statement, as the settings name it; empty: none."""
    problem: str = ""
    """Why no key was tried; empty: all were."""


def reproduced(
    entries: Iterable[Mapping[str, Any]], digest: str, settings: Settings
) -> Reproduced | None:
    """The newest statement on an image that a trusted key signed, else the newest one, or None.

    ``entries`` are the descriptors of the image's referrers.
    """
    found = []
    for values in annotations_of(entries, REPRODUCTION):
        with suppress(ValidationError):
            statement = ReproductionStatement.model_validate_json(values.get(TEXT, ""))
            if statement.digest == digest:
                found.append((statement, values))
    if not found:
        return None
    found.sort(key=lambda each: each[0].created, reverse=True)
    newest = Reproduced(found[0][0].created, found[0][0].architecture)
    try:
        with workspace(settings.cache_dir) as work:
            trust = trust_of(settings, work)
            for statement, values in found:
                key = trust.signer(values.get(TEXT, ""), values.get(SIGNATURE, ""))
                if key:
                    return Reproduced(statement.created, statement.architecture, key)
    except WorldError as error:
        return replace(newest, problem=error.what)
    return newest


def of_all(found: Sequence[Reproduced | None]) -> Reproduced | None:
    """One statement for all images of an index; None where an image was not built again.

    It is the oldest statement; a statement without a key comes before all others.
    """
    known = [each for each in found if each is not None]
    if not known or len(known) < len(found):
        return None
    return min(known, key=lambda each: (bool(each.key), each.created))
