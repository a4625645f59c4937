"""Check: the image's server serves the test model, and stops on SIGTERM."""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

from builder.checks import test_model
from builder.checks.answers import Answer, Detokenized, Tokens, UnansweredError
from builder.checks.server import NotServingError, Server, ServeSpec, launched
from builder.checks.subject import Context
from builder.checks.verdict import Check
from builder.core.errors import UntriedError
from builder.docker.containers import NotRunnableError
from builder.engines.servers import TokenizerPages
from builder.recipes.probes import Serve

CONTEXT = 512  # tokens: the test model's own size
TOKENS = 12
STOP = 10  # seconds between SIGTERM and SIGKILL
ANSWER = 60.0  # seconds for any one answer
HEALTH_TIMEOUT = 20.0  # seconds for the image's own health check
PROMPT = "Hello"
SHOWN = 60  # characters of an answer in a table
NAMED = 4  # models that an error names
Request = tuple[str, str, Callable[[], str]]
"""A request: subject, expectation, and a function that returns the finding, and raises
``UnansweredError`` if it is wrong."""


def check(context: Context) -> Iterator[Check]:
    """Start the image's server with the test model, send requests, and stop it.

    Every step has a time limit, and the container is always removed.
    """
    serve, image = context.recipe.serve, context.recipe.image
    if serve is None or image.port is None:
        return
    model = context.work / f"{test_model.NAME}.gguf"
    test_model.write(model)
    try:
        spec = ServeSpec(model, CONTEXT, driver_stub=context.stub)
        with launched(context.subject.reference, serve, image.port, spec) as server:
            yield from _checks(server, serve, image.health)
    except NotRunnableError as error:
        yield Check.of("serves", "starts", "its program runs", str(error), False)
    except UntriedError as error:
        yield Check.untried("serves", "a server in a container", "starts", error)


def _checks(server: Server, serve: Serve, health: str | None) -> Iterator[Check]:
    started = starts(server, serve.seconds)
    yield started
    if not started.passed:
        return
    if health is not None:
        yield _health_check(server)
    for request in requests_of(server):
        yield answered(server, request)
    yield stops(server)


def starts(
    server: Server, seconds: float, where: str = "", kind: str = "serves", of: str = ""
) -> Check:
    """Whether a server gets healthy in time; ``of`` begins the subject: "NAME: "."""
    expected = f"healthy within {seconds:.0f} s{where}"
    try:
        found = f"after {server.wait(seconds):.1f} s"
    except NotServingError as error:
        return Check.of(kind, f"{of}starts", expected, str(error), False)
    return Check.of(kind, f"{of}starts", expected, found, True)


def requests_of(server: Server) -> Iterator[Request]:
    """All requests to a server that generates text."""
    yield "lists its model", "one model", partial(_models, server)
    yield "completes text", f"{TOKENS} tokens of text", partial(completes, server)
    yield "streams", "the same text in pieces, to the end", partial(_streams, server)
    if tokenizer := server.api_flavor.tokenizer:
        expected = f"{PROMPT!r} becomes tokens and {PROMPT!r} again"
        yield "tokenizes and back", expected, partial(_tokenizes, server, tokenizer)
    yield "answers a chat", "text of the assistant", partial(_chats, server)
    yield "answers two at once", "both in full", partial(answers_two, server)


def answered(server: Server, request: Request, kind: str = "serves") -> Check:
    """The check of one request."""
    subject, expected, send = request
    try:
        return Check.of(kind, subject, expected, send(), True)
    except UnansweredError as error:
        return Check.of(kind, subject, expected, server.explained(error), False)


def _completion(**more: Any) -> dict[str, Any]:
    fixed = {"prompt": PROMPT, "max_tokens": TOKENS, "temperature": 0, "seed": 1}
    return {**fixed, "cache_prompt": False, **more}  # the same answer every time


