"""All HTTP requests of builder; servers are not trusted.

The size, the unpacked size and the time of a response are bounded.  Redirects are followed only
where a request allows it, one by one, and never from elsewhere to this machine; credentials stay
with their host.  Proxies of the environment are used, except for loopback addresses; ``~/.netrc``
is not read, and no cookie is kept.
"""

from __future__ import annotations

import hashlib
import http.client
import io
import os
import re
import shutil
import socket
import ssl
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from contextvars import ContextVar
from dataclasses import KW_ONLY, dataclass, replace
from datetime import UTC
from enum import Enum
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import SplitResult, urljoin, urlsplit
from uuid import uuid4

from builder.core import sizes
from builder.core.errors import FetchError
from builder.core.log import Log
from builder.core.names import require_writable_names
from builder.core.parallel import require_wanted

if TYPE_CHECKING:
    import requests
    from _typeshed import WriteableBuffer
    from requests.adapters import HTTPAdapter


# Times in HTTP: the Retry-After header, dates, and time spans for messages.

A_YEAR = 31_536_000.0  # seconds
LONGEST = 1e12  # seconds: an upper limit that no real header reaches
UNITS = ((31_557_600.0, "years"), (86_400.0, "days"), (3_600.0, "hours"), (60.0, "minutes"))


def retry_after_seconds(value: str) -> float | None:
    """The seconds to wait that a Retry-After header asks for; None where it is not valid.

    RFC 9110, section 10.2.3: a number of seconds, or a date.  Docker Hub has sent a point in time,
    in seconds since 1970 (docker/hub-feedback#2459).
    """
    if value.isascii() and value.isdigit():
        seconds = min(float(value), LONGEST)
        return seconds if seconds <= A_YEAR else max(0.0, seconds - time.time())
    passed = seconds_since(value)
    return max(0.0, -passed) if passed is not None else None


