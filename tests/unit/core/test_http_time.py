"""The Retry-After header and HTTP dates, in every form that RFC 9110 allows."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from email.utils import formatdate

import pytest

from builder.core.web import retry_after_seconds, seconds_since, time_span

FORMS = ("%a, %d %b %Y %H:%M:%S GMT", "%A, %d-%b-%y %H:%M:%S GMT", "%a %b %d %H:%M:%S %Y")
"""IMF-fixdate, RFC 850 and asctime (RFC 9110, section 5.6.7)."""


@pytest.mark.parametrize(
    ("value", "seconds"),
    [("5", 5.0), ("0", 0.0), ("\u00b2", None), ("", None), ("soon", None), ("-1", None)],
)
def test_retry_after_in_seconds(value: str, seconds: float | None) -> None:
    assert retry_after_seconds(value) == seconds


def test_retry_after_as_a_point_in_time() -> None:
    for value in (formatdate(time.time() + 60, usegmt=True), str(int(time.time()) + 60)):
        asked = retry_after_seconds(value)
        assert asked is not None
        assert 55 < asked <= 61
    assert retry_after_seconds(formatdate(time.time() - 60, usegmt=True)) == 0.0


@pytest.mark.parametrize("form", FORMS)
def test_each_form_of_an_http_date(form: str) -> None:
    asked = retry_after_seconds((datetime.now(UTC) + timedelta(seconds=90)).strftime(form))
    assert asked is not None
    assert 85 < asked <= 90
    passed = seconds_since((datetime.now(UTC) - timedelta(seconds=90)).strftime(form))
    assert passed is not None
    assert 90 <= passed < 95


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(1.2, "1 second"), (90, "90 seconds"), (5400, "90 minutes"), (9000, "2 hours")],
)
def test_a_time_span_in_words(seconds: float, text: str) -> None:
    assert time_span(seconds) == text
