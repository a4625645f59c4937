"""All HTTP requests of builder; servers are not trusted.

The size, the unpacked size and the time of a response are bounded.  Redirects are followed only
where a request allows it, one by one, and never from elsewhere to this machine; credentials stay
with their host.  Proxies of the environment are used, except for loopback addresses; ``~/.netrc``
is not read, and no cookie is kept.
"""

from __future__ import annotations

import http.client
import io
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any

from builder.core import sizes
from builder.core.address import is_loopback, join_url, leads_here, origin, split_url
from builder.core.web_errors import WebError, status_error, web_error

if TYPE_CHECKING:
    import socket

    import requests
    from _typeshed import WriteableBuffer
    from requests.adapters import HTTPAdapter

CONNECT_TIMEOUT = 10.0  # seconds
READ_TIMEOUT = 20.0  # seconds without a byte of the response
TOTAL_TIMEOUT = 60.0  # seconds from the end of a request to the end of its response
SMALL = 1 << 20  # bytes: a token, a response without a list
ERROR_SIZE = 1 << 16  # bytes of an error response that are read
SHOWN = 300  # characters of a header in an error
REDIRECTS = 5
REDIRECTING = {301, 302, 303, 307, 308}
BLOCK = 1 << 18
CREDENTIALS = {"authorization", "cookie"}
PACKED = {"gzip", "x-gzip", "deflate"}


class Follow(Enum):
    """Where GET and HEAD may be redirected to; other methods are never redirected."""

    NOWHERE = "nowhere"
    """The redirect is the response."""
    SAME_HOST = "same host"
    ANYWHERE = "anywhere"


@dataclass(frozen=True, slots=True)
class Head:
    """A response without its content.  ``url`` is its address after redirects."""

    method: str
    url: str
    status: int
    reason: str
    headers: Mapping[str, str]
    """By name, whatever its case."""

    @property
    def coding(self) -> str:
        """Its content coding; empty without one."""
        return self.headers.get("Content-Encoding", "").strip().lower()

    def error(self, why: str = "") -> WebError:
        """The error of its status; ``why`` is the server's own explanation.

        The Hugging Face Hub's is in a header (huggingface_hub, ``hf_raise_for_status``).
        """
        why = why or self.headers.get("X-Error-Message", "")[:SHOWN]
        text = f"{self.status} {self.reason[:SHOWN]}".strip()
        if self.status < 300:
            text = f"{text}, which is no response to {self.method}"
        later = self.headers.get("Retry-After", "")
        return status_error(self.status, f"{text}: {why}" if why else text, later, self.url)

    def require(self, *statuses: int) -> None:
        """Raise the ``WebError`` of its status unless it is one of these."""
        if self.status not in statuses:
            raise self.error()


@dataclass(frozen=True, slots=True)
class Response(Head):
    """A response that was read within its bounds."""

    content: bytes


@dataclass(frozen=True, slots=True)
class Opened(Head):
    """A response whose content is still to be read."""

    _raw: requests.Response

    def blocks(self, *, unpacked: bool = False) -> Iterator[bytes]:
        """The content in blocks of at most ``BLOCK`` bytes, as they come.

        Without ``unpacked`` it is not decoded: no request asks for packed bytes.  Raises
        ``WebError``.
        """
        while True:
            with _explained(self.url):
                block = self._raw.raw.read1(BLOCK, decode_content=unpacked)
            if not block:
                return
            yield block

    def read(self, limit: int) -> bytes:
        """The whole content, unpacked: at most ``limit`` bytes, of an error only a small one.

        Raises ``WebError``.
        """
        failed = self.status >= 300
        plain, packed = self.coding in {"", "identity"}, self.coding in PACKED
        content = bytearray()
        for block in self.blocks(unpacked=packed and not failed):
            content += block
            if failed and len(content) > ERROR_SIZE:
                return b""
            if len(content) > limit:
                why = f"its response is larger than {sizes.shown(limit)}"
                raise WebError(why, temporary=False)
        if failed:
            return bytes(content) if plain else b""
        if content and not (plain or packed):
            why = f"its response has the content coding {self.coding[:SHOWN]}"
            raise WebError(f"{why}, which was not asked for", temporary=False)
        return bytes(content)


