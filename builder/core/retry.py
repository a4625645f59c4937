"""One retry policy: for downloads, registries, Docker Hub and git.

A failure that may be temporary is retried.  The server may set the wait (Retry-After); else it is
1, 2, 4, then 8 seconds.  Attempts and waiting time are bounded.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from builder.core.http_time import time_span
from builder.core.log import Log
from builder.core.web_errors import WebError, web_error

T = TypeVar("T")
ATTEMPTS = 7
GIVE_UP = 20.0  # seconds without a response, where the server does not ask for a longer wait
LONGEST_WAIT = 120.0  # seconds at once: Docker Hub's limits pass in minutes, or in hours
LONGEST_IN_ALL = 600.0  # seconds
GIVEN_UP: set[str] = set()
"""Servers that failed to the end.  They get one attempt each time, until one succeeds."""


class RetryPolicy:
    """The retry policy for one server.

    ``log`` gets a line before each wait of a second or more; it begins with ``server``, which is
    also the key in ``GIVEN_UP`` (a server without a name is not kept there).  ``failure_of`` makes
    a ``WebError`` of an exception of ``work``, or None where that is no failure of the server:
    ``temporary`` decides whether there is another attempt, ``retry_after`` how long to wait for it.
    """

    def __init__(
        self,
        server: str = "",
        log: Log = lambda _: None,
        failure_of: Callable[[BaseException], WebError | None] = web_error,
    ) -> None:
        self._server = server
        self._log = log
        self._failure_of = failure_of
        self._waited = 0.0  # seconds, at the request of the server
        self._last_response = 0.0

    def server_responded(self) -> None:
        """Note that the server responds, such as by reading an upload: ``GIVE_UP`` restarts."""
        self._last_response = time.monotonic()

    def call(self, work: Callable[[], T]) -> T:
        """Call ``work``, again where its failure may be temporary; raises its last error."""
        self.server_responded()
        attempt = 0
        while True:
            attempt += 1
            try:
                result = work()
            except Exception as error:
                failure = self._failure_of(error)
                if failure is None or not failure.temporary:
                    GIVEN_UP.discard(self._server)
                    raise
                if self._is_over(failure, attempt):
                    GIVEN_UP.update({self._server} - {""})
                    raise
            else:
                GIVEN_UP.discard(self._server)
                return result
            self._sleep(failure, attempt)

    def _is_over(self, failure: WebError, attempt: int) -> bool:
        if attempt >= ATTEMPTS or self._server in GIVEN_UP or failure.unresolved:
            return True
        wait = _wait(failure, attempt)
        if failure.retry_after is not None:
            return wait > LONGEST_WAIT or self._waited + wait > LONGEST_IN_ALL
        return time.monotonic() - self._last_response + wait > GIVE_UP

    def _sleep(self, failure: WebError, attempt: int) -> None:
        wait = _wait(failure, attempt)
        if wait >= 1:
            name = f"{self._server}: " if self._server else ""
            asks = "trying again in" if failure.retry_after is None else "it asks to wait"
            self._log(f"{name}{failure.why}; {asks} {time_span(wait)}")
        if failure.retry_after is not None:
            self._waited += wait
            self._last_response = time.monotonic() + wait
        time.sleep(wait)


def _wait(failure: WebError, attempt: int) -> float:
    """Seconds."""
    if failure.retry_after is not None:
        return failure.retry_after
    return min(2.0 ** (attempt - 1), 8.0)