def _models(server: Server) -> str:
    found = server.models(ANSWER)
    names = [repr(posixpath.basename(name)[:SHOWN]) for name in found[:NAMED]]
    if len(found) != 1:
        more = f" and {len(found) - NAMED} more" if len(found) > NAMED else ""
        raise UnansweredError(f"it lists {len(found)} models: {', '.join(names)}{more}")
    return names[0]


def completes(server: Server, prompt: str = PROMPT, seconds: float = 0.0) -> str:
    """The text that continues a prompt; raises ``UnansweredError`` unless it is ``TOKENS`` long and
    comes within so many seconds; 0: ``ANSWER``."""
    answer = server.complete(_completion(prompt=prompt), seconds or ANSWER)
    text = answer.text
    tokens = answer.usage.completion_tokens if answer.usage else None
    if not text or tokens != TOKENS:
        raise UnansweredError(f"{tokens} tokens: {text[:SHOWN]!r}")
    return repr(text[:SHOWN])


def _streams(server: Server) -> str:
    at_once = server.complete(_completion(), ANSWER).text
    body = server.request(_completion(stream=True), ANSWER)
    stream = server.client.stream(server.api_flavor.completions, body, ANSWER)
    pieces = len(stream.events)
    if not stream.finished:
        raise UnansweredError(f"the stream ended early, after {pieces} pieces")
    if stream.text != at_once:
        raise UnansweredError(f"{stream.text[:SHOWN]!r} in pieces, {at_once[:SHOWN]!r} at once")
    if pieces < 2:
        raise UnansweredError("the whole text came in one piece")
    return f"{pieces} pieces"


def _tokenizes(server: Server, tokenizer: TokenizerPages) -> str:
    client, body = server.client, {tokenizer.text: PROMPT}
    tokens = client.post(tokenizer.tokenize, body, Tokens, ANSWER).tokens
    text = client.post(tokenizer.detokenize, {"tokens": tokens}, Detokenized, ANSWER).text
    # SentencePiece begins a text with a space.
    if not tokens or text.strip() != PROMPT:
        raise UnansweredError(f"{len(tokens)} tokens, which become {text[:SHOWN]!r}")
    return f"{len(tokens)} tokens and back"


def _chats(server: Server) -> str:
    messages = [{"role": "user", "content": PROMPT}]
    body = {"messages": messages, "max_tokens": TOKENS, "temperature": 0, "seed": 1}
    answer = server.client.post(
        server.api_flavor.chat, server.request(body, ANSWER), Answer, ANSWER
    )
    messages_back = [each.message for each in answer.choices or [] if each.message]
    role = messages_back[0].role if messages_back else None
    text = answer.text
    if role != "assistant" or not text:
        raise UnansweredError(f"the role {role!r} with the text {text[:SHOWN]!r}")
    return repr(text[:SHOWN])


def answers_two(server: Server) -> str:
    """Two texts, asked for at once; raises like ``completes``."""
    with ThreadPoolExecutor(2) as pool:
        answers = [pool.submit(completes, server) for _ in range(2)]
        return " and ".join(each.result() for each in answers)


def _health_check(server: Server) -> Check:
    test, passed = server.container.health_test(), False
    try:
        found = "the image has none"
        if test:
            done = server.container.execute(test, HEALTH_TIMEOUT)
            passed = done.status == 0
            found = "0" if passed else f"{done.status}: {done.output[:SHOWN]}"
    except UntriedError as error:
        found = str(error)
    return Check.of("serves", "its health check", "exit status 0", found, passed)


def stops(server: Server, seconds: int = 0, kind: str = "serves") -> Check:
    """Whether SIGTERM ends the server within so many seconds; 0: ``STOP``."""
    seconds = seconds or STOP
    state, took = server.container.stop(seconds)
    expected = f"SIGTERM ends it with exit status 0 within {seconds} s"
    found = f"exit status {state.status} after {took:.1f} s"
    if state.status == 137:
        found = f"it did not stop, and was killed after {took:.1f} s"
    return Check.of(kind, "stops", expected, found, state.status == 0)
