"""HTTP requests to servers that are not trusted.

The size, the decompressed size and the time of a response are bounded.  Redirects are followed
here, one by one: credentials go only to the host of the request.  Proxies of the environment are
used, except for loopback addresses; ``~/.netrc`` is not read.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Timer
from typing import TYPE_CHECKING, Any
from urllib.parse import SplitResult, urljoin, urlsplit

from builder.tools import sizes
from builder.tools.web.errors import WebError, status_error, web_error

if TYPE_CHECKING:
    import requests
    from requests import Session
    from requests.adapters import HTTPAdapter

CONNECT_TIMEOUT = 10.0  # seconds
READ_TIMEOUT = 20.0  # seconds without a byte of the response
TOTAL_TIMEOUT = 60.0  # seconds from the end of a request to the end of its response
SMALL = 1 << 20  # bytes: a token, a response without a list
ERROR_SIZE = 1 << 16  # bytes of an error response that are read
REDIRECTS = 5
BLOCK = 1 << 16
CREDENTIALS = {"authorization", "cookie"}


@dataclass(frozen=True, slots=True)
class Response:
    """A response that was read within its bounds.  ``url`` is its address after redirects."""

    method: str
    url: str
    status: int
    reason: str
    headers: Mapping[str, str]
    """By name, whatever its case."""
    content: bytes

    @property
    def ok(self) -> bool:
        """Whether its status is below 300."""
        return self.status < 300

    def error(self, why: str = "") -> WebError:
        """The error of its status; ``why`` is the server's own explanation."""
        text = f"{self.status} {self.reason}".strip()
        later = self.headers.get("Retry-After", "")
        return status_error(self.status, f"{text}: {why}" if why else text, later, self.url)


def split_url(url: str) -> SplitResult:
    """The parts of a URL.  Raises ``WebError`` where it is no URL of http or https."""
    try:
        parts = urlsplit(url)
        usable = parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
    except ValueError:
        usable = False
    if not usable or any(character.isspace() or not character.isprintable() for character in url):
        raise WebError("the server names an address that is not valid", temporary=False)
    return parts


def join_url(base: str, reference: str) -> str:
    """Resolve a reference against the address of its response.  Raises ``WebError``."""
    try:
        url = urljoin(base, reference)
    except ValueError:
        url = ""
    split_url(url)
    return url


def origin(url: str) -> tuple[str, str, int]:
    """Scheme, host and port of a URL.  Raises ``WebError``."""
    parts = split_url(url)
    return (
        parts.scheme,
        parts.hostname or "",
        parts.port or (443 if parts.scheme == "https" else 80),
    )


def is_loopback(host: str) -> bool:
    """Whether a host is this machine's loopback interface."""
    return host in {"localhost", "::1"} or (
        host.startswith("127.") and host.replace(".", "").isdigit()
    )


class Client:
    """Sends requests, each once.  ``certificate`` is a file of the user's own authority."""

    def __init__(self, certificate: Path | None = None) -> None:
        bundle = os.environ.get("REQUESTS_CA_BUNDLE") or os.environ.get("CURL_CA_BUNDLE")
        self._verify: str | bool = str(certificate) if certificate else bundle or True
        self._deadline = _Deadline()
        self._session: Session = _session()
        self._session.trust_env = False  # else ~/.netrc replaces the login
        self._session.headers["Accept-Encoding"] = "identity"
        adapter = _adapter(self._deadline)
        for scheme in ("http://", "https://"):
            self._session.mount(scheme, adapter)

    def request(
        self,
        method: str,
        url: str,
        *,
        headers: Mapping[str, str] | None = None,
        data: Any = None,
        limit: int = SMALL,
        read_timeout: float = READ_TIMEOUT,
        total_timeout: float = TOTAL_TIMEOUT,
        cross_host: bool = True,
    ) -> Response:
        """The response to a request; its content has at most ``limit`` bytes.

        ``read_timeout`` is in seconds without a byte, ``total_timeout`` for the whole response.
        ``cross_host``: GET and HEAD may be redirected to another host.  Raises ``WebError`` where
        there is no response, or it exceeds a bound; never for its status.
        """
        sent = dict(headers or {})
        for _ in range(REDIRECTS + 1):
            try:
                with (
                    self._deadline.within(total_timeout),
                    self._send(method, url, sent, data, read_timeout) as raw,
                ):
                    response = _read(raw, method, limit)
                    self._deadline.require_in_time()
            except Exception as error:
                self._deadline.require_in_time()
                failure = web_error(error)
                if failure is None:
                    raise
                failure.url = failure.url or url
                raise failure from error
            target = response.headers.get("Location", "")
            if response.status not in {301, 302, 303, 307, 308} or not target:
                return response
            url = redirect_url(response, target, cross_host=cross_host)
            if origin(url) != origin(response.url):
                sent = {k: v for k, v in sent.items() if k.lower() not in CREDENTIALS}
        raise WebError(f"it redirects more than {REDIRECTS} times", temporary=False)

    def _send(
        self, method: str, url: str, headers: Mapping[str, str], data: Any, read_timeout: float
    ) -> requests.Response:
        from requests.utils import get_environ_proxies

        here = is_loopback(split_url(url).hostname or "")
        return self._session.request(
            method,
            url,
            data=data,
            headers=dict(headers),
            # The first bounds each write, too.
            timeout=(max(CONNECT_TIMEOUT, read_timeout / 5), read_timeout),
            verify=self._verify,
            proxies={} if here else get_environ_proxies(url),
            allow_redirects=False,
            stream=True,
        )


