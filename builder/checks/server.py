"""A server of an image: started without network, and asked over the container's loopback."""

from __future__ import annotations

import hashlib
import io
import json
import math
import re
import struct
import time
import wave
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import takewhile
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from builder.core import web
from builder.core.errors import UntriedError
from builder.core.json_model import first_error
from builder.core.names import parts_of
from builder.core.web import REFUSED, Response, WebError, cause
from builder.docker.containers import Container, proxy, started
from builder.engines import layout
from builder.engines.servers import API_FLAVORS, ApiFlavor, filled, flavor_of
from builder.recipes.probes import TONE, Request, Serve

# The answers of engines' servers: OpenAI's API, with the additions of llama.cpp and others.
#
# Absent fields have no value.  An answer that does not fit its model is refused; no error shows its
# content.

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
    logprob: Logarithm | None
    """None: no number, which JSON has as null."""


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
            number = _number(each.tok_str, seen[each.tok_str])
            candidates.append({"id": number, "logprob": logarithm})
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


TokenName = Annotated[int, BeforeValidator(lambda text: str(text).removeprefix("token_id:"))]


class _Logarithms(_Answer):
    tokens: list[TokenName]
    top_logprobs: list[dict[TokenName, Logarithm]]


class _Completed(_Answer):
    text: str
    logprobs: _Logarithms


class Completion(_Answer):
    """A continued prompt of OpenAI's API, where vLLM was asked to name tokens ``token_id:7``."""

    choices: Annotated[list[_Completed], Field(min_length=1)]

    @property
    def continued(self) -> Continued:
        """The first text."""
        found = self.choices[0]
        return Continued(
            found.text, tuple(found.logprobs.tokens), tuple(found.logprobs.top_logprobs)
        )


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
MOST_BYTES = 16 << 20  # bytes of an answer
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

    def page(self, path: str, seconds: float) -> tuple[str, bytes]:
        """The type and the content of a page as a browser gets it, which takes packed ones: some
        servers have no other.  Raises ``UnansweredError``."""
        packed = {"Accept-Encoding": "gzip"}
        with self._opened("GET", path, None, seconds, more=packed) as opened:
            return opened.headers.get("Content-Type", ""), opened.read(MOST_BYTES)

    def post(self, path: str, body: Mapping[str, Any], model: type[Model], seconds: float) -> Model:
        """The JSON of an answer; raises ``UnansweredError``."""
        return _parsed(self._content("POST", path, body, seconds), model, path)

    def ask(self, request: Request) -> str:
        """The text of the right answer to a recipe's request; raises ``UnansweredError``."""
        path, data, kind = f"/{request.path}", (request.body or "").encode(), "application/json"
        if request.form:
            data, kind = _form(request.form), f"multipart/form-data; boundary={BOUNDARY}"
        method, headers = "POST" if data else "GET", {"Content-Type": kind} if data else {}
        with self._sent(method, path, data, headers, request.seconds) as opened:
            text = opened.read(MOST_BYTES).decode(errors="replace")
        if lacking := [each for each in request.contains if each not in text]:
            raise UnansweredError(f"{path}: no {lacking[0]!r} in the answer {text[:SHOWN]!r}")
        return text

    def stream(self, path: str, body: Mapping[str, Any], seconds: float) -> StreamedAnswer:
        """Server-sent events up to their end; raises ``UnansweredError``."""
        started = time.monotonic()
        events: list[Event] = []
        finished = False
        with self._opened("POST", path, body, seconds) as opened:
            if opened.coding not in {"", "identity"}:
                coding = opened.coding[:SHOWN]
                raise UnansweredError(f"{path}: the stream has the coding {coding!r}")
            for line in _lines(opened.blocks(), path):
                name, _, data = line.partition(b":")
                if name != b"data":
                    continue
                if data.strip() == b"[DONE]":
                    finished = True
                    break
                if len(events) == MOST_EVENTS:
                    why = f"the stream has more than {MOST_EVENTS:,} events"
                    raise UnansweredError(f"{path}: {why}")
                events.append(Event(_event(data, path), time.monotonic() - started))
        return StreamedAnswer(tuple(events), time.monotonic() - started, finished)

    def status(self, path: str, seconds: float) -> int:
        """The HTTP status of a page; raises ``UnansweredError`` if there is no response."""
        with self._opened("GET", path, None, seconds, whatever=True) as opened:
            return opened.status

    def _content(
        self, method: str, path: str, body: Mapping[str, Any] | None, seconds: float
    ) -> bytes:
        with self._opened(method, path, body, seconds) as opened:
            return opened.read(MOST_BYTES)

    @contextmanager
    def _opened(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None,
        seconds: float,
        *,
        whatever: bool = False,
        more: Mapping[str, str] = {},
    ) -> Iterator[Response]:
        """A response with the status 200, or with whatever status; ``more`` are headers."""
        data = b"" if body is None else json.dumps(body).encode()
        headers = {**more, **({"Content-Type": "application/json"} if data else {})}
        with self._sent(method, path, data, headers, seconds, whatever=whatever) as opened:
            yield opened

    @contextmanager
    def _sent(
        self,
        method: str,
        path: str,
        data: bytes,
        headers: Mapping[str, str],
        seconds: float,
        *,
        whatever: bool = False,
    ) -> Iterator[Response]:
        try:
            with self._web.open(
                method,
                self.url + path,
                headers={**self._headers, **headers},
                data=data or None,
                read_timeout=seconds,
                total_timeout=seconds,
            ) as opened:
                if opened.status != 200 and not whatever:
                    start = opened.read(MOST_BYTES)[:SHOWN].decode(errors="replace")
                    raise UnansweredError(f"{method} {path}: status {opened.status}: {start!r}")
                yield opened
        except WebError as error:
            why = cause(error)
            if why == REFUSED:
                why = f"nothing listens at {self.url}: {why}"
            raise UnansweredError(f"{method} {path}: {why}") from error


