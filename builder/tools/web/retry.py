"""One way to ask a server again: for downloads, registries and Docker Hub."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from builder.tools.web.errors import WebError, explained, time_span

T = TypeVar("T")
ATTEMPTS = 7
GIVE_UP = 20.0  # seconds without a sign of life, where the server asks for no more
LONGEST_WAIT = 120.0  # seconds at once: Docker Hub's limits pass in minutes, or in hours
LONGEST_IN_ALL = 600.0  # seconds
GIVEN_UP: set[str] = set()
"""Servers that did not answer in the end.  They are asked once only, until they answer again."""


class Patience:
    """How long one server is waited for: as long as it asks, within bounds, else ``GIVE_UP``.

    ``say`` gets a line before each wait of a second or more.  A server without a name is not
    remembered when it is given up.
    """

    def __init__(self, server: str = "", log: Callable[[str], None] = lambda _: None) -> None:
        self._server = server
        self._say = log
        self._waited = 0.0
        self._alive = 0.0

    def alive(self) -> None:
        """Take note that the server does something: it takes the bytes of an upload."""
        self._alive = time.monotonic()

    def retrying(self, work: Callable[[], T]) -> T:
        """Do it, and do it again where it fails in a way that may pass.

        Raises what ``work`` raised at last.
        """
        self.alive()
        attempt = 1
        while True:
            try:
                done = work()
            except Exception as error:
                failure = explained(error)
                if failure is None or not failure.passing:
                    GIVEN_UP.discard(self._server)
                    raise
                seconds = self._pause(failure, attempt)
                if seconds is None:
                    GIVEN_UP.update({self._server} - {""})
                    raise
            else:
                GIVEN_UP.discard(self._server)
                return done
            self._wait(failure, seconds)
            attempt += 1

    def _pause(self, failure: WebError, attempt: int) -> float | None:
        """The seconds to wait before the next attempt; None: there is none."""
        if attempt >= ATTEMPTS or self._server in GIVEN_UP:
            return None
        if failure.asked is not None:
            fits = failure.asked <= LONGEST_WAIT and self._waited + failure.asked <= LONGEST_IN_ALL
            return failure.asked if fits else None
        seconds = float(min(0.5 * 2**attempt, 8.0))
        silent = time.monotonic() - self._alive
        return seconds if silent + seconds <= GIVE_UP else None

    def _wait(self, failure: WebError, seconds: float) -> None:
        if seconds >= 1:
            name = f"{self._server}: " if self._server else ""
            asks = "it asks to wait" if failure.asked is not None else "trying again in"
            self._say(f"{name}{failure.why}; {asks} {time_span(seconds)}")
        time.sleep(seconds)
        if failure.asked is not None:
            self._waited += seconds
            self.alive()
