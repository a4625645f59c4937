"""Check: the engine's server serves, on a tiny model, and stops when it is told to."""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from builder.errors import UntriedError
from builder.recipes.schema import Recipe, Serve
from builder.servers import test_model
from builder.servers.client import UnansweredError, piece_of
from builder.servers.server import NotServingError, Server, ServeSpec, launched
from builder.smoke.verdict import Check
from builder.tools.docker.containers import NotRunnableError

CONTEXT = 512  # tokens: what the tiny model was made for
TOKENS = 12
STOP = 10  # seconds between SIGTERM and SIGKILL
ANSWER = 60.0  # seconds for any one answer
LOOK = 20.0  # seconds for the image's own health check
PROMPT = "Hello"
SHOWN = 60  # characters of an answer in a table


def check(recipe: Recipe, reference: str, work: Path, driver_stub: Path | None) -> Iterator[Check]:
    """Start the image's server on a model made for it, talk to it, and stop it.

    Every step has its time limit, and the container is gone at the end, whatever it did.
    """
    if recipe.serve is None or recipe.image.port is None:
        return
    model = work / f"{test_model.NAME}.gguf"
    test_model.write(model)
    model.chmod(0o644)  # the image's own user reads it
    load = ServeSpec(model, CONTEXT, driver_stub=driver_stub)
    try:
        with launched(reference, recipe.serve, recipe.image.port, load) as server:
            yield from gpu_test(server, recipe.serve, recipe.image.health)
    except NotRunnableError as error:
        yield Check("serves", "starts", "its program runs", str(error), False)
    except UntriedError as error:
        yield Check("serves", "a server in a container", "is started", str(error), None)


def gpu_test(server: Server, serve: Serve, health: str | None) -> Iterator[Check]:
    """What a server must do from its start to its end."""
    expected = f"healthy within {serve.seconds} s"
    try:
        took = server.wait(serve.seconds)
    except NotServingError as error:
        yield Check("serves", "starts", expected, str(error), False)
        return
    yield Check("serves", "starts", expected, f"after {took:.1f} s", True)
    if health is not None:
        yield _own_health_check(server)
    for subject, wanted, ask in _questions(server):
        yield _asked(server, subject, wanted, ask)
    yield _stops(server)


Question = tuple[str, str, Callable[[], str]]


def _questions(server: Server) -> Sequence[Question]:
    """What is asked: its name, what is expected, and the question, which raises if it is not so."""
    questions: list[Question] = [
        ("lists its model", "one model", lambda: _models(server)),
        ("completes text", f"{TOKENS} tokens of text", lambda: _completes(server)),
        ("streams", "the same text in pieces, to the end", lambda: _streams(server)),
    ]
    if server.api_flavor.tokenizer is not None:
        expected = f"{PROMPT!r} becomes tokens and {PROMPT!r} again"
        questions.append(("tokenizes and back", expected, lambda: _tokenizes(server)))
    questions += [
        ("answers a chat", "text of the assistant", lambda: _chats(server)),
        ("answers two at once", "both in full", lambda: _two(server)),
    ]
    return questions


def _asked(server: Server, subject: str, expected: str, ask: Callable[[], str]) -> Check:
    try:
        return Check("serves", subject, expected, ask(), True)
    except (UnansweredError, KeyError, IndexError, TypeError, AttributeError) as error:
        said = str(error)
        if not isinstance(error, UnansweredError):
            said = f"the answer lacks what it should have: {type(error).__name__}: {error}"
        try:
            server.must_run()
        except NotServingError as ended:
            said = f"{said}; the server {ended}"
        return Check("serves", subject, expected, said, False)


def _completion(**more: Any) -> dict[str, Any]:
    """A request whose answer is the same every time, however often it was asked before."""
    fixed = {"prompt": PROMPT, "max_tokens": TOKENS, "temperature": 0, "seed": 1}
    return {**fixed, "cache_prompt": False, **more}


def _models(server: Server) -> str:
    found = server.client.get(server.api_flavor.models, ANSWER)["data"]
    names = [posixpath.basename(str(model["id"])) for model in found]
    if len(names) != 1:
        raise UnansweredError(f"it lists {len(names)} models: {', '.join(names)}")
    return names[0]


def _completes(server: Server) -> str:
    answer = server.client.post(server.api_flavor.completions, _completion(), ANSWER)
    text = piece_of(answer)
    tokens = answer["usage"]["completion_tokens"]
    if not text or tokens != TOKENS:
        raise UnansweredError(f"{tokens} tokens: {text[:SHOWN]!r}")
    return repr(text[:SHOWN])


def _streams(server: Server) -> str:
    whole = piece_of(server.client.post(server.api_flavor.completions, _completion(), ANSWER))
    body = _completion(stream=True)
    stream = server.client.stream(server.api_flavor.completions, body, ANSWER)
    pieces = len(stream.events)
    if not stream.finished:
        raise UnansweredError(f"the stream broke off after {pieces} pieces")
    if stream.text != whole:
        raise UnansweredError(f"{stream.text[:SHOWN]!r} in pieces, {whole[:SHOWN]!r} at once")
    if pieces < 2:
        raise UnansweredError("all of it came in one piece")
    return f"{pieces} pieces"


def _tokenizes(server: Server) -> str:
    way = server.api_flavor.tokenizer
    assert way is not None
    tokens = server.client.post(way.tokenize, {way.text: PROMPT}, ANSWER)["tokens"]
    text = server.client.post(way.detokenize, {"tokens": tokens}, ANSWER)[way.answer]
    # SentencePiece begins a text with a space.
    if not tokens or str(text).strip() != PROMPT:
        raise UnansweredError(f"{len(tokens)} tokens, which become {str(text)[:SHOWN]!r}")
    return f"{len(tokens)} tokens and back"


def _chats(server: Server) -> str:
    messages = [{"role": "user", "content": PROMPT}]
    body = {"messages": messages, "max_tokens": TOKENS, "temperature": 0, "seed": 1}
    answer = server.client.post(server.api_flavor.chat, body, ANSWER)
    role = answer["choices"][0]["message"]["role"]
    text = piece_of(answer)
    if role != "assistant" or not text:
        raise UnansweredError(f"{role} says {text[:SHOWN]!r}")
    return repr(text[:SHOWN])


def _two(server: Server) -> str:
    with ThreadPoolExecutor(2) as pool:
        asked = [pool.submit(_completes, server) for _ in range(2)]
        return " and ".join(each.result() for each in asked)


def _own_health_check(server: Server) -> Check:
    """The image's HEALTHCHECK, run as the engine runs it."""
    subject, expected = "its own health check", "exit status 0"
    test = server.container.health_test()
    if not test:
        return Check("serves", subject, expected, "the image has none", False)
    try:
        done = server.container.execute(test, LOOK)
    except UntriedError as error:
        return Check("serves", subject, expected, str(error), False)
    said = f"{done.status}" + (f": {done.output[:SHOWN]}" if done.status else "")
    return Check("serves", subject, expected, said, done.status == 0)


def _stops(server: Server) -> Check:
    state, took = server.container.stop(STOP)
    expected = f"SIGTERM ends it with exit status 0 within {STOP} s"
    found = f"exit status {state.status} after {took:.1f} s"
    if state.status == 137:
        found = f"it went on, and was killed after {took:.1f} s"
    return Check("serves", "stops", expected, found, state.status == 0)
