"""The file of a receipt is read back, and any other is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest

from builder.core.errors import ReceiptError
from builder.presets.receipts import parse
from support.receipts import CARD, data, measured, receipt, run


def test_a_receipt_is_read_as_it_was_written() -> None:
    given = receipt(cards=[CARD, CARD])
    assert parse(json.dumps(given.model_dump(mode="json")).encode(), "a.json") == given
    assert given.hardware == "2 x NVIDIA GeForce RTX 5090"


@pytest.mark.parametrize(
    ("change", "place"),
    [
        ({"version": 1}, "version"),
        ({"hostname": "tower"}, "hostname: is no known key"),
        ({"measured": []}, "measured"),
        ({"measured": [measured(runs=[])]}, "measured.0.runs"),
        ({"measured": [measured(run(float("inf"), 1))]}, "measured.0"),
        ({"measured": [measured(run(9.0, 1, serial="1"))]}, "measured.0.runs.0.serial"),
        ({"measured": [measured(run(9.0, 1, timed_by="me"))]}, "measured.0.runs.0.timed_by"),
        ({"created": "2026-11-01T12:00:00"}, "created"),
        (
            {"image": {"recipe": "../a", "key": "0" * 64, "digest": "d"}},
            "image.recipe: is not valid",
        ),
    ],
)
def test_another_file_is_no_receipt(change: dict[str, Any], place: str) -> None:
    with pytest.raises(ReceiptError, match=r"a\.json is not a receipt") as refused:
        parse(json.dumps(data() | change).encode(), "a.json")
    assert place in refused.value.why