def redirect_url(response: Response, target: str, *, cross_host: bool) -> str:
    """The address of a redirect.  Raises ``WebError`` where it must not be followed."""
    url = join_url(response.url, target)
    before, after = origin(response.url), origin(url)
    if before[0] == "https" and after[0] == "http":
        raise WebError(f"it redirects to {after[1]} without TLS", temporary=False)
    if response.method not in {"GET", "HEAD"} or (before != after and not cross_host):
        raise WebError(f"it redirects {response.method} to {after[1]}", temporary=False)
    return url


def _read(raw: requests.Response, method: str, limit: int) -> Response:
    failed = raw.status_code >= 300
    content = bytearray()
    for block in raw.iter_content(BLOCK):
        content += block
        if len(content) > ERROR_SIZE and failed:
            break
        if len(content) > limit:
            why = f"its response is larger than {sizes.shown(limit)}"
            raise WebError(why, temporary=False)
    return Response(method, raw.url, raw.status_code, raw.reason or "", raw.headers, bytes(content))


class _Deadline:
    """Ends a connection whose response takes too long.

    A socket's own timeout restarts with each byte.
    """

    def __init__(self) -> None:
        self._seconds = 0.0
        self._timer: Timer | None = None
        self._late = False

    @contextmanager
    def within(self, seconds: float) -> Iterator[None]:
        """Bound the response to the next request."""
        self._seconds, self._late = seconds, False
        try:
            yield
        finally:
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None

    def sent(self, connection: socket.socket) -> None:
        """Start the time: the request was sent."""

        def end() -> None:
            self._late = True
            with suppress(OSError):  # it may have ended this moment
                # An SSLSocket's own shutdown would forget its state while another thread reads.
                socket.socket.shutdown(connection, socket.SHUT_RDWR)

        self._timer = Timer(self._seconds, end)
        self._timer.daemon = True
        self._timer.start()

    def require_in_time(self) -> None:
        """Raise ``WebError`` where the response took too long and was cut off."""
        if self._late:
            why = f"its response was not complete after {self._seconds:.0f} seconds"
            raise WebError(why, temporary=False)


def _session() -> Session:
    """A session that ignores redirects.

    That of ``requests`` reads their address and content even where it does not follow them.
    """
    from requests import Session

    class Plain(Session):
        def get_redirect_target(self, resp: requests.Response) -> None:  # noqa: ARG002
            return None

    return Plain()


def _adapter(deadline: _Deadline) -> HTTPAdapter:
    """An adapter whose connections start the deadline when a request was sent."""
    from requests.adapters import HTTPAdapter

    class Adapter(HTTPAdapter):
        def get_connection_with_tls_context(self, *arguments: Any, **named: Any) -> Any:
            pool: Any = super().get_connection_with_tls_context(*arguments, **named)
            kind: Any = pool.ConnectionCls
            if not hasattr(kind, "has_deadline"):

                class WithDeadline(kind):  # type: ignore[misc]
                    has_deadline = True

                    def getresponse(self) -> Any:
                        deadline.sent(self.sock)
                        return super().getresponse()

                pool.ConnectionCls = WithDeadline
            return pool

    return Adapter()