BOUNDARY = "bd0c9f2e64a74b6e"


def _form(fields: Mapping[str, str]) -> bytes:
    """A form as RFC 7578 has it: texts, and files that are made."""
    made = bytearray()
    for name, value in fields.items():
        file, content = (f'; filename="{TONE[1:]}"', tone()) if value == TONE else ("", b"")
        head = f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="{name}"{file}\r\n\r\n'
        made += head.encode() + (content or value.encode()) + b"\r\n"
    return bytes(made) + f"--{BOUNDARY}--\r\n".encode()


def tone() -> bytes:
    """A second of a tone of 440 Hz as a WAV file: 16 kHz, mono, 16 bits."""
    rate, file = 16_000, io.BytesIO()
    samples = (round(8000 * math.sin(2 * math.pi * 440 * at / rate)) for at in range(rate))
    with wave.open(file, "wb") as stream:
        stream.setnchannels(1)
        stream.setsampwidth(2)
        stream.setframerate(rate)
        stream.writeframes(struct.pack(f"<{rate}h", *samples))
    return file.getvalue()


def _lines(blocks: Iterator[bytes], path: str) -> Iterator[bytes]:
    size, waiting = 0, bytearray()
    for block in blocks:
        size += len(block)
        if size > MOST_BYTES:
            raise UnansweredError(f"{path}: the answer is longer than {MOST_BYTES >> 20} MiB")
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


PAUSE = 0.25  # seconds between two health checks
HEALTH_TIMEOUT = 10.0  # seconds for one health check
LOG_LINES = 15
ENDING = 1.0  # seconds from the end of a server's connections to the end of its container
LOCK = "--mlock"  # llama.cpp: keeps the model in memory
DRAFT = "{draft}"  # the file of the drafter
# llama.cpp's log: src/llama-model-loader.cpp names the file, src/llama-model.cpp counts its layers.
LOADED = re.compile(
    r"loaded meta data with \d{1,9} key-value pairs and \d{1,9} tensors "
    r"from (?P<file>[^\n(]{1,300}) \(version"
    r"|offloaded (?P<layers>\d{1,9})/(?P<of>\d{1,9}) layers to GPU"
)


