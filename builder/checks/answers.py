"""The answers of engines' servers: OpenAI's API, with the additions of llama.cpp and others.

Fields that nobody reads are left out, and absent fields have no value.  An answer that does not fit
its model is refused; no error shows its content.
"""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, model_validator

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
