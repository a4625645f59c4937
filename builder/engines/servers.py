"""Servers of engines: their APIs, and how they start on a simulated card.

All have OpenAI's API, and differ in the rest.  Sources: llama.cpp's ``tools/server/README.md``,
llama-cpp-python's ``server/app.py``, TabbyAPI's ``endpoints/OAI``, and OpenAI's API reference.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from builder.recipes.probes import Request, Serve

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
    """Page that answers with probabilities (``answers.Prediction``)."""
    names_model: bool = False
    """Requests name the model, as OpenAI's API demands; LMDeploy's refuses others."""
    asks: Mapping[str, Any] = field(default_factory=dict)
    """More of each request for text."""
    projector: str | None = None
    """Option that names the file of a multimodal projector."""
    request: Request | None = None
    """The only request that is known; None: the pages above are there."""
    refuses: str | None = None
    """What its log says where it ends for want of a model; None: it is started with one."""

    @property
    def generates(self) -> bool:
        """Whether it generates text, by pages that are known."""
        return self.request is None and self.refuses is None


@dataclass(frozen=True, slots=True)
class KeyOption:
    """How a server gets the key that it asks its clients for, without the key in a command line."""

    option: str
    """Its value is the path of a file."""
    text: str = "{key}\n"
    """The file."""
    suffix: str = ""
    """The end of the file's name that the server demands."""


YAML_KEY = KeyOption("--config", 'api-key: "{key}"\n', ".yaml")
"""vLLM (``utils/argparse_utils.py``) and SGLang (``srt/utils/server_args_config_parser.py``) take
options from one YAML file."""


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
    "none": ApiFlavor("/", None),
}
"""By the name that a recipe's ``[serve]`` gives."""


def flavor_of(serve: Serve) -> ApiFlavor:
    """The API flavor of a server, with its own health page and request."""
    flavor = API_FLAVORS[serve.api_flavor]
    health = flavor.health if serve.health is None else f"/{serve.health}"
    return replace(flavor, health=health, request=serve.request, refuses=serve.refuses)


def filled(words: Iterable[str], values: Mapping[str, str]) -> list[str]:
    """The words with the values by their names in place of ``{model}``, ``{context}``, ..."""
    return [PLACE.sub(lambda place: values.get(place[1], place[0]), word) for word in words]


@dataclass(frozen=True, slots=True)
class FolderServer:
    """A server that loads a model folder on a simulated card: the smoke test starts none on the
    CPU."""

    serve: Serve
    log: str
    """Whose log it writes: a name of ``logs.READERS``."""
    dummy: tuple[str, ...] = ()
    """More arguments, by which the engine makes up weights; empty: it cannot."""
    room: tuple[str, ...] = ()
    """Options by which a longer context fits into its KV cache."""
    numbers: tuple[str, ...] = ()
    """Options by which kernels with known PTX do its work, where its numbers are compared; empty:
    not known."""
    numbers_env: Mapping[str, str] = field(default_factory=dict)
    samples: bool = True
    """Whether it reads back which tokens the card chose, from memory that no known kernel stored
    to: where kernels are counted, these are zeros (``cards.text``)."""


def on_a_card(serve: Serve, **env: str) -> Serve:
    """How a server is started with a model folder, with these variables.

    Its caches are in HOME; without a network, it must not ask the Hub.
    """
    return serve.model_copy(
        update={
            "env": {"HOME": "/tmp", "HF_HUB_OFFLINE": "1", **env},  # noqa: S108
            "seconds": 900,  # compiles of Triton's, nvcc's and torch's kernels, on two cores
            "memory": 12.0,
        }
    )