class NotServingError(Exception):
    """A server ended, or was not healthy in time; the text has the end of its log."""


class NotReadyError(NotServingError):
    """A server still runs, and was not healthy in time."""


@dataclass(frozen=True, slots=True)
class Mounts:
    """The mounted paths of the host, by path in the container, and variables that name them."""

    volumes: Mapping[str, Path] = field(default_factory=dict)
    """Read-only; a socket can be written to all the same."""
    env: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Offloaded:
    """How many layers of a model are on the card."""

    model: str
    """The name of its file; empty where the log names none."""
    layers: int
    of: int

    def __str__(self) -> str:
        """As llama.cpp logs it, after the model."""
        name = f"{self.model}: " if self.model else ""
        return f"{name}offloaded {self.layers}/{self.of} layers to GPU"


def offloaded(log: str) -> list[Offloaded]:
    """The models in a log of llama.cpp's, a target before its drafter or behind it.

    A file that is loaded again counts as it was loaded last.
    """
    found: dict[str, Offloaded] = {}
    model = ""
    for match in LOADED.finditer(log):
        if match["file"]:
            model = match["file"].rpartition("/")[2]
        else:
            key = model or str(len(found))
            found[key] = Offloaded(model, int(match["layers"]), int(match["of"]))
    return [*found.values()]


@dataclass(frozen=True, slots=True)
class ServeSpec:
    """The model that a server serves, and how it is started.

    ``model``, ``draft`` and ``projector`` are files of the host, mounted read-only; a ``model`` may
    be a folder, or None for a server that is started without one.
    """

    model: Path | None
    context: int
    draft: Path | None = None
    extra: Sequence[str] = ()
    """More arguments, after the recipe's; with ``{draft}`` they replace the recipe's own for it."""
    gpus: str | None = None
    driver_stub: Path | None = None
    simulator: Mounts | None = None
    """Simulated cards in the place of GPUs; the recipe's arguments for a GPU are added."""
    verbose: bool = False
    """Add the recipe's arguments for a verbose log."""
    limited: bool = True
    """Apply the recipe's memory limit, which is meant for the test model."""
    projector: Path | None = None
    """The multimodal projector; the API flavor names its option."""
    compiles: bool = False
    """It compiles libraries in /tmp, and loads them."""


@dataclass(frozen=True, slots=True)
class Server:
    """A started server."""

    container: Container
    client: ServerClient
    api_flavor: ApiFlavor

    def wait(self, seconds: float) -> float:
        """Wait until its health page returns 200; the seconds that it took.

        Raises like ``require_running``, and ``NotReadyError`` after ``seconds``.
        """
        last = "it does not listen"
        start = time.monotonic()
        while time.monotonic() - start < seconds:
            self.require_running()
            try:
                status = self.client.status(self.api_flavor.health, HEALTH_TIMEOUT)
                if status == 200:
                    return time.monotonic() - start
                last = f"{self.api_flavor.health} answers {status}"
            except UnansweredError as error:
                last = str(error)
            time.sleep(PAUSE)
        raise NotReadyError(f"not healthy after {seconds:.0f} s ({last}); {self._log()}")

    def models(self, seconds: float) -> list[str]:
        """The names of the models that it lists; raises ``UnansweredError``."""
        listed = self.client.get(self.api_flavor.models, ModelList, seconds)
        return [each.id for each in listed.data]

    def complete(self, body: Mapping[str, Any], seconds: float) -> Answer:
        """The answer to a completion; raises ``UnansweredError``."""
        whole = self.request(body, seconds)
        return self.client.post(self.api_flavor.completions, whole, Answer, seconds)

    def request(self, body: Mapping[str, Any], seconds: float) -> Mapping[str, Any]:
        """A request for text with all that the API flavor wants, such as its first model's name.

        Raises ``UnansweredError``.
        """
        more = self.api_flavor.asks
        if not self.api_flavor.names_model:
            return {**body, **more}
        return {**body, **more, "model": next(iter(self.models(seconds)), "")}

    def require_running(self, within: float = 0.0) -> None:
        """Raise ``NotServingError`` if it ends within so many seconds; ``UntriedError`` on another
        platform."""
        until = time.monotonic() + within
        while (state := self.container.state()).running and time.monotonic() < until:
            time.sleep(PAUSE)
        if not state.running and "exec format error" in self.container.end_of_log():
            raise UntriedError("Docker cannot run programs of the image's platform")
        if state.out_of_memory:
            raise NotServingError(f"killed: it used more memory than its limit; {self._log()}")
        if not state.running:
            raise NotServingError(f"ended with exit status {state.status}; {self._log()}")

    def explained(self, error: Exception) -> str:
        """An error, and how the server ended, where it did and the error does not say it."""
        if isinstance(error, NotServingError):
            return str(error)
        try:
            self.require_running(ENDING)
        except NotServingError as ended:
            return f"{error}; the server {ended}"
        return str(error)

    def _log(self) -> str:
        lines = [line for line in self.container.end_of_log().splitlines() if line.strip()]
        shown = "\n".join(line[:300] for line in lines[-LOG_LINES:])
        return f"its log ends:\n{shown}" if shown else "its log is empty"


