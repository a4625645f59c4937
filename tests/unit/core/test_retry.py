"""The retry policy: which failures are retried, how long it waits, and when it gives up.

Time is a counter here: nothing waits.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from builder.core import web
from builder.core.web import RetryPolicy, WebError


class Clock:
    """A clock that only sleeping moves."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.slept: list[float] = []

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(time, "sleep", made.sleep)
    monkeypatch.setattr(time, "monotonic", lambda: made.now)
    return made


class Server:
    """Work that fails with these errors, one by one, and succeeds after them."""

    def __init__(self, *errors: Exception) -> None:
        self.errors = list(errors)
        self.calls = 0

    def __call__(self) -> str:
        self.calls += 1
        if self.errors:
            raise self.errors.pop(0)
        return "done"


def busy(asked: float | None = None) -> WebError:
    return WebError("503 Service Unavailable", status=503, retry_after=asked)


def test_a_temporary_failure_is_retried_with_growing_waits(clock: Clock) -> None:
    log: list[str] = []
    server = Server(busy(), busy(), ConnectionRefusedError())
    assert RetryPolicy("r.example", log.append).call(server) == "done"
    assert clock.slept == [1, 2, 4]
    assert log == [
        "r.example: 503 Service Unavailable; trying again in 1 second",
        "r.example: 503 Service Unavailable; trying again in 2 seconds",
        "r.example: connection refused; trying again in 4 seconds",
    ]


@pytest.mark.parametrize("error", [WebError("403", temporary=False), KeyError("x")])
def test_a_lasting_failure_is_not_retried(error: Exception, clock: Clock) -> None:
    server = Server(error)
    with pytest.raises(type(error)) as caught:
        RetryPolicy().call(server)
    assert caught.value is error
    assert (server.calls, clock.slept) == (1, [])


def test_a_silent_server_is_given_up_in_time(clock: Clock) -> None:
    last = busy()
    server = Server(*(busy() for _ in range(4)), last)
    with pytest.raises(WebError) as caught:
        RetryPolicy().call(server)
    assert caught.value is last
    assert clock.slept == [1, 2, 4, 8]
    assert sum(clock.slept) <= web.GIVE_UP


def test_a_server_that_responds_meanwhile_gets_all_attempts(clock: Clock) -> None:
    policy = RetryPolicy()
    server = Server(*(busy() for _ in range(20)))

    def work() -> str:
        policy.server_responded()
        return server()

    with pytest.raises(WebError):
        policy.call(work)
    assert server.calls == web.ATTEMPTS
    assert clock.slept == [1, 2, 4, 8, 8, 8]


def test_the_wait_that_a_server_asks_for_is_kept(clock: Clock) -> None:
    log: list[str] = []
    assert RetryPolicy("r", log.append).call(Server(busy(0.0), busy(100.0), busy())) == "done"
    assert clock.slept == [0, 100, 4]
    assert log[0] == "r: 503 Service Unavailable; it asks to wait 100 seconds"


@pytest.mark.parametrize(
    ("waits", "slept"),
    [([121.0], []), ([1.0, 9000.0], [1]), ([120.0] * 7, [120] * 5)],
    ids=["too long", "too long later", "too long in all"],
)
def test_the_waits_that_a_server_asks_for_are_bounded(
    waits: list[float], slept: list[float], clock: Clock
) -> None:
    with pytest.raises(WebError) as caught:
        RetryPolicy().call(Server(*map(busy, waits)))
    assert caught.value.retry_after == waits[len(slept)]
    assert clock.slept == slept


def test_a_server_that_was_given_up_gets_one_attempt_until_it_succeeds() -> None:
    def calls(work: Server, policy: RetryPolicy) -> int:
        try:
            policy.call(work)
        except WebError:
            return work.calls
        return -work.calls

    def failing() -> Server:
        return Server(*(busy(0.0) for _ in range(20)))

    assert calls(failing(), RetryPolicy("a")) == web.ATTEMPTS
    assert calls(failing(), RetryPolicy("a")) == 1
    assert calls(failing(), RetryPolicy("b")) == web.ATTEMPTS
    assert calls(Server(), RetryPolicy("a")) == -1
    assert calls(failing(), RetryPolicy("a")) == web.ATTEMPTS
    assert calls(Server(WebError("401", temporary=False)), RetryPolicy("a")) == 1
    assert calls(failing(), RetryPolicy("a")) == web.ATTEMPTS
    assert calls(failing(), RetryPolicy()) == web.ATTEMPTS
    assert calls(failing(), RetryPolicy()) == web.ATTEMPTS


def test_failures_of_another_tool_are_explained_by_its_own_function(clock: Clock) -> None:
    def failure_of(error: BaseException) -> WebError | None:
        return WebError("early EOF") if isinstance(error, LookupError) else None

    policy: Callable[[Server], str] = RetryPolicy("git", failure_of=failure_of).call
    assert policy(Server(KeyError("x"))) == "done"
    assert clock.slept == [1]
    with pytest.raises(WebError):
        policy(Server(busy()))
