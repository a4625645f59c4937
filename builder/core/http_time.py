"""Times in HTTP: the Retry-After header, dates, and time spans for messages."""

from __future__ import annotations

import time
from datetime import UTC

A_YEAR = 31_536_000.0  # seconds
LONGEST = 1e12  # seconds: an upper limit that no real header reaches
UNITS = ((31_557_600.0, "years"), (86_400.0, "days"), (3_600.0, "hours"), (60.0, "minutes"))


def retry_after(value: str) -> float | None:
    """The seconds to wait that a Retry-After header asks for; None where it is not valid.

    RFC 9110, section 10.2.3: a number of seconds, or a date.  Docker Hub has sent a point in time,
    in seconds since 1970 (docker/hub-feedback#2459).
    """
    if value.isascii() and value.isdigit():
        seconds = min(float(value), LONGEST)
        return seconds if seconds <= A_YEAR else max(0.0, seconds - time.time())
    passed = seconds_since(value)
    return max(0.0, -passed) if passed is not None else None


def seconds_since(date: str) -> float | None:
    """The seconds from an HTTP date (RFC 9110, section 5.6.7) until now; None where not valid."""
    from email.utils import parsedate_to_datetime

    try:
        found = parsedate_to_datetime(date)
        return time.time() - (found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp()
    except (ValueError, TypeError, OverflowError, IndexError):
        return None


def time_span(seconds: float) -> str:
    """A time span in words: "90 minutes", "26 years"."""
    for size, name in UNITS:
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {name}"
    return "1 second" if 0.5 <= seconds < 1.5 else f"{seconds:.0f} seconds"
