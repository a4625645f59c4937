"""Why an HTTP request failed, in plain words, and whether another attempt may succeed.

Downloads, registries, Docker Hub and GitHub share it.
"""

from __future__ import annotations

import http.client
import os
import socket
import ssl
from collections.abc import Iterator

from builder.tools.web import http_time

REFUSED = "connection refused"


class WebError(Exception):
    """A request without a usable response.

    ``why`` is the reason in plain words.  ``status`` is the response's, 0 where there was
    none; ``retry_after`` the seconds that the server asks to wait; ``temporary``: another attempt
    may succeed; ``untrusted``: the server's TLS certificate is not trusted; ``url``: the address
    that responded, or was requested.
    """

    def __init__(
        self,
        why: str,
        *,
        status: int = 0,
        retry_after: float | None = None,
        temporary: bool = True,
        untrusted: bool = False,
        url: str = "",
    ) -> None:
        super().__init__(why)
        self.why = why
        self.status = status
        self.retry_after = retry_after
        self.temporary = temporary
        self.untrusted = untrusted
        self.url = url

    @property
    def outcome(self) -> str:
        """The server's behavior, as a verb: "fails"."""
        if self.retry_after:
            return "asks to wait"
        return "fails" if self.status else "does not answer"


def status_error(status: int, why: str, retry_after: str, url: str) -> WebError:
    """The error of a response's status; ``retry_after`` is the header of that name.

    429 and 5xx are temporary (RFC 6585, section 4; RFC 9110, section 15.6).
    """
    temporary = status == 429 or status >= 500
    wait = http_time.retry_after(retry_after)
    return WebError(why, status=status, retry_after=wait, temporary=temporary, url=url)


def web_error(error: BaseException) -> WebError | None:
    """An error of ``requests``, ``urllib3`` or a socket in plain words; None for any other."""
    import requests
    import urllib3

    if isinstance(error, WebError):
        return error
    web = (requests.RequestException, urllib3.exceptions.HTTPError, http.client.HTTPException)
    if not isinstance(error, (*web, ConnectionError, TimeoutError, ssl.SSLError)):
        return None
    broken = (
        *(requests.ConnectionError, requests.Timeout, requests.exceptions.ChunkedEncodingError),
        *(urllib3.exceptions.ProtocolError, urllib3.exceptions.TimeoutError),
        *(ConnectionError, TimeoutError, ssl.SSLError),
    )
    found = connection_error(error)
    found.temporary = isinstance(error, broken) and not found.untrusted
    return found


def connection_error(error: BaseException) -> WebError:
    """Any error of a client for HTTP in plain words; temporary where the network is the reason."""
    import urllib3

    chain = list(_chain(error))
    untrusted = any(
        isinstance(each, ssl.SSLError) and not isinstance(each, ssl.SSLEOFError) for each in chain
    )
    network = any(isinstance(each, OSError) for each in chain)
    proxy = any(isinstance(each, urllib3.exceptions.ProxyError) for each in chain)
    why = f"{'the proxy: ' if proxy else ''}{_cause(chain)}"
    return WebError(why, temporary=network and not untrusted, untrusted=untrusted)


def cause(error: BaseException) -> str:
    """Why a request failed, in plain words, with the time that the server asks to wait."""
    found = web_error(error)
    if found is None:
        return str(error)
    if not found.retry_after:
        return found.why
    return f"{found.why}; it asks to wait {http_time.time_span(found.retry_after)}"


def _chain(error: BaseException) -> Iterator[BaseException]:
    """An error and every error in it: ``urllib3`` keeps causes in ``reason`` and in arguments."""
    seen: set[int] = set()
    waiting: list[object] = [error]
    while waiting:
        each = waiting.pop(0)
        if isinstance(each, BaseException) and id(each) not in seen:
            seen.add(id(each))
            yield each
            inner = (each.__cause__, each.__context__, getattr(each, "reason", None))
            waiting += [*inner, *each.args]


def _cause(chain: list[BaseException]) -> str:
    import urllib3

    errors = urllib3.exceptions
    words: tuple[tuple[type[BaseException], str], ...] = (
        (ssl.SSLCertVerificationError, "the TLS certificate is not trusted"),
        (ssl.SSLEOFError, "the server closed the connection"),
        (ssl.SSLError, "no TLS connection could be made"),
        (socket.gaierror, "the host name cannot be resolved"),
        (ConnectionRefusedError, REFUSED),
        (http.client.RemoteDisconnected, "the server closed the connection without a response"),
        (ConnectionResetError, "the server reset the connection"),
        (ConnectionError, "the server closed the connection"),
        (errors.ConnectTimeoutError, "no connection in time"),
        (errors.TimeoutError, "no response in time"),
        (TimeoutError, "no response in time"),
        (http.client.IncompleteRead, "the server closed the connection within its response"),
        (errors.IncompleteRead, "the server closed the connection within its response"),
        (errors.DecodeError, "the compression of the response is damaged"),
        (errors.LocationParseError, "the address is not valid"),
        (http.client.HTTPException, "the response is not HTTP"),
        (ValueError, "the address is not valid"),  # requests' InvalidURL and InvalidSchema
    )
    for kind, text in words:
        for each in chain:
            if isinstance(each, kind):
                detail = getattr(each, "verify_message", "") or (
                    getattr(each, "reason", "") if isinstance(each, ssl.SSLError) else ""
                )
                return f"{text} ({detail})" if isinstance(detail, str) and detail else text
    number = next((e.errno for e in chain if isinstance(e, OSError) and e.errno), None)
    return os.strerror(number).lower() if number else "the connection failed"
