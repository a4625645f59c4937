"""Continued prompts with the probabilities of their tokens, and how far two of them differ."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import takewhile

from builder.checks.answers import Prediction, ServerTimings
from builder.checks.client import UnansweredError
from builder.checks.server import Server

SECONDS = 300.0
"""For one answer: kernels are interpreted."""
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
    body = {
        "prompt": prompt,
        "n_predict": tokens,
        "temperature": 0,
        "seed": 1,
        "n_probs": MANY,
        "cache_prompt": cached,
    }
    found = server.client.post(page, body, Prediction, seconds)
    generated = found.completion_probabilities
    if len(generated) != tokens:
        raise UnansweredError(f"{len(generated)} tokens of {tokens}: {found.content!r}")
    timings = found.timings or ServerTimings()
    return Continued(
        found.content,
        tuple(each.id for each in generated),
        tuple({token.id: token.logprob for token in each.top_logprobs} for each in generated),
        timings.prompt_n,
        timings.draft_n,
        timings.draft_n_accepted,
    )


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
        return min(
            (at for at, distance in self.distances.items() if distance > limit), default=None
        )

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
            # A token that one of the two does not have at all is infinitely far.
            distances[position] = max(
                abs(one.get(token, math.inf) - other.get(token, math.inf))
                for token in one.keys() | other.keys()
            )
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
