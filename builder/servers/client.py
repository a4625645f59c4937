"""Asks a server, and waits no longer and reads no more than it was told to."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from requests import Response

MOST = 16 << 20  # bytes of an answer
BLOCK = 1 << 16
SHOWN = 200  # characters of an answer in an error


class UnansweredError(Exception):
    """A server did not answer, or not with what was asked for; the text says what it did."""


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
    """Whether it said that it was done, as OpenAI's API does: ``data: [DONE]``."""

    @property
    def text(self) -> str:
        """What was generated, whatever the form of the pieces."""
        return "".join(piece_of(event.data) for event in self.events)


class Client:
    """Speaks HTTP to one server; ``key`` is an API key, never shown."""

    def __init__(self, url: str, key: str = "") -> None:
        self.url = url.rstrip("/")
        self._headers = {"Connection": "close"}
        if key:
            self._headers["Authorization"] = f"Bearer {key}"

    def get(self, path: str, seconds: float) -> Any:
        """The JSON of a page; raises ``UnansweredError``."""
        return self._json("GET", path, None, seconds)

    def text(self, path: str, seconds: float) -> str:
        """The text of a page; raises ``UnansweredError``."""
        with self._asked("GET", path, None, seconds) as (reply, deadline):
            return b"".join(_blocks(reply, deadline, path)).decode(errors="replace")

    def post(self, path: str, body: Mapping[str, Any], seconds: float) -> Any:
        """The JSON of an answer; raises ``UnansweredError``."""
        return self._json("POST", path, body, seconds)

    def stream(self, path: str, body: Mapping[str, Any], seconds: float) -> Stream:
        """Server-sent events up to their end; raises ``UnansweredError``."""
        started = time.monotonic()
        events: list[Event] = []
        finished = False
        with self._asked("POST", path, body, seconds) as (reply, deadline):
            for line in _lines(_blocks(reply, deadline, path)):
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
        """The status of a page; raises ``UnansweredError`` where there is none."""
        import requests

        try:
            reply = requests.get(
                self.url + path, headers=self._headers, timeout=seconds, stream=True
            )
        except requests.RequestException as error:
            raise UnansweredError(f"GET {path}: {_short(error)}") from error
        with reply:
            return reply.status_code

    def _json(self, method: str, path: str, body: Mapping[str, Any] | None, seconds: float) -> Any:
        with self._asked(method, path, body, seconds) as (reply, deadline):
            text = b"".join(_blocks(reply, deadline, path))
        return _parsed(text, path)

    @contextmanager
    def _asked(
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
            ) as reply:
                if reply.status_code != 200:
                    said = b"".join(_blocks(reply, deadline, path))[:SHOWN]
                    shown = said.decode(errors="replace")
                    raise UnansweredError(f"{method} {path}: status {reply.status_code}: {shown}")
                yield reply, deadline
        except (requests.RequestException, urllib3.exceptions.HTTPError) as error:
            raise UnansweredError(f"{method} {path}: {_short(error)}") from error


def _short(error: Exception) -> str:
    import requests
    import urllib3

    if isinstance(error, requests.Timeout | urllib3.exceptions.TimeoutError):
        return "no answer in time"
    return f"the connection broke before the end of the answer ({type(error).__name__})"


def _blocks(reply: Response, deadline: float, path: str) -> Iterator[bytes]:
    """An answer as it comes; raises ``UnansweredError`` where it is too long, or takes too long."""
    size = 0
    while block := reply.raw.read1(BLOCK, decode_content=True):
        size += len(block)
        if size > MOST:
            raise UnansweredError(f"{path}: the answer is longer than {MOST >> 20} MiB")
        if time.monotonic() > deadline:
            raise UnansweredError(f"{path}: the answer did not end in time")
        yield block


def _lines(blocks: Iterator[bytes]) -> Iterator[bytes]:
    waiting = b""
    for block in blocks:
        *whole, waiting = (waiting + block).split(b"\n")
        yield from whole
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
        raise UnansweredError(f"{path}: a piece of the stream is no object: {found!r}")
    if "error" in found:
        raise UnansweredError(f"{path}: the stream ended with an error: {found['error']}")
    return found


def piece_of(data: Mapping[str, Any]) -> str:
    """The text in one answer or one piece of a stream, in any of the forms that servers use."""
    choices = data.get("choices")
    if isinstance(choices, list):
        choice = choices[0] if choices and isinstance(choices[0], dict) else {}
        part = choice.get("delta") or choice.get("message") or choice
        thought = part.get("reasoning_content") or part.get("reasoning") or ""
        return str(thought) + str(part.get("content") or part.get("text") or "")
    return str(data.get("content") or "")
