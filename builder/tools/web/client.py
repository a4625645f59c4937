"""All HTTP requests of builder; servers are not trusted.

The size, the unpacked size and the time of a response are bounded.  Redirects are followed only
where a request allows it, one by one, and never from elsewhere to this machine; credentials stay
with their host.  Proxies of the environment are used, except for loopback addresses; ``~/.netrc``
is not read, and no cookie is kept.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any

from builder.tools import sizes
from builder.tools.web.address import is_loopback, join_url, origin, split_url
from builder.tools.web.connections import Connections, Deadline, Exchange
from builder.tools.web.errors import WebError, status_error, web_error

if TYPE_CHECKING:
    import requests
    from requests import Session

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
CODINGS = {"gzip", "x-gzip", "deflate"}
EITHER_FORMAT = zlib.MAX_WBITS | 32  # zlib finds out whether its input is gzip's or its own


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
    _deadline: Deadline

    def blocks(self) -> Iterator[bytes]:
        """The content in blocks of at most ``BLOCK`` bytes, as they come.

        It is not decoded: no request asks for packed bytes.  Raises ``WebError``.
        """
        while True:
            with _explained(self.url, self._deadline):
                block = self._raw.raw.read1(BLOCK, decode_content=False)
                self._deadline.received(len(block or b""))
            if not block:
                return
            yield block

    def read(self, limit: int) -> bytes:
        """The whole content, unpacked: at most ``limit`` bytes, of an error only the beginning.

        Raises ``WebError``.
        """
        failed = self.status >= 300
        content = bytearray()
        for block in self.blocks():
            content += block
            if failed and len(content) > ERROR_SIZE:
                return b""
            if len(content) > limit:
                raise _too_large(limit)
        if self.coding in {"", "identity"} or not content:
            return bytes(content)
        return b"" if failed else _unpacked(bytes(content), self.coding, limit)


class Client:
    """Sends requests, each once; threads may share it.

    ``certificate`` is a file of the user's own authority.
    """

    def __init__(self, certificate: Path | None = None) -> None:
        bundle = os.environ.get("REQUESTS_CA_BUNDLE") or os.environ.get("CURL_CA_BUNDLE")
        self._verify: str | bool = str(certificate) if certificate else bundle or True
        self._connections = Connections()
        self._session: Session = _session()
        for scheme in ("http://", "https://"):
            self._session.mount(scheme, self._connections.adapter())

    def request(self, method: str, url: str, *, limit: int = SMALL, **more: Any) -> Response:
        """The response to a request; its content has at most ``limit`` bytes.

        ``more`` is as for ``open``.  Raises ``WebError`` where there is no response, or it exceeds
        a bound; never for its status.
        """
        with self.open(method, url, **more) as opened:
            return Response(
                opened.method,
                opened.url,
                opened.status,
                opened.reason,
                opened.headers,
                opened.read(limit),
            )

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
            with self._connections.exchange(seconds, least, outward=outward) as exchange:
                with _explained(url, exchange.deadline):
                    raw = self._send(exchange, method, url, sent, data, (read_timeout, seconds))
                with raw:
                    opened = Opened(
                        method,
                        raw.url,
                        raw.status_code,
                        raw.reason or "",
                        raw.headers,
                        raw,
                        exchange.deadline,
                    )
                    target = opened.headers.get("Location", "")
                    if follow is Follow.NOWHERE or not (target and opened.status in REDIRECTING):
                        yield opened
                        return
            url = redirect_url(opened, target, follow)
            outward = outward or not exchange.here
            if origin(url) != origin(opened.url):
                sent = {k: v for k, v in sent.items() if k.lower() not in CREDENTIALS}
        raise WebError(f"it redirects more than {REDIRECTS} times", temporary=False)

    def _send(
        self,
        exchange: Exchange,
        method: str,
        url: str,
        headers: Mapping[str, str],
        data: Any,
        timeouts: tuple[float, float],
    ) -> requests.Response:
        from requests.utils import get_environ_proxies, select_proxy

        parts = split_url(url)
        host = parts.hostname or ""
        proxies = {} if is_loopback(host) else get_environ_proxies(url)
        exchange.proxied = select_proxy(url, proxies) is not None
        if exchange.proxied and exchange.outward:
            exchange.require_resolved(host)
        if parts.scheme == "https" and isinstance(self._verify, str):
            _require_bundle(Path(self._verify))
        read, total = timeouts
        # Only one of the two bounds may end a silent response: else its error is a matter of luck.
        silent = read if read < total else total + CONNECT_TIMEOUT
        return self._session.request(
            method,
            url,
            data=data,
            headers=dict(headers),
            # The first bounds each write, too.
            timeout=(min(max(CONNECT_TIMEOUT, read / 5), total), silent),
            verify=self._verify,
            proxies=proxies,
            allow_redirects=False,
            stream=True,
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


@contextmanager
def _explained(url: str, deadline: Deadline) -> Iterator[None]:
    """Raise ``WebError`` for whatever the libraries for HTTP raise."""
    try:
        yield
    except Exception as error:
        deadline.require_in_time()
        failure = web_error(error)
        if failure is None and isinstance(error, ValueError | OverflowError):
            failure = WebError("the response is not HTTP", temporary=False)
        if failure is None:
            raise
        failure.url = failure.url or url
        raise failure from error


def _require_bundle(file: Path) -> None:
    if not file.exists():
        raise WebError(f"there is no file of certificates {file}", temporary=False)


def _too_large(limit: int) -> WebError:
    return WebError(f"its response is larger than {sizes.shown(limit)}", temporary=False)


def _unpacked(content: bytes, coding: str, limit: int) -> bytes:
    """Content without its coding (RFC 9110, section 8.4), which was not asked for."""
    if coding not in CODINGS:
        why = f"its response has the content coding {coding[:SHOWN]}, which was not asked for"
        raise WebError(why, temporary=False)
    unpacker = zlib.decompressobj(EITHER_FORMAT)
    try:
        found = unpacker.decompress(content, limit + 1)
    except zlib.error as error:
        raise WebError("the compression of the response is damaged") from error
    if len(found) > limit:
        raise _too_large(limit)
    if not unpacker.eof:
        raise WebError("the compression of the response is damaged: it ends too early")
    return found


def _session() -> Session:
    """A session that ignores redirects, ``~/.netrc`` and cookies.

    The one of ``requests`` reads the address and the content of redirects even where it does not
    follow them.
    """
    from http.cookiejar import DefaultCookiePolicy

    from requests import Session

    class Plain(Session):
        def get_redirect_target(self, resp: requests.Response) -> None:  # noqa: ARG002
            return None

    session = Plain()
    session.trust_env = False  # else ~/.netrc replaces the login
    session.cookies.set_policy(DefaultCookiePolicy(allowed_domains=[]))
    session.headers["Accept-Encoding"] = "identity"
    return session
