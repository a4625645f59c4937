"""Why a request over HTTP failed, in plain words, and when a server wants to be asked again.

One place for downloads, registries, Docker Hub and GitHub.
"""

from __future__ import annotations

import http.client
import os
import socket
import ssl
from collections.abc import Iterator

from builder.tools.web.http_time import retry_after, time_span


class WebError(Exception):
    """A request that got no usable answer.

    ``why`` says it in plain words.  ``status`` is that of the answer, 0 where there was none;
    ``asked`` the seconds that the server asks to wait; ``passing``: another try may succeed;
    ``untrusted``: the server's TLS certificate is not trusted; ``url``: who answered, or was asked.
    """

    def __init__(
        self,
        why: str,
        *,
        status: int = 0,
        asked: float | None = None,
        passing: bool = True,
        untrusted: bool = False,
        url: str = "",
    ) -> None:
        super().__init__(why)
        self.why = why
        self.status = status
        self.asked = asked
        self.passing = passing
        self.untrusted = untrusted
        self.url = url


def refused(status: int, why: str, later: str, url: str) -> WebError:
    """The error for an answer's status; ``later`` is its Retry-After.

    429 and 5xx may pass (RFC 6585, section 4; RFC 9110, section 15.6).
    """
    passing = status == 429 or status >= 500
    return WebError(why, status=status, asked=retry_after(later), passing=passing, url=url)


def web_error(error: BaseException) -> WebError | None:
    """What ``requests`` or ``urllib3`` raised, in plain words; None where it is another error."""
    import requests
    import urllib3

    if isinstance(error, WebError):
        return error
    if isinstance(error, requests.HTTPError) and error.response is not None:
        answer = error.response
        why = f"{answer.status_code} {answer.reason}"
        later = answer.headers.get("Retry-After", "")
        return refused(answer.status_code, why, later, answer.url)
    web = (requests.RequestException, urllib3.exceptions.HTTPError, http.client.HTTPException)
    if not isinstance(error, (*web, ConnectionError, TimeoutError, ssl.SSLError)):
        return None
    broken = (
        *(requests.ConnectionError, requests.Timeout, requests.exceptions.ChunkedEncodingError),
        *(urllib3.exceptions.ProtocolError, urllib3.exceptions.TimeoutError),
        *(ConnectionError, TimeoutError, ssl.SSLError),
    )
    chain = list(_chain(error))
    untrusted = any(
        isinstance(each, ssl.SSLError) and not isinstance(each, ssl.SSLEOFError) for each in chain
    )
    passing = isinstance(error, broken) and not untrusted
    proxy = any(isinstance(each, urllib3.exceptions.ProxyError) for each in chain)
    why = f"{'the proxy: ' if proxy else ''}{_cause(chain)}"
    return WebError(why, passing=passing, untrusted=untrusted)


def cause(error: BaseException) -> str:
    """Why a request failed, in plain words, with the time that the server asks to wait."""
    found = web_error(error)
    if found is None:
        return str(error)
    return f"{found.why}; it asks to wait {time_span(found.asked)}" if found.asked else found.why


def _chain(error: BaseException) -> Iterator[BaseException]:
    """An error and all that it wraps: ``urllib3`` keeps causes in ``reason`` and in arguments."""
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
        (ConnectionRefusedError, "connection refused"),
        (http.client.RemoteDisconnected, "the server closed the connection without an answer"),
        (ConnectionResetError, "the server reset the connection"),
        (ConnectionError, "the server closed the connection"),
        (errors.ConnectTimeoutError, "no connection in time"),
        (errors.TimeoutError, "no answer in time"),
        (TimeoutError, "no answer in time"),
        (http.client.IncompleteRead, "the server closed the connection within its answer"),
        (errors.IncompleteRead, "the server closed the connection within its answer"),
        (errors.DecodeError, "the compression of the answer is damaged"),
        (errors.LocationParseError, "the address is not valid"),
        (http.client.HTTPException, "the answer is not HTTP"),
        (ValueError, "the address is not valid"),  # requests' InvalidURL and InvalidSchema
    )
    for kind, said in words:
        for each in chain:
            if isinstance(each, kind):
                detail = getattr(each, "verify_message", "") or (
                    getattr(each, "reason", "") if isinstance(each, ssl.SSLError) else ""
                )
                return f"{said} ({detail})" if isinstance(detail, str) and detail else said
    number = next((e.errno for e in chain if isinstance(e, OSError) and e.errno), None)
    return os.strerror(number).lower() if number else "the connection failed"
