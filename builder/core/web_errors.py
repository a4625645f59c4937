"""Why an HTTP request failed, in plain words, and whether another attempt may succeed.

Downloads, registries, Docker Hub and GitHub share it.
"""

from __future__ import annotations

import http.client
import os
import re
import socket
import ssl
from collections.abc import Iterator

from builder.core import http_time

REFUSED = "connection refused"
TRUST = "REQUESTS_CA_BUNDLE names a file with the certificate of your server or proxy"
PROXY_LOGIN = "HTTPS_PROXY needs the proxy's user and password before its name"
TUNNEL = re.compile(r"Tunnel connection failed: (\d{3})([\w -]*)")
"""What http.client says of a proxy that does not connect (``HTTPConnection._tunnel``)."""


class WebError(Exception):
    """A request without a usable response.

    ``why`` is the reason in plain words.  ``status`` is the response's, 0 where there was
    none; ``retry_after`` the seconds that the server asks to wait; ``temporary``: another attempt
    may succeed; ``untrusted``: the server's TLS certificate is not trusted; ``unresolved``: the
    name of the server, or of the proxy, has no address, so that there is no attempt at once;
    ``url``: the address that responded, or was requested.
    """

    def __init__(
        self,
        why: str,
        *,
        status: int = 0,
        retry_after: float | None = None,
        temporary: bool = True,
        untrusted: bool = False,
        unresolved: bool = False,
        url: str = "",
    ) -> None:
        super().__init__(why)
        self.why = why
        self.status = status
        self.retry_after = retry_after
        self.temporary = temporary
        self.untrusted = untrusted
        self.unresolved = unresolved
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
    why = f"{why}: {PROXY_LOGIN}" if status == 407 else why
    wait = http_time.retry_after(retry_after)
    return WebError(why, status=status, retry_after=wait, temporary=_passes(status), url=url)


def _passes(status: int) -> bool:
    return status == 429 or status >= 500


def web_error(error: BaseException) -> WebError | None:
    """An error of ``requests``, ``urllib3`` or a socket in plain words; None for any other."""
    import requests
    import urllib3

    if isinstance(error, WebError):
        return error
    broken = (
        *(requests.ConnectionError, requests.Timeout, requests.exceptions.ChunkedEncodingError),
        *(urllib3.exceptions.ProtocolError, urllib3.exceptions.TimeoutError),
        *(ConnectionError, TimeoutError, ssl.SSLError),
    )
    web = (requests.RequestException, urllib3.exceptions.HTTPError, http.client.HTTPException)
    if not isinstance(error, (*web, *broken)):
        return None
    chain = list(_chain(error))
    untrusted = any(
        isinstance(each, ssl.SSLError) and not isinstance(each, ssl.SSLEOFError) for each in chain
    )
    unresolved = any(isinstance(each, socket.gaierror) for each in chain)
    why, temporary = _cause(chain), isinstance(error, broken) and not untrusted
    if refused := next(filter(None, (TUNNEL.search(str(each)) for each in chain)), None):
        temporary = temporary and _passes(int(refused[1]))
        why = f"it does not connect: {refused[1]}{refused[2]}"
        why += f": {PROXY_LOGIN}" if refused[1] == "407" else ""
    if any(isinstance(each, urllib3.exceptions.ProxyError) for each in chain):
        why = f"the proxy: {why}"
    return WebError(why, temporary=temporary, untrusted=untrusted, unresolved=unresolved)


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
        (
            socket.gaierror,
            "the host name cannot be resolved: there is no network, or HTTPS_PROXY is missing or "
            "wrong",
        ),
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
                text += f" ({detail})" if isinstance(detail, str) and detail else ""
                return f"{text}; {TRUST}" if kind is ssl.SSLCertVerificationError else text
    number = next((e.errno for e in chain if isinstance(e, OSError) and e.errno), None)
    return os.strerror(number).lower() if number else "the connection failed"
