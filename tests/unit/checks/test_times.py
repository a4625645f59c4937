"""No time in an image is later than the time of its newest input."""

from __future__ import annotations

from typing import Any

from builder.checks import contract
from builder.checks.verdict import Check
from builder.image.contents import Contents, File, Layer
from support.smoke_tests import context_of, extended_image

DAY = "2026-11-20T00:00:00Z"
EPOCH = 1795132800  # the same
LATER = "2026-11-20T00:00:01.5Z"


def checked(
    modified: list[int], history: list[str], created: str | None = DAY, *, extends: bool = False
) -> list[Check]:
    files = tuple(File(f"/{number}", "file", modified=time) for number, time in enumerate(modified))
    layer = Layer("sha256:1", 1, 1, 0, "COPY", files)
    image: dict[str, Any] = {"created": created} if created else {}
    image["history"] = [{"created": time, "created_by": f"RUN at {time}"} for time in history]
    contents = Contents({}, image, (layer,), 1)
    extended = extended_image(0, {}) if extends else None
    return list(contract.check_times(context_of(contents, extended=extended)))


def test_files_and_steps_of_the_day_of_the_newest_input_pass() -> None:
    files, steps = checked([0, 315532800, EPOCH], [DAY, "2025-01-01T00:00:00Z"])
    assert files.passed
    assert steps.passed
    assert (files.subject, steps.subject) == ("files of 1 layers", "2 steps of the history")
    assert files.expected == "none after 2026-11-20 00:00:00 UTC"


def test_a_later_file_and_a_later_step_are_named() -> None:
    files, steps = checked([EPOCH, EPOCH + 1], [DAY, LATER])
    assert files.state == steps.state == "failed"
    assert files.found == "/1 is of 2026-11-20 00:00:01 UTC"
    assert steps.found == f"RUN at {LATER} is of {LATER}"


def test_many_files_are_counted() -> None:
    files, _ = checked([EPOCH + 1] * 20, [])
    assert files.found.endswith(" and 12 more")


def test_an_image_without_a_date_fails() -> None:
    files, steps = checked([EPOCH], [DAY], created=None)
    assert files.state == steps.state == "failed"


def test_the_history_of_an_image_that_extends_another_one_is_not_our_own() -> None:
    files, steps = checked([EPOCH + 1], [LATER], extends=True)
    assert not files.passed
    assert steps.passed
