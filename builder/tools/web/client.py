"""HTTP with servers that are not trusted: every answer has bounds, no credential changes hosts.

Size, decompressed size and time of an answer are bounded.  Redirects are followed here, one by
one: credentials go to the host that was asked and to no other.  Proxies of the environment are
used, but not for loopback addresses; ``~/.netrc`` is not read.
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

from builder.tools.web.errors import WebError, status_error, web_error

if TYPE_CHECKING:
    from requests import Response, Session
    from requests.adapters import HTTPAdapter

CONNECT = 10.0  # seconds
SILENCE = 20.0  # seconds without a byte of an answer
WHOLE = 60.0  # seconds from the end of a request to the end of its answer
SMALL = 1 << 20  # bytes: a token, an answer without a list
ERROR_SIZE = 1 << 16  # bytes of an error's answer that are read
REDIRECTS = 5
BLOCK = 1 << 16
CREDENTIALS = {"authorization", "cookie"}


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer that was read within its bounds.  ``url`` is who gave it: redirects lead there."""

    method: str
    url: str
    status: int
    reason: str
    headers: Mapping[str, str]
    """Their names are compared without regard to case."""
    content: bytes

    @property
    def good(self) -> bool:
        """Whether its status is below 300."""
        return self.status < 300

    def error(self, why: str = "") -> WebError:
        """The error that its status is, with what the server says of it."""
        text = f"{self.status} {self.reason}".strip()
        later = self.headers.get("Retry-After", "")
        return status_error(self.status, f"{text}: {why}" if why else text, later, self.url)


def parts_of(url: str) -> SplitResult:
    """A URL's parts; raises ``WebError`` where it is none of http or https."""
    try:
        parts = urlsplit(url)
        usable = parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
    except ValueError:
        usable = False
    if not usable or any(character.isspace() or not character.isprintable() for character in url):
        raise WebError("the server names an address that is not valid", temporary=False)
    return parts


def joined(base: str, named: str) -> str:
    """The address that an answer names, as seen from its own.  Raises ``WebError``."""
    try:
        url = urljoin(base, named)
    except ValueError:
        url = ""
    parts_of(url)
    return url


def origin(url: str) -> tuple[str, str, int]:
    """Scheme, host and port of a URL.  Raises ``WebError``."""
    parts = parts_of(url)
    return (
        parts.scheme,
        parts.hostname or "",
        parts.port or (443 if parts.scheme == "https" else 80),
    )


def loopback(host: str) -> bool:
    """Whether a host's name is that of this machine's loopback interface."""
    return host in {"localhost", "::1"} or (
        host.startswith("127.") and host.replace(".", "").isdigit()
    )


class Client:
    """Asks servers, each request once.  ``certificate`` is an authority of one's own."""

    def __init__(self, certificate: Path | None = None) -> None:
        named = os.environ.get("REQUESTS_CA_BUNDLE") or os.environ.get("CURL_CA_BUNDLE")
        self._verify: str | bool = str(certificate) if certificate else named or True
        self._watch = _Watch()
        self._session: Session = _session()
        self._session.trust_env = False  # else ~/.netrc replaces the login
        self._session.headers["Accept-Encoding"] = "identity"
        adapter = _watched_adapter(self._watch)
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
        silence: float = SILENCE,
        whole: float = WHOLE,
        elsewhere: bool = True,
    ) -> Answer:
        """The answer to a request; its content has at most ``limit`` bytes.

        ``silence`` and ``whole`` are seconds, without a byte and for the whole answer.
        ``elsewhere``: GET and HEAD may be redirected to another host.  Raises ``WebError`` where
        there is no answer, or it is beyond a bound; never for its status.
        """
        sent = dict(headers or {})
        for _ in range(REDIRECTS + 1):
            try:
                with self._watch.within(whole), self._send(method, url, sent, data, silence) as got:
                    answer = _read(got, method, limit)
                    self._watch.require_in_time()
            except Exception as error:
                self._watch.require_in_time()
                failure = web_error(error)
                if failure is None:
                    raise
                failure.url = failure.url or url
                raise failure from error
            target = answer.headers.get("Location", "")
            if answer.status not in {301, 302, 303, 307, 308} or not target:
                return answer
            url = followed(answer, target, elsewhere=elsewhere)
            if origin(url) != origin(answer.url):
                sent = {k: v for k, v in sent.items() if k.lower() not in CREDENTIALS}
        raise WebError(f"it redirects more than {REDIRECTS} times", temporary=False)

    def _send(
        self, method: str, url: str, headers: Mapping[str, str], data: Any, silence: float
    ) -> Response:
        from requests.utils import get_environ_proxies

        here = loopback(parts_of(url).hostname or "")
        return self._session.request(
            method,
            url,
            data=data,
            headers=dict(headers),
            timeout=(max(CONNECT, silence / 5), silence),  # the first bounds each write, too
            verify=self._verify,
            proxies={} if here else get_environ_proxies(url),
            allow_redirects=False,
            stream=True,
        )


