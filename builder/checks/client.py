"""An HTTP client for servers of engines, with limits for time and size.

The server may be anything: it is asked at its own address alone, and no redirect is followed.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from builder.checks.answers import Answer
from builder.core import web
from builder.core.json_model import first_error
from builder.core.web import Opened
from builder.core.web_errors import REFUSED, WebError, cause

Model = TypeVar("Model", bound=BaseModel)
MOST = 16 << 20  # bytes of an answer
MOST_EVENTS = 100_000  # of a stream
SHOWN = 200  # characters of an answer in an error


class UnansweredError(Exception):
    """A server did not answer as expected; the text says how."""


@dataclass(frozen=True, slots=True)
class Event:
    """One piece of a stream, and when it came (seconds since the request)."""

    data: Answer
    at: float


@dataclass(frozen=True, slots=True)
class StreamedAnswer:
    """A streamed answer that was read to its end."""

    events: tuple[Event, ...]
    seconds: float
    finished: bool
    """Whether it ended with ``data: [DONE]``, as in OpenAI's API."""

    @property
    def text(self) -> str:
        """The generated text."""
        return "".join(event.data.text for event in self.events)


class ServerClient:
    """Sends requests to one server; ``key`` is an API key, which is never shown."""

    def __init__(self, url: str, key: str = "") -> None:
        self.url = url.rstrip("/")
        self._web = web.Client()
        self._headers = {"Connection": "close"}
        if key:
            self._headers["Authorization"] = f"Bearer {key}"

    def get(self, path: str, model: type[Model], seconds: float) -> Model:
        """The JSON of a page; raises ``UnansweredError``."""
        return _parsed(self._content("GET", path, None, seconds), model, path)

    def text(self, path: str, seconds: float) -> str:
        """The text of a page; raises ``UnansweredError``."""
        return self._content("GET", path, None, seconds).decode(errors="replace")

    def post(self, path: str, body: Mapping[str, Any], model: type[Model], seconds: float) -> Model:
        """The JSON of an answer; raises ``UnansweredError``."""
        return _parsed(self._content("POST", path, body, seconds), model, path)

    def stream(self, path: str, body: Mapping[str, Any], seconds: float) -> StreamedAnswer:
        """Server-sent events up to their end; raises ``UnansweredError``."""
        started = time.monotonic()
        events: list[Event] = []
        finished = False
        with self._opened("POST", path, body, seconds) as opened:
            if opened.coding not in {"", "identity"}:
                raise UnansweredError(
                    f"{path}: the stream has the coding {opened.coding[:SHOWN]!r}"
                )
            for line in _lines(opened.blocks(), path):
                name, _, data = line.partition(b":")
                if name != b"data":
                    continue
                if data.strip() == b"[DONE]":
                    finished = True
                    break
                if len(events) == MOST_EVENTS:
                    raise UnansweredError(
                        f"{path}: the stream has more than {MOST_EVENTS:,} events"
                    )
                at = time.monotonic() - started
                events.append(Event(_event(data, path), at))
        return StreamedAnswer(tuple(events), time.monotonic() - started, finished)

    def status(self, path: str, seconds: float) -> int:
        """The HTTP status of a page; raises ``UnansweredError`` if there is no response."""
        with self._opened("GET", path, None, seconds, whatever=True) as opened:
            return opened.status

    def _content(
        self, method: str, path: str, body: Mapping[str, Any] | None, seconds: float
    ) -> bytes:
        with self._opened(method, path, body, seconds) as opened:
            return opened.read(MOST)

    @contextmanager
    def _opened(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None,
        seconds: float,
        *,
        whatever: bool = False,
    ) -> Iterator[Opened]:
        """A response with the status 200, or with whatever status."""
        headers, data = self._headers, b""
        if body is not None:
            headers = headers | {"Content-Type": "application/json"}
            data = json.dumps(body).encode()
        try:
            with self._web.open(
                method,
                self.url + path,
                headers=headers,
                data=data or None,
                read_timeout=seconds,
                total_timeout=seconds,
            ) as opened:
                if opened.status != 200 and not whatever:
                    start = opened.read(MOST)[:SHOWN].decode(errors="replace")
                    raise UnansweredError(f"{method} {path}: status {opened.status}: {start!r}")
                yield opened
        except WebError as error:
            why = cause(error)
            if why == REFUSED:
                why = f"nothing listens at {self.url}: {why}"
            raise UnansweredError(f"{method} {path}: {why}") from error


def _lines(blocks: Iterator[bytes], path: str) -> Iterator[bytes]:
    size, waiting = 0, bytearray()
    for block in blocks:
        size += len(block)
        if size > MOST:
            raise UnansweredError(f"{path}: the answer is longer than {MOST >> 20} MiB")
        waiting += block
        if b"\n" in block:
            *complete, rest = bytes(waiting).split(b"\n")
            yield from complete
            waiting = bytearray(rest)
    if waiting:
        yield bytes(waiting)


def _parsed(text: bytes, model: type[Model], path: str) -> Model:
    try:
        return model.model_validate_json(text)
    except ValidationError as error:
        shown = text[:SHOWN].decode(errors="replace")
        why = f"has an unexpected format: {first_error(error)}"
        if error.errors(include_input=False)[0]["type"] == "json_invalid":
            why = "is not JSON"
        raise UnansweredError(f"{path}: the answer {why}: {shown!r}") from None


def _event(text: bytes, path: str) -> Answer:
    found = _parsed(text, Answer, path)
    if found.error is not None:
        shown = json.dumps(found.error)[:SHOWN]
        raise UnansweredError(f"{path}: the stream ended with an error: {shown}")
    return found