def seconds_since(date: str) -> float | None:
    """The seconds from an HTTP date (RFC 9110, section 5.6.7) until now; None where not valid."""
    from email.utils import parsedate_to_datetime

    try:
        found = parsedate_to_datetime(date)
        return time.time() - (found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp()
    except (ValueError, TypeError, OverflowError, IndexError):
        return None


def time_span(seconds: float) -> str:
    """A time span in words: "90 minutes", "26 years"."""
    for size, name in UNITS:
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {name}"
    return "1 second" if 0.5 <= seconds < 1.5 else f"{seconds:.0f} seconds"


# Why an HTTP request failed, in plain words, and whether another attempt may succeed.
#
# Downloads, registries, Docker Hub, the Hugging Face Hub and git share it.

REFUSED = "connection refused"
UNRESOLVED = (
    "the host name cannot be resolved: there is no network, or HTTPS_PROXY is missing or wrong"
)
TRUST = "REQUESTS_CA_BUNDLE names a file with the certificate of your server or proxy"
PROXY_LOGIN = "HTTPS_PROXY needs the proxy's user and password before its name"
TUNNEL = re.compile(r"Tunnel connection failed: (\d{3})([\w -]*)")
"""What http.client says of a proxy that does not connect (``HTTPConnection._tunnel``)."""


@dataclass(eq=False)
class WebError(Exception):
    """A request without a usable response.

    ``why`` is the reason in plain words.  ``status`` is the response's, 0 where there was
    none; ``retry_after`` the seconds that the server asks to wait; ``temporary``: another attempt
    may succeed; ``untrusted``: the server's TLS certificate is not trusted; ``unresolved``: the
    name of the server, or of the proxy, has no address, or the proxy is not there, so that there
    is no attempt at once;
    ``url``: the address that responded, or was requested.
    """

    why: str
    _: KW_ONLY
    status: int = 0
    retry_after: float | None = None
    temporary: bool = True
    untrusted: bool = False
    unresolved: bool = False
    url: str = ""

    @property
    def outcome(self) -> str:
        """The server's behavior, as a verb: "fails"."""
        if self.retry_after:
            return "asks to wait"
        return "fails" if self.status else "does not answer"


def _passes(status: int) -> bool:
    """Whether it is temporary (RFC 6585, section 4; RFC 9110, section 15.6)."""
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
        unresolved = unresolved or why == REFUSED
        why = f"the proxy: {why}"
    return WebError(why, temporary=temporary, untrusted=untrusted, unresolved=unresolved)


def cause(error: BaseException) -> str:
    """Why a request failed, in plain words, with the time that the server asks to wait."""
    found = web_error(error)
    if found is None or not found.retry_after:
        return found.why if found else str(error)
    return f"{found.why}; it asks to wait {time_span(found.retry_after)}"


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
        (socket.gaierror, UNRESOLVED),
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


# Addresses that servers name: a wrong one raises ``WebError``.

REGISTERED = {"http": 80, "https": 443}  # ports


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
    return parts.scheme, parts.hostname or "", parts.port or REGISTERED[parts.scheme]


def is_loopback(host: str) -> bool:
    """Whether a host is this machine by its name or address; other names are not resolved.

    The unspecified address connects to it, too (ip(7)).
    """
    try:
        found = ip_address(host.partition("%")[0])
    except ValueError:
        return host == "localhost"
    found = getattr(found, "ipv4_mapped", None) or found
    return found.is_loopback or found.is_unspecified


def leads_here(host: str) -> bool:
    """Whether any address of a host is this machine's: loopback's, its network's, or a bridge's.

    Whoever connects to an address of the own machine has the same one.  Nothing is sent.
    """
    with suppress(OSError, UnicodeError):
        for family, *_, address in socket.getaddrinfo(host, 9, type=socket.SOCK_DGRAM):
            with suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as probe:
                probe.connect(address)
                there = probe.getpeername()[0]
                if is_loopback(there) or there == probe.getsockname()[0]:
                    return True
    return False


# Requests and their responses.

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
class Response:
    """A response.  ``url`` is its address after redirects."""

    method: str
    url: str
    status: int
    reason: str
    headers: Mapping[str, str]
    """By name, whatever its case."""
    content: bytes = b""
    """Within its bounds; empty where it is still to be read."""
    _raw: requests.Response | None = None

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
        text = f"{text}: {why}" if why else text
        return WebError(
            f"{text}: {PROXY_LOGIN}" if self.status == 407 else text,
            status=self.status,
            retry_after=retry_after_seconds(self.headers.get("Retry-After", "")),
            temporary=_passes(self.status),
            url=self.url,
        )

    def require(self, *statuses: int) -> None:
        """Raise the ``WebError`` of its status unless it is one of these."""
        if self.status not in statuses:
            raise self.error()

    def blocks(self, *, unpacked: bool = False) -> Iterator[bytes]:
        """The content in blocks of at most ``BLOCK`` bytes, as they come.

        Without ``unpacked`` it is not decoded: no request asks for packed bytes.  Raises
        ``WebError``.
        """
        while self._raw is not None:
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
            _require_at_most(limit, len(content))
        if failed:
            return bytes(content) if plain else b""
        if content and not (plain or packed):
            why = f"its response has the content coding {self.coding[:SHOWN]}"
            raise WebError(f"{why}, which was not asked for", temporary=False)
        return bytes(content)


def _require_at_most(limit: int, size: int) -> None:
    if size > limit:
        raise WebError(f"its response is larger than {sizes.shown(limit)}", temporary=False)


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
            return replace(opened, content=opened.read(limit))

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
    ) -> Iterator[Response]:
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
                about = (raw.url, raw.status_code, raw.reason or "", raw.headers)
                opened = Response(method, *about, _raw=raw)
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


def redirect_url(response: Response, target: str, follow: Follow) -> str:
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


# One retry policy: for downloads, registries, Docker Hub and git.
#
# A failure that may be temporary is retried.  The server may set the wait (Retry-After); else it
# is 1, 2, 4, then 8 seconds.  Attempts and waiting time are bounded.

