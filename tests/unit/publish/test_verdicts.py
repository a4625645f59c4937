"""An image has the date of its first verdict: its label has the date of its newest input."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from builder.publish.verdicts import TEXT, VERDICT, Statement, built_at

DIGEST = "sha256:" + "a" * 64


def verdict(created: str, digest: str = DIGEST) -> dict[str, Any]:
    """The descriptor of an attached verdict."""
    statement = Statement(
        recipe="x-1", key="k", digest=digest, contract="c", checks={}, created=created
    )
    return {"artifactType": VERDICT, "annotations": {TEXT: statement.model_dump_json()}}


def test_an_image_is_as_old_as_its_first_verdict() -> None:
    entries = [
        verdict("2026-11-22T03:00:00+00:00"),
        verdict("2026-11-21T05:00:00+02:00"),
        verdict("2020-01-01T00:00:00+00:00", digest="sha256:" + "b" * 64),
        verdict("yesterday"),
        {"artifactType": VERDICT, "annotations": {TEXT: "{}"}},
        {"artifactType": "other", "annotations": {}},
    ]
    assert built_at(entries, DIGEST) == datetime(2026, 11, 21, 3, tzinfo=UTC)


def test_an_image_without_a_verdict_has_no_such_date() -> None:
    assert built_at([{"artifactType": VERDICT}], DIGEST) is None
