"""The answers of engines' servers: OpenAI's API, with the additions of llama.cpp and others.

Fields that nobody reads are left out, and absent fields have no value.  An answer that does not fit
its model is refused; no error shows its content.
"""

from __future__ import annotations

import hashlib
import json
import math
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from builder.core import web
from builder.core.json_model import first_error
from builder.core.web import REFUSED, Opened, WebError, cause

Count = Annotated[int, Field(ge=0, lt=1 << 53)]
Speed = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class _Answer(BaseModel):
    model_config = ConfigDict(hide_input_in_errors=True, frozen=True)


class Listed(_Answer):
    """A model that is served."""

    id: str


class ModelList(_Answer):
    """The models that are served (OpenAI, "List models")."""

    data: list[Listed]


class Usage(_Answer):
    """Tokens, as OpenAI's API counts them."""

    completion_tokens: Count | None = None
    prompt_tokens: Count | None = None


class ServerTimings(_Answer):
    """Tokens and speeds of llama.cpp (tools/server/server-task.cpp, ``result_timings``)."""

    prompt_n: Count | None = None
    prompt_per_second: Speed | None = None
    predicted_n: Count | None = None
    predicted_per_second: Speed | None = None
    draft_n: Count | None = None
    draft_n_accepted: Count | None = None


class Message(_Answer):
    """A message, or a piece of one."""

    role: str | None = None
    content: str | None = None
    text: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None

    @property
    def shown(self) -> str:
        """Its text, after its reasoning."""
        reasoning = self.reasoning_content or self.reasoning or ""
        return reasoning + (self.content or self.text or "")


class AnswerChoice(Message):
    """One of the answers: of a chat, of a stream, or plain text."""

    delta: Message | None = None
    message: Message | None = None


class Answer(_Answer):
    """An answer, or one event of a stream, in any format that servers use."""

    choices: list[AnswerChoice] | None = None
    content: str | None = None
    usage: Usage | None = None
    timings: ServerTimings | None = None
    error: Any = None

    @property
    def text(self) -> str:
        """Its text; empty where it has none."""
        if self.choices is None:
            return self.content or ""
        for choice in self.choices[:1]:
            return (choice.delta or choice.message or choice).shown
        return ""


LOWEST = -3.4028234663852886e38  # std::numeric_limits<float>::lowest()
Logarithm = Annotated[float, Field(le=1e-3, allow_inf_nan=False)]
"""The logarithm of a probability; rounding may take it above 0."""


class TokenCandidate(_Answer):
    """A token that may follow."""

    id: Count
    logprob: Logarithm


class PredictedToken(TokenCandidate):
    """A generated token, with all candidates for its place."""

    top_logprobs: list[TokenCandidate] = []
    """Without any, ``logprob`` says nothing: llama.cpp has no probabilities of drafted tokens."""

    @model_validator(mode="before")
    @classmethod
    def _of_texts(cls, data: Any) -> Any:
        """ik_llama.cpp has texts and probabilities in place of ids and logarithms
        (examples/server/server-common.cpp, ``probs_vector_to_json``).  A number that is made of the
        text becomes the id, and of the place among tokens of the same text, the likeliest first."""
        try:
            found = _WordedToken.model_validate(data)
        except ValueError:
            return data  # its own fields are wrong, or it is of the usual format
        seen: Counter[str] = Counter()
        candidates = []
        for each in found.probs:
            # llama.cpp has the lowest number of a float where the probability is 0.
            logarithm = math.log(each.prob) if each.prob > 0 else LOWEST
            candidates.append(
                {"id": _number(each.tok_str, seen[each.tok_str]), "logprob": logarithm}
            )
            seen[each.tok_str] += 1
        return {"id": _number(found.content, 0), "logprob": 0.0, "top_logprobs": candidates}


class _WordedCandidate(_Answer):
    tok_str: str
    prob: Speed


class _WordedToken(_Answer):
    content: str
    probs: list[_WordedCandidate]


def _number(text: str, place: int) -> int:
    return int.from_bytes(hashlib.sha256(f"{place} {text}".encode()).digest()[:6])


class Prediction(_Answer):
    """A continued prompt in llama.cpp's own format, asked for with ``n_probs``."""

    content: str
    completion_probabilities: list[PredictedToken]
    timings: ServerTimings | None = None


class Tokens(_Answer):
    """A text as tokens."""

    tokens: list[int]


class Detokenized(_Answer):
    """Tokens as a text, which servers name differently."""

    text: str

    @model_validator(mode="before")
    @classmethod
    def _either_name(cls, data: Any) -> Any:
        named = isinstance(data, dict) and "content" in data and "text" not in data
        return {"text": data["content"]} if named else data


class DevicePage(_Answer):
    """Where a server computes."""

    backend: str | None = None


# An HTTP client for servers of engines, with limits for time and size.
#
# The server may be anything: it is asked at its own address alone, and no redirect is followed.

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