def followed(answer: Answer, target: str, *, elsewhere: bool) -> str:
    """The address that an answer redirects to; raises ``WebError`` where it is not gone to."""
    url = joined(answer.url, target)
    before, after = origin(answer.url), origin(url)
    if before[0] == "https" and after[0] == "http":
        raise WebError(f"it redirects to {after[1]} without TLS", temporary=False)
    if answer.method not in {"GET", "HEAD"} or (before != after and not elsewhere):
        raise WebError(f"it redirects {answer.method} to {after[1]}", temporary=False)
    return url


def _read(response: Response, method: str, limit: int) -> Answer:
    failed = response.status_code >= 300
    content = bytearray()
    for block in response.iter_content(BLOCK):
        content += block
        if len(content) > ERROR_SIZE and failed:
            break
        if len(content) > limit:
            why = f"its answer is larger than {limit / 1e6:.1f} MB"
            raise WebError(why, temporary=False)
    return Answer(
        method,
        response.url,
        response.status_code,
        response.reason or "",
        response.headers,
        bytes(content),
    )


class _Watch:
    """Ends a connection whose answer takes too long as a whole.

    The timeouts of sockets begin anew with every byte.
    """

    def __init__(self) -> None:
        self._seconds = 0.0
        self._timer: Timer | None = None
        self._late = False

    @contextmanager
    def within(self, seconds: float) -> Iterator[None]:
        """Bound the answer to the request that is sent now."""
        self._seconds, self._late = seconds, False
        try:
            yield
        finally:
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None

    def sent(self, connection: socket.socket) -> None:
        """The request was sent: time counts from here."""

        def end() -> None:
            self._late = True
            with suppress(OSError):  # it may have ended this moment
                # An SSLSocket's own shutdown would forget its state while another thread reads.
                socket.socket.shutdown(connection, socket.SHUT_RDWR)

        self._timer = Timer(self._seconds, end)
        self._timer.daemon = True
        self._timer.start()

    def require_in_time(self) -> None:
        """Raise ``WebError`` where the answer took too long: what was read of it is a part."""
        if self._late:
            why = f"its answer was not complete after {self._seconds:.0f} seconds"
            raise WebError(why, temporary=False)


def _session() -> Session:
    """A session that leaves redirects alone.

    That of ``requests`` reads their address and their whole content even where it does not follow.
    """
    from requests import Session

    class Plain(Session):
        def get_redirect_target(self, resp: Response) -> None:  # noqa: ARG002
            return None

    return Plain()


def _watched_adapter(watch: _Watch) -> HTTPAdapter:
    """An adapter whose connections tell a watch when a request was sent."""
    from requests.adapters import HTTPAdapter

    class Adapter(HTTPAdapter):
        def get_connection_with_tls_context(self, *arguments: Any, **named: Any) -> Any:
            pool: Any = super().get_connection_with_tls_context(*arguments, **named)
            kind: Any = pool.ConnectionCls
            if not hasattr(kind, "watched"):

                class Watched(kind):  # type: ignore[misc]
                    watched = True

                    def getresponse(self) -> Any:
                        watch.sent(self.sock)
                        return super().getresponse()

                pool.ConnectionCls = Watched
            return pool

    return Adapter()