T = TypeVar("T")
ATTEMPTS = 7
GIVE_UP = 20.0  # seconds without a response, where the server does not ask for a longer wait
LONGEST_WAIT = 120.0  # seconds at once: Docker Hub's limits pass in minutes, or in hours
LONGEST_IN_ALL = 600.0  # seconds
GIVEN_UP: set[str] = set()
"""Servers that failed to the end.  They get one attempt each time, until one succeeds."""


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
        self.server_responded()
        attempt = 0
        while True:
            attempt += 1
            try:
                result = work()
            except Exception as error:
                failure = self._failure_of(error)
                if failure is None or not failure.temporary:
                    GIVEN_UP.discard(self._server)
                    raise
                asked, usual = failure.retry_after, min(2.0 ** (attempt - 1), 8.0)
                if self._is_over(failure, attempt, usual):
                    GIVEN_UP.update({self._server} - {""})
                    raise
            else:
                GIVEN_UP.discard(self._server)
                return result
            wait = usual if asked is None else asked
            if wait >= 1:
                name = f"{self._server}: " if self._server else ""
                asks = "trying again in" if asked is None else "it asks to wait"
                self._log(f"{name}{failure.why}; {asks} {time_span(wait)}")
            if asked is not None:
                self._waited += wait
                self._last_response = time.monotonic() + wait
            time.sleep(wait)

    def _is_over(self, failure: WebError, attempt: int, usual: float) -> bool:
        if attempt >= ATTEMPTS or self._server in GIVEN_UP or failure.unresolved:
            return True
        asked = failure.retry_after
        if asked is not None:
            return asked > LONGEST_WAIT or self._waited + asked > LONGEST_IN_ALL
        return time.monotonic() - self._last_response + usual > GIVE_UP


# Downloads: files streamed into a directory of their own and verified by their digest.

LARGEST = 16 << 30  # bytes of a file whose size nobody pinned
PATIENT: dict[str, Any] = {"read_timeout": 60.0, "least": 1 << 20, "follow": Follow.ANYWHERE}
"""How files are requested: from wherever they are, and a MiB has to come in ``TOTAL_TIMEOUT``."""


def stored(folder: Path) -> Path | None:
    """The complete file that ``store`` wrote into ``folder``; None where there is none."""
    found = sorted(folder.iterdir()) if folder.is_dir() else []
    return found[0] if found else None


def store(
    client: Client, url: str, name: str, pinned: str, folder: Path, *, outward: bool = False
) -> None:
    """Stream ``url`` into ``folder/name``; the folder appears when the file is complete.

    ``pinned`` (hex) is its sha256 or its sha512; ``outward`` as for ``Client.open``.  Failures are
    retried under one policy; a server that sends bytes responds.  Raises ``FetchError`` where the
    bytes do not have the digest or the name cannot be written, ``WebError`` where the server does
    not give them.
    """
    require_writable_names([name], url)
    policy, more = RetryPolicy(), {**PATIENT, "outward": outward}
    policy.call(lambda: _store(client.open("GET", url, **more), name, pinned, folder, policy))


def _store(
    request: AbstractContextManager[Response],
    name: str,
    pinned: str,
    folder: Path,
    policy: RetryPolicy,
) -> None:
    waiting = folder.parent / f".{uuid4().hex}"
    waiting.mkdir(parents=True)
    kind = "sha512" if len(pinned) == 128 else "sha256"
    digest, received = hashlib.new(kind), 0
    try:
        with request as opened, (waiting / name).open("wb") as sink:
            opened.require(200)
            for block in opened.blocks():
                require_wanted()
                received += len(block)
                _require_at_most(LARGEST, received)
                digest.update(block)
                sink.write(block)
        if digest.hexdigest() != pinned:
            raise FetchError(
                f"{name} does not have the pinned digest",
                f"expected {kind} {pinned}, got {digest.hexdigest()}",
                "the pin is wrong, or the server or something between altered the file",
            )
        try:
            waiting.rename(folder)
        except OSError:
            if stored(folder) is None:  # else another run was faster
                raise
    finally:
        if received:  # a server that sent some has responded, also where they stop
            policy.server_responded()
        shutil.rmtree(waiting, ignore_errors=True)
