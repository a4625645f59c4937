"""An HTTP client for servers of engines, with limits for time and size."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from builder.tools.web.errors import REFUSED, cause

if TYPE_CHECKING:
    from requests import Response

MOST = 16 << 20  # bytes of an answer
BLOCK = 1 << 16
LOOPBACK = ("127.0.0.1", "localhost", "::1")
SHOWN = 200  # characters of an answer in an error


class UnansweredError(Exception):
    """A server did not answer as expected; the text says how."""


@dataclass(frozen=True, slots=True)
class Event:
    """One piece of a stream, and when it came (seconds since the request)."""

    data: Mapping[str, Any]
    at: float


@dataclass(frozen=True, slots=True)
class Stream:
    """A streamed answer that was read to its end."""

    events: tuple[Event, ...]
    seconds: float
    finished: bool
    """Whether it ended with ``data: [DONE]``, as in OpenAI's API."""

    @property
    def text(self) -> str:
        """The generated text."""
        return "".join(piece_of(event.data) for event in self.events)


class Client:
    """Sends requests to one server; ``key`` is an API key, which is never shown."""

    def __init__(self, url: str, key: str = "") -> None:
        self.url = url.rstrip("/")
        host = urlsplit(url).hostname or ""
        # A proxy of the environment cannot reach this machine's own loopback.
        self._proxies = {"no_proxy": host} if host in LOOPBACK else None
        self._headers = {"Connection": "close"}
        if key:
            self._headers["Authorization"] = f"Bearer {key}"

    def get(self, path: str, seconds: float) -> Any:
        """The JSON of a page; raises ``UnansweredError``."""
        return self._json("GET", path, None, seconds)

    def text(self, path: str, seconds: float) -> str:
        """The text of a page; raises ``UnansweredError``."""
        with self._request("GET", path, None, seconds) as (response, deadline):
            return b"".join(_blocks(response, deadline, path)).decode(errors="replace")

    def post(self, path: str, body: Mapping[str, Any], seconds: float) -> Any:
        """The JSON of an answer; raises ``UnansweredError``."""
        return self._json("POST", path, body, seconds)

    def stream(self, path: str, body: Mapping[str, Any], seconds: float) -> Stream:
        """Server-sent events up to their end; raises ``UnansweredError``."""
        started = time.monotonic()
        events: list[Event] = []
        finished = False
        with self._request("POST", path, body, seconds) as (response, deadline):
            for line in _lines(_blocks(response, deadline, path)):
                name, _, data = line.partition(b":")
                if name != b"data":
                    continue
                if data.strip() == b"[DONE]":
                    finished = True
                    break
                at = time.monotonic() - started
                events.append(Event(_object(data, path), at))
        return Stream(tuple(events), time.monotonic() - started, finished)

    def status(self, path: str, seconds: float) -> int:
        """The HTTP status of a page; raises ``UnansweredError`` if there is no response."""
        import requests

        try:
            response = requests.get(
                self.url + path,
                headers=self._headers,
                timeout=seconds,
                stream=True,
                proxies=self._proxies,
            )
        except requests.RequestException as error:
            raise UnansweredError(f"GET {path}: {self._why(error)}") from error
        with response:
            return response.status_code

    def _json(self, method: str, path: str, body: Mapping[str, Any] | None, seconds: float) -> Any:
        with self._request(method, path, body, seconds) as (response, deadline):
            text = b"".join(_blocks(response, deadline, path))
        return _parsed(text, path)

    @contextmanager
    def _request(
        self, method: str, path: str, body: Mapping[str, Any] | None, seconds: float
    ) -> Iterator[tuple[Response, float]]:
        import requests
        import urllib3

        deadline = time.monotonic() + seconds
        try:
            with requests.request(
                method,
                self.url + path,
                json=body,
                headers=self._headers,
                timeout=seconds,
                stream=True,
                proxies=self._proxies,
            ) as response:
                if response.status_code != 200:
                    start = b"".join(_blocks(response, deadline, path))[:SHOWN]
                    shown = start.decode(errors="replace")
                    raise UnansweredError(
                        f"{method} {path}: status {response.status_code}: {shown}"
                    )
                yield response, deadline
        except (requests.RequestException, urllib3.exceptions.HTTPError) as error:
            raise UnansweredError(f"{method} {path}: {self._why(error)}") from error

    def _why(self, error: Exception) -> str:
        import requests

        # With ``stream=True`` this is raised until there is a response, and never after it.
        why = cause(error)
        if isinstance(error, requests.ConnectionError) and why == REFUSED:
            return f"nothing listens at {self.url}: {why}"
        return why


def _blocks(response: Response, deadline: float, path: str) -> Iterator[bytes]:
    """The blocks of a body; raises ``UnansweredError`` if it is too long or takes too long."""
    size = 0
    while block := response.raw.read1(BLOCK, decode_content=True):
        size += len(block)
        if size > MOST:
            raise UnansweredError(f"{path}: the answer is longer than {MOST >> 20} MiB")
        if time.monotonic() > deadline:
            raise UnansweredError(f"{path}: the answer did not end in time")
        yield block


def _lines(blocks: Iterator[bytes]) -> Iterator[bytes]:
    waiting = b""
    for block in blocks:
        *complete, waiting = (waiting + block).split(b"\n")
        yield from complete
    if waiting:
        yield waiting


def _parsed(text: bytes, path: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        shown = text[:SHOWN].decode(errors="replace")
        raise UnansweredError(f"{path}: the answer is not JSON: {shown!r}") from error


def _object(text: bytes, path: str) -> dict[str, Any]:
    found = _parsed(text, path)
    if not isinstance(found, dict):
        raise UnansweredError(f"{path}: an event of the stream is not an object: {found!r}")
    if "error" in found:
        raise UnansweredError(f"{path}: the stream ended with an error: {found['error']}")
    return found


def piece_of(data: Mapping[str, Any]) -> str:
    """The text of an answer or of one event of a stream, in any format that servers use."""
    choices = data.get("choices")
    if isinstance(choices, list):
        choice = choices[0] if choices and isinstance(choices[0], dict) else {}
        part = choice.get("delta") or choice.get("message") or choice
        reasoning = part.get("reasoning_content") or part.get("reasoning") or ""
        return str(reasoning) + str(part.get("content") or part.get("text") or "")
    return str(data.get("content") or "")