@contextmanager
def launched(reference: str, serve: Serve, port: int, spec: ServeSpec) -> Iterator[Server]:
    """Start the image's server in a container without network; it is removed at the end.

    Raises ``UntriedError`` if no container can be started or reached.
    """
    command = arguments(serve, spec)
    mounts = spec.simulator or Mounts()
    volumes: dict[str, Path] = {}
    for folder, file in (
        ("/model", spec.model),
        ("/draft", spec.draft),
        ("/projector", spec.projector),
    ):
        volumes |= mounts_of(folder, file) if file else {}
    on_cpu = spec.gpus is None and spec.simulator is None
    running = started(
        reference,
        command,
        env={**(layout.CPU if on_cpu else {}), **serve.env, **mounts.env},
        volumes={**volumes, **mounts.volumes},
        memory=serve.memory if spec.limited else None,
        # The simulator's libraries make mlock do nothing.
        locks_memory=LOCK in command and spec.simulator is None,
        compiles=spec.compiles,
        driver_stub=spec.driver_stub,
        gpus=spec.gpus,
    )
    with running as container, proxy(container, port) as url:
        yield Server(container, ServerClient(url), flavor_of(serve))


def arguments(serve: Serve, spec: ServeSpec) -> list[str]:
    """The arguments after the entrypoint."""
    own = {"draft": f"/draft/{spec.draft.name}"} if spec.draft is not None else {}
    model = {"model": f"/model/{spec.model.name}"} if spec.model is not None else {}
    values = {**model, "context": str(spec.context), **own}
    words = filled(arguments_of(serve, spec), values)
    option = API_FLAVORS[serve.api_flavor].projector
    if spec.projector is not None and option is not None:
        words += [option, f"/projector/{spec.projector.name}"]
    return words + filled(spec.extra, own)


def arguments_of(serve: Serve, spec: ServeSpec) -> list[str]:
    """The recipe's arguments, with their placeholders."""
    words = [*serve.arguments]
    words += serve.gpu if spec.gpus is not None or spec.simulator is not None else []
    words += serve.verbose if spec.verbose else []
    named = any(DRAFT in word for word in spec.extra)
    return words + (serve.draft if spec.draft is not None and not named else [])


def shared_folder(folder: Path) -> Path:
    """Make a directory that the image's own user may enter."""
    folder.mkdir()
    folder.chmod(0o755)
    return folder


def mounts_of(folder: str, file: Path) -> dict[str, Path]:
    """The mounts of a model; of a split model, all its parts.

    Links are followed: model caches link to files elsewhere.
    """
    parts = parts_of(file.name, (each.name for each in file.parent.iterdir()))
    return {f"{folder}/{part}": (file.parent / part).resolve() for part in parts}


# Long requests that fill a server's context: some engines allocate more while they compute.

