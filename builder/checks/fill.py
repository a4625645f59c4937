"""Long requests that fill a server's context: some engines allocate more while they compute."""

from __future__ import annotations

import re
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from builder.checks.answers import Tokens
from builder.checks.client import UnansweredError
from builder.checks.server import Server

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
        body = _body(int(wanted * characters))
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


def _body(characters: int) -> Mapping[str, Any]:
    lines = characters // len(LINE.format(number=0)) + 1
    text = "".join(LINE.format(number=number) for number in range(lines))[:characters]
    return {"prompt": text, "max_tokens": TOKENS, "temperature": 0, "cache_prompt": False}


def _tokens(server: Server, body: Mapping[str, Any], wanted: int) -> int:
    answer = server.complete(body, ANSWER)
    counted = answer.usage.prompt_tokens if answer.usage else None
    return wanted if counted is None else counted


def _characters_of_a_token(server: Server) -> float:
    tokenizer = server.api_flavor.tokenizer
    if tokenizer is None:
        return CHARACTERS
    sample = "".join(LINE.format(number=number) for number in range(SAMPLE))
    body = {tokenizer.text: sample}
    try:
        count = len(server.client.post(tokenizer.tokenize, body, Tokens, SHORT).tokens)
    except UnansweredError:
        return CHARACTERS
    return len(sample) / max(count, 1)
