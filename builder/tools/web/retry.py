"""One retry policy: for downloads, registries, Docker Hub and git.

A failure that may be temporary is retried.  The server may set the wait (Retry-After); else it is
1, 2, 4, then 8 seconds.  Attempts and waiting time are bounded.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from builder.tools.log import Log
from builder.tools.web.errors import WebError, web_error
from builder.tools.web.http_time import time_span

if TYPE_CHECKING:
    from tenacity import RetryCallState

T = TypeVar("T")
ATTEMPTS = 7
GIVE_UP = 20.0  # seconds without a response, where the server does not ask for a longer wait
LONGEST_WAIT = 120.0  # seconds at once: Docker Hub's limits pass in minutes, or in hours
LONGEST_IN_ALL = 600.0  # seconds
GIVEN_UP: set[str] = set()
"""Servers that failed to the end.  They get one attempt each time, until one succeeds."""


def with_retries(work: Callable[[], T]) -> T:
    """Call ``work`` under a policy of its own: no server name, no log.

    Raises the last error of ``work``.
    """
    return RetryPolicy().call(work)


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
        from tenacity import Retrying, retry_if_exception

        self.server_responded()
        retrying = Retrying(
            retry=retry_if_exception(self._may_pass),
            wait=self._seconds,
            stop=self._is_over,
            before_sleep=self._before_sleep,
            reraise=True,
        )
        try:
            result = retrying(work)
        except Exception as error:
            if self._may_pass(error):
                GIVEN_UP.update({self._server} - {""})
            else:
                GIVEN_UP.discard(self._server)
            raise
        GIVEN_UP.discard(self._server)
        return result

    def _may_pass(self, error: BaseException) -> bool:
        failure = self._failure_of(error)
        return failure is not None and failure.temporary

    def _failure(self, state: RetryCallState) -> WebError:
        """The failure of the last attempt; it may be temporary."""
        error = state.outcome.exception() if state.outcome else None
        return (self._failure_of(error) if error else None) or WebError("")

    def _seconds(self, state: RetryCallState) -> float:
        asked = self._failure(state).retry_after
        return asked if asked is not None else min(2.0 ** (state.attempt_number - 1), 8.0)

    def _is_over(self, state: RetryCallState) -> bool:
        if state.attempt_number >= ATTEMPTS or self._server in GIVEN_UP:
            return True
        if self._failure(state).unresolved:
            return True
        wait = state.upcoming_sleep
        if self._failure(state).retry_after is not None:
            return wait > LONGEST_WAIT or self._waited + wait > LONGEST_IN_ALL
        return time.monotonic() - self._last_response + wait > GIVE_UP

    def _before_sleep(self, state: RetryCallState) -> None:
        failure, wait = self._failure(state), state.upcoming_sleep
        if wait >= 1:
            name = f"{self._server}: " if self._server else ""
            asks = "it asks to wait" if failure.retry_after is not None else "trying again in"
            self._log(f"{name}{failure.why}; {asks} {time_span(wait)}")
        if failure.retry_after is not None:
            self._waited += wait
            self._last_response = time.monotonic() + wait