ANSWER = 900.0  # seconds for a long request
SHORT = 60.0  # seconds for any other
TOKENS = 4  # of the answer
FILLED = 0.8  # of a context, at least; the prompts leave the last tokens free
RESERVE = 64  # tokens of the context that the prompt leaves free
SMALLER = 0.5  # of the prompt, where the server refuses its length: it may divide the context
LEAST = 64  # tokens of a prompt that is tried
MOST = 64  # requests at once
LINE = "Line {number:06}: nothing in it matters for the task.\n"
SAMPLE = 20  # lines by which the tokens of a line are counted: all have as many characters
CHARACTERS = 4  # of a token of English, where a server does not count them
TOO_LONG = re.compile(r"exceed|too (?:long|large)|context (?:length|size|window)", re.I)


def fill(server: Server, context: int) -> int:
    """Send prompts that fill the context; the tokens of all of them.

    One prompt fills it up to its last tokens.  Where the server refuses its length, because it
    divides the context among requests, as many shorter ones as fill it are sent at once.  Raises
    ``UnansweredError``.
    """
    characters = _characters_of_a_token(server)
    wanted = max(context - RESERVE, LEAST)
    while True:
        text = filler(int(wanted * characters))
        body = {"prompt": text, "max_tokens": TOKENS, "temperature": 0, "cache_prompt": False}
        try:
            tokens = _tokens(server, body, wanted)
            break
        except UnansweredError as error:
            refused = TOO_LONG.search(str(error)) is not None
            if not refused or wanted * SMALLER < LEAST:
                raise
            wanted = int(wanted * SMALLER)
    requests = requests_of(context, tokens)
    if requests == 1:
        return tokens
    with ThreadPoolExecutor(requests) as pool:
        return sum(pool.map(lambda _: _tokens(server, body, wanted), range(requests)))


