"""Statements that an image was built again, as they are attached to it."""

from __future__ import annotations

from pathlib import Path

from builder.publish.signing import sign_text
from builder.publish.verdicts import (
    REPRODUCTION_SIGNATURE,
    REPRODUCTION_TEXT,
    ReproductionStatement,
)


def statement(digest: str, day: int, key: Path | None) -> dict[str, str]:
    """The annotations of a statement of a day in November 2026, signed with a key of cosign."""
    created = f"2026-11-{day:02}T03:00:00+00:00"
    text = ReproductionStatement(
        digest=digest, recipe="x-1", architecture="x86_64", version="1", created=created
    ).model_dump_json()
    if key is None:
        return {REPRODUCTION_TEXT: text}
    return {
        REPRODUCTION_TEXT: text,
        REPRODUCTION_SIGNATURE: sign_text(text, str(key), key.parent / "signing"),
    }
