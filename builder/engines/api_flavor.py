"""The APIs of the servers: all have OpenAI's, and differ in the rest.

Sources: llama.cpp's ``tools/server/README.md``, llama-cpp-python's ``server/app.py``, TabbyAPI's
``endpoints/OAI``, and OpenAI's API reference.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

PLACE = re.compile(r"\{(\w+)\}")
"""The placeholder of a model or a number in a recipe's arguments."""


@dataclass(frozen=True, slots=True)
class TokenizerPages:
    """Paths and field names of the requests to tokenize and to detokenize."""

    tokenize: str
    text: str
    detokenize: str


@dataclass(frozen=True, slots=True)
class ApiFlavor:
    """Paths of one kind of server; all of them begin with ``/``."""

    health: str
    tokenizer: TokenizerPages | None
    models: str = "/v1/models"
    completions: str = "/v1/completions"
    chat: str = "/v1/chat/completions"
    device_page: str | None = None
    """Page with the compute backend; None if only the log shows it."""
    predictions: str | None = None
    """Page that answers with probabilities (``answers.Prediction``); None: there is none."""
    names_model: bool = False
    """Requests name the model, as OpenAI's API demands; LMDeploy's refuses others."""
    asks: Mapping[str, Any] = field(default_factory=dict)
    """More of each request for text."""
    projector: str | None = None
    """Option that names the file of a multimodal projector; None: it takes none."""


LLAMA = TokenizerPages("/tokenize", "content", "/detokenize")
OPENAI = ApiFlavor("/v1/models", None, names_model=True)

API_FLAVORS: Mapping[str, ApiFlavor] = {
    "llama-server": ApiFlavor("/health", LLAMA, predictions="/completion", projector="--mmproj"),
    "llama-cpp-python": ApiFlavor(
        "/v1/models",
        TokenizerPages("/extras/tokenize", "input", "/extras/detokenize"),
        projector="--clip_model_path",
    ),
    "hello": ApiFlavor("/health", LLAMA, device_page="/props", predictions="/completion"),
    "openai": OPENAI,
    # It counts tokens only where it is asked to: endpoints/OAI/utils/completion.py.
    "tabbyapi": replace(OPENAI, asks={"stream_options": {"include_usage": True}}),
}
"""By the name that a recipe's ``[serve]`` gives."""


def filled(words: Iterable[str], values: Mapping[str, str]) -> list[str]:
    """The words with the values by their names in place of ``{model}``, ``{context}``, ..."""
    return [PLACE.sub(lambda place: values.get(place[1], place[0]), word) for word in words]