class Client:
    """Sends requests, each once; threads may share it.

    ``certificate`` is a file of the user's own authority.
    """

    def __init__(self, certificate: Path | None = None) -> None:
        bundle = os.environ.get("REQUESTS_CA_BUNDLE") or os.environ.get("CURL_CA_BUNDLE")
        self._verify: str | bool = str(certificate) if certificate else bundle or True
        self._adapter = _adapter()

    def request(self, method: str, url: str, *, limit: int = SMALL, **more: Any) -> Response:
        """The response to a request; its content has at most ``limit`` bytes.

        ``more`` is as for ``open``.  Raises ``WebError`` where there is no response, or it exceeds
        a bound; never for its status.
        """
        with self.open(method, url, **more) as opened:
            head = (opened.method, opened.url, opened.status, opened.reason, opened.headers)
            return Response(*head, opened.read(limit))

    @contextmanager
    def open(
        self,
        method: str,
        url: str,
        *,
        headers: Mapping[str, str] | None = None,
        data: Any = None,
        read_timeout: float = READ_TIMEOUT,
        total_timeout: float | None = None,
        least: int = 0,
        follow: Follow = Follow.NOWHERE,
        outward: bool = False,
    ) -> Iterator[Opened]:
        """The response to a request, to be read in blocks.

        ``read_timeout`` is in seconds without a byte; ``total_timeout`` for the whole response
        (default: ``TOTAL_TIMEOUT``), or for each ``least`` bytes of it.  ``outward``: the server
        must not be this machine; a redirect of any other machine never leads here.  Raises
        ``WebError`` where there is no response; never for its status.
        """
        sent = dict(headers or {})
        seconds = TOTAL_TIMEOUT if total_timeout is None else total_timeout
        for _ in range(REDIRECTS + 1):
            host = split_url(url).hostname or ""
            if outward and leads_here(host):
                raise WebError(f"it names {host}, which is this machine", temporary=False)
            proxies = _proxies(url)
            _bounds.set((seconds, least))
            with _explained(url):
                raw = self._send(method, url, sent, data, proxies, (read_timeout, seconds))
            with raw:
                head = (method, raw.url, raw.status_code, raw.reason or "", raw.headers)
                opened = Opened(*head, raw)
                target = opened.headers.get("Location", "")
                if follow is Follow.NOWHERE or not (target and opened.status in REDIRECTING):
                    yield opened
                    return
            url = redirect_url(opened, target, follow)
            outward = outward or bool(proxies) or not leads_here(host)
            if origin(url) != origin(opened.url):
                sent = {k: v for k, v in sent.items() if k.lower() not in CREDENTIALS}
        raise WebError(f"it redirects more than {REDIRECTS} times", temporary=False)

    def _send(
        self,
        method: str,
        url: str,
        headers: Mapping[str, str],
        data: Any,
        proxies: Mapping[str, str],
        timeouts: tuple[float, float],
    ) -> requests.Response:
        """Send it without a session, which would add cookies and ~/.netrc, and read redirects."""
        from requests import Request
        from requests.utils import default_headers

        if isinstance(self._verify, str) and not Path(self._verify).exists():
            raise WebError(f"there is no file of certificates {self._verify}", temporary=False)
        wanted = default_headers()
        wanted.update({"Accept-Encoding": "identity"} | dict(headers))
        read, total = timeouts
        return self._adapter.send(
            Request(method, url, headers=wanted, data=data).prepare(),
            stream=True,
            # The first bounds each write, too.
            timeout=(min(max(CONNECT_TIMEOUT, read / 5), total), read),
            verify=self._verify,
            proxies=proxies,
        )


def redirect_url(response: Head, target: str, follow: Follow) -> str:
    """The address of a redirect.  Raises ``WebError`` where it must not be followed."""
    url = join_url(response.url, target)
    before, after = origin(response.url), origin(url)
    if before[0] == "https" and after[0] == "http":
        raise WebError(f"it redirects to {after[1]} without TLS", temporary=False)
    elsewhere = before != after and follow is not Follow.ANYWHERE
    if response.method not in {"GET", "HEAD"} or elsewhere:
        raise WebError(f"it redirects {response.method} to {after[1]}", temporary=False)
    return url


def _proxies(url: str) -> dict[str, str]:
    """The proxy for a URL, for requests; empty where it is asked directly."""
    from requests.utils import get_environ_proxies, select_proxy

    proxies = get_environ_proxies(url)
    found = None if is_loopback(split_url(url).hostname or "") else select_proxy(url, proxies)
    return {"all": found} if found else {}


@contextmanager
def _explained(url: str) -> Iterator[None]:
    """Raise ``WebError`` for whatever the libraries for HTTP raise."""
    try:
        yield
    except Exception as error:
        failure = web_error(error)
        if failure is None and isinstance(error, ValueError | OverflowError):
            failure = WebError("the response is not HTTP", temporary=False)
        if failure is None:
            raise
        failure.url = failure.url or url
        raise failure from error


_bounds: ContextVar[tuple[float, int]] = ContextVar("_bounds")
"""``seconds`` and ``least`` of the request that is sent."""


class _Timed(io.RawIOBase):
    """What a server sends, head and content; raises ``WebError`` where it takes too long.

    The time begins with it, and again whenever ``least`` bytes came, if that is not 0.
    """

    def __init__(self, connection: socket.socket, seconds: float, least: int) -> None:
        self._connection = connection
        self._stream = connection.makefile("rb", buffering=0)
        self._silence = connection.gettimeout() or seconds
        self._seconds = seconds
        self._least = least
        self._until = time.monotonic() + seconds
        self._count = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: WriteableBuffer, /) -> int:
        left = self._until - time.monotonic()
        if left <= 0:
            raise self._late()
        self._connection.settimeout(min(left, self._silence))
        try:
            count = self._stream.readinto(buffer) or 0
        except TimeoutError:
            if self._until <= time.monotonic():
                raise self._late() from None
            raise
        self._count += count
        if self._least and self._count >= self._least:
            self._count, self._until = 0, time.monotonic() + self._seconds
        return count

    def close(self) -> None:
        self._stream.close()
        super().close()

    def _late(self) -> WebError:
        within = "did not send enough" if self._least else "was not complete"
        why = f"its response {within} after {self._seconds:.0f} seconds"
        return WebError(why, temporary=False)


def _adapter() -> HTTPAdapter:
    """An adapter whose responses are read by way of ``_Timed``."""
    from requests.adapters import HTTPAdapter

    class TimedResponse(http.client.HTTPResponse):
        def __init__(self, sock: socket.socket, *arguments: Any, **named: Any) -> None:
            super().__init__(sock, *arguments, **named)
            self.fp.close()
            self.fp = io.BufferedReader(_Timed(sock, *_bounds.get()))

    class Adapter(HTTPAdapter):
        def get_connection_with_tls_context(self, *arguments: Any, **named: Any) -> Any:
            pool: Any = super().get_connection_with_tls_context(*arguments, **named)
            if pool.ConnectionCls.response_class is http.client.HTTPResponse:
                timed = {"response_class": TimedResponse}
                pool.ConnectionCls = type("Timed", (pool.ConnectionCls,), timed)
            return pool

    return Adapter()