def requests_of(context: int, tokens: int) -> int:
    """How many prompts of so many tokens fill a context."""
    return min(max(context // max(tokens, 1), 1), MOST)


def filler(characters: int) -> str:
    """A text of so many characters, without long repetitions."""
    lines = characters // len(LINE.format(number=0)) + 1
    return "".join(LINE.format(number=number) for number in range(lines))[:characters]


def _tokens(server: Server, body: Mapping[str, Any], wanted: int) -> int:
    answer = server.complete(body, ANSWER)
    counted = answer.usage.prompt_tokens if answer.usage else None
    return wanted if counted is None else counted


def _characters_of_a_token(server: Server) -> float:
    tokenizer = server.api_flavor.tokenizer
    if tokenizer is None:
        return CHARACTERS
    sample = filler(SAMPLE * len(LINE.format(number=0)))
    body = {tokenizer.text: sample}
    try:
        count = len(server.client.post(tokenizer.tokenize, body, Tokens, SHORT).tokens)
    except UnansweredError:
        return CHARACTERS
    return len(sample) / max(count, 1)


# Continued prompts with the probabilities of their tokens, and how far two of them differ.

SECONDS = 300.0
"""For one answer: kernels are interpreted."""
FOLDER_TOKENS = 512
"""The vocabulary of the test folder: the probabilities of all are asked for."""
MANY = 1 << 12
"""More tokens than the vocabulary of a tiny model has: the probabilities of all are asked for."""


@dataclass(frozen=True, slots=True)
class Continued:
    """A continued prompt."""

    text: str
    tokens: tuple[int, ...]
    logarithms: tuple[Mapping[int, float], ...]
    """The natural logarithm of the probability of each token that could have been generated, by its
    id; a mapping for each generated token, empty where the server has none (a drafted token)."""
    read: int | None = None
    """Tokens of the prompt that were computed, and not taken from a cache."""
    drafted: int | None = None
    accepted: int | None = None


def continued(
    server: Server, prompt: str, tokens: int, *, cached: bool = False, seconds: float = SECONDS
) -> Continued:
    """Continue a prompt with the likeliest tokens, within ``seconds``.  Raises ``UnansweredError``.

    ``cached``: the server may use its cache of an earlier prompt.
    """
    page = server.api_flavor.predictions
    if page is None:
        raise UnansweredError("its API has no probabilities")
    body = {"prompt": prompt, "n_predict": tokens, "temperature": 0, "seed": 1}
    body |= {"n_probs": MANY, "cache_prompt": cached}
    found = server.client.post(page, body, Prediction, seconds)
    generated = found.completion_probabilities
    if len(generated) != tokens:
        raise UnansweredError(f"{len(generated)} tokens of {tokens}: {found.content!r}")
    timings = found.timings or ServerTimings()
    return Continued(
        found.content,
        tuple(each.id for each in generated),
        tuple(
            {
                token.id: math.nan if token.logprob is None else token.logprob
                for token in each.top_logprobs
            }
            for each in generated
        ),
        timings.prompt_n,
        timings.draft_n,
        timings.draft_n_accepted,
    )


def continued_folder(server: Server, prompt: str, tokens: int, seconds: float) -> Continued:
    """As ``continued``, by OpenAI's API.  Raises ``UnansweredError``."""
    body = {"prompt": prompt, "max_tokens": tokens, "temperature": 0, "logprobs": FOLDER_TOKENS}
    body |= {"return_tokens_as_token_ids": True, "ignore_eos": True}
    whole = server.request(body, seconds)
    found = server.client.post(server.api_flavor.completions, whole, Completion, seconds).continued
    if len(found.tokens) != tokens:
        raise UnansweredError(f"{len(found.tokens)} tokens of {tokens}: {found.text!r}")
    return found


@dataclass(frozen=True, slots=True)
class Difference:
    """How far a continued prompt is from another one.

    Behind the first token that differs the two continue different texts, so that nothing more is
    compared.
    """

    equal: int
    """Generated tokens that are equal, from the first on."""
    distances: Mapping[int, float]
    """The greatest difference of two logarithms of a probability by position, from 0; a position
    without probabilities is absent."""
    margin: float = 0.0
    """By how much the expected text preferred its token where the other text has another one; 0: no
    token differs; infinite: the preference is not known."""

    @property
    def greatest(self) -> float:
        """The greatest of ``distances``; 0 where no position has probabilities."""
        return max(self.distances.values(), default=0.0)

    def first_beyond(self, limit: float) -> int | None:
        """The first position that differs by more than ``limit``."""
        beyond = (at for at, distance in self.distances.items() if distance > limit)
        return min(beyond, default=None)

    def within(self, limit: float) -> bool:
        """Whether no logarithm differs by more than ``limit``, and two such errors can turn the
        preference for the first token that differs."""
        return self.greatest <= limit and self.margin <= 2 * limit


def difference(expected: Continued, found: Continued) -> Difference:
    """Compare two continuations of one prompt by the same number of tokens."""
    pairs = list(zip(expected.tokens, found.tokens, strict=True))
    equal = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
    distances = {}
    both = zip(expected.logarithms[: equal + 1], found.logarithms, strict=False)
    for position, (one, other) in enumerate(both):
        if one and other:
            # A token that one of the two does not have at all is infinitely far, as is no number.
            found_far = (
                abs(one.get(token, math.inf) - other.get(token, math.inf))
                for token in one.keys() | other.keys()
            )
            distances[position] = max(math.inf if math.isnan(far) else far for far in found_far)
    return Difference(equal, distances, _margin(expected, found, equal))


def described(found: Difference, tokens: int, limit: float) -> str:
    """How far two texts of so many tokens differ, in one line."""
    text = f"{found.equal} of {tokens} tokens are equal"
    if found.margin:
        text += f", the next one by a margin of {found.margin:.2g}"
    if not found.distances:
        return f"{text}; no probabilities to compare"
    greatest = max(found.distances, key=lambda at: found.distances[at])
    text += f"; at most {found.greatest:.2g} apart, at token {greatest + 1}"
    first = found.first_beyond(limit)
    return text if first is None else f"{text}; first beyond the limit at token {first + 1}"


def _margin(expected: Continued, found: Continued, equal: int) -> float:
    if equal == len(expected.tokens):
        return 0.0
    logarithms = expected.logarithms[equal]
    wanted, other = logarithms.get(expected.tokens[equal]), logarithms.get(found.tokens[equal])
    return math.inf if wanted is None or other is None else wanted - other
