"""Connections: each response has a deadline, and some may not come from this machine."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from threading import Lock, Timer, local
from typing import TYPE_CHECKING, Any

from builder.tools.web.address import is_loopback
from builder.tools.web.errors import WebError

if TYPE_CHECKING:
    from requests.adapters import HTTPAdapter


class Deadline:
    """Ends the connection of one response after ``seconds``.

    ``least``: the time begins again whenever so many bytes came; 0: it never does.
    """

    def __init__(self, seconds: float, least: int) -> None:
        self._seconds = seconds
        self._least = least
        self._count = 0
        self._until = 0.0
        self._timer: Timer | None = None
        self._turn = Lock()
        self._ended = False
        self._late = False

    def start(self, connection: socket.socket) -> None:
        """Start the time: the request was sent."""
        self._until = time.monotonic() + self._seconds
        with self._turn:
            self._wait(connection)

    def _wait(self, connection: socket.socket) -> None:
        left = self._until - time.monotonic()
        self._timer = Timer(max(left, 0), self._end, (connection,))
        self._timer.daemon = True
        self._timer.start()

    def _end(self, connection: socket.socket) -> None:
        with self._turn:
            if self._ended:
                return
            if self._until > time.monotonic():
                self._wait(connection)
                return
            self._late = True
        with suppress(OSError):  # it may have ended this moment
            # An SSLSocket's own shutdown would forget its state while another thread reads.
            socket.socket.shutdown(connection, socket.SHUT_RDWR)

    def received(self, count: int) -> None:
        """Note that so many bytes came.  Raises ``WebError`` where they came too late."""
        self.require_in_time()
        self._count += count
        if self._least and self._count >= self._least:
            self._count, self._until = 0, time.monotonic() + self._seconds

    def stop(self) -> None:
        """End the time."""
        with self._turn:
            self._ended = True
            if self._timer is not None:
                self._timer.cancel()

    def require_in_time(self) -> None:
        """Raise ``WebError`` where the response took too long and was cut off."""
        if self._late:
            within = "did not send enough" if self._least else "was not complete"
            why = f"its response {within} after {self._seconds:.0f} seconds"
            raise WebError(why, temporary=False)


@dataclass(slots=True)
class Exchange:
    """One request and its response.

    ``outward``: it must not reach this machine.
    """

    deadline: Deadline
    outward: bool = False
    proxied: bool = False
    """Whether a proxy connects, not this process."""
    here: bool = False
    """Whether the server is this machine, as far as is known."""

    def require_allowed(self, host: str, connection: socket.socket) -> None:
        """Note where a connection to a host leads.  Raises ``WebError`` where it must not.

        A connection to an address of this machine's own comes from the same address: its network's,
        or a bridge's, where services for containers listen.
        """
        peer = connection.getpeername()[0]
        self.here = not self.proxied and (is_loopback(peer) or peer == connection.getsockname()[0])
        if self.here and self.outward:
            raise inward(host)

    def require_resolved(self, host: str) -> None:
        """Raise ``WebError`` if any address of the host that a proxy is asked for is forbidden.

        A name that only the proxy knows is none of this machine.
        """
        found: list[Any] = []
        with suppress(OSError, UnicodeError):
            found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
        if self.outward and any(is_loopback(str(each[4][0])) for each in found):
            raise inward(host)


def inward(host: str) -> WebError:
    """The error of a server that leads to this machine, where servers may trust all who ask."""
    return WebError(f"it names {host}, which is this machine", temporary=False)


class Connections:
    """The connections of a client; threads may share them."""

    def __init__(self) -> None:
        self._thread = local()

    @contextmanager
    def exchange(self, seconds: float, least: int, *, outward: bool) -> Iterator[Exchange]:
        """This thread's next request; see ``Deadline`` and ``Exchange``."""
        found = self._thread.exchange = Exchange(Deadline(seconds, least), outward)
        try:
            yield found
        finally:
            found.deadline.stop()

    def adapter(self) -> HTTPAdapter:
        """An adapter whose connections obey the exchange of their thread."""
        from requests.adapters import HTTPAdapter

        thread = self._thread

        class Adapter(HTTPAdapter):
            def get_connection_with_tls_context(self, *arguments: Any, **named: Any) -> Any:
                pool: Any = super().get_connection_with_tls_context(*arguments, **named)
                kind: Any = pool.ConnectionCls
                if not hasattr(kind, "obeys"):

                    class Obedient(kind):  # type: ignore[misc]
                        obeys = True

                        def _new_conn(self) -> Any:
                            made = super()._new_conn()
                            try:
                                thread.exchange.require_allowed(self.host, made)
                            except BaseException:
                                made.close()
                                raise
                            return made

                        def request(self, *arguments: Any, **named: Any) -> Any:
                            if self.sock is not None:  # it was opened for an earlier request
                                thread.exchange.require_allowed(self.host, self.sock)
                            return super().request(*arguments, **named)

                        def getresponse(self) -> Any:
                            thread.exchange.deadline.start(self.sock)
                            return super().getresponse()

                    pool.ConnectionCls = Obedient
                return pool

        return Adapter()
