"""Servers of engines: their APIs, how they start on a simulated card, and what their logs say.

All have OpenAI's API, and differ in the rest.  Sources: llama.cpp's ``tools/server/README.md``,
llama-cpp-python's ``server/app.py``, TabbyAPI's ``endpoints/OAI``, and OpenAI's API reference.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
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


GIB = 1 << 30
ROUNDED = GIB // 200
"""Bytes that a figure of a log may be off: it has two decimals of a GiB."""


@dataclass(frozen=True, slots=True)
class StatedLog:
    """Figures of a log; None: it does not state them.  Sizes are bytes, rounded to 0.01 GiB."""

    weights: int | None = None
    kv_cache: int | None = None
    """The room for the KV cache; negative where there is none."""
    kv_tokens: int | None = None
    attention: str | None = None
    """The attention backends, a model's before its drafter's: ``FLASH_ATTN``."""
    flash: int | None = None
    """The version of FlashAttention."""
    graphs: int | None = None
    """Memory of the captured CUDA graphs; None: none were captured."""
    compile_seconds: float | None = None
    """Time that torch.compile took; None: it did not run."""
    no_room: str = ""
    """What the card had no room for, in its own words; empty: it does not say so."""
    error: str = ""
    """The error that ended its engine, which the server's own error does not repeat."""
    longest: int | None = None
    """Its estimate of the largest context, in tokens, where the KV cache is too small."""

    @property
    def kinds(self) -> dict[str, int]:
        """Bytes by kind, of those that it states."""
        found = {"weights": self.weights, "KV cache": self.kv_cache}
        return {kind: max(size, 0) for kind, size in found.items() if size is not None}

    @property
    def text(self) -> str:
        """The figures in one line; empty where the log has none."""
        parts = [
            f"weights {_gib(self.weights)}" if self.weights is not None else "",
            f"room for a KV cache of {_gib(self.kv_cache)}" if self.kv_cache is not None else "",
            f"{self.kv_tokens:,} tokens" if self.kv_tokens is not None else "",
            self.attention or "",
            f"FlashAttention {self.flash}" if self.flash is not None else "",
            f"CUDA graphs {_gib(self.graphs)}" if self.graphs is not None else "",
            f"torch.compile {self.compile_seconds:.0f} s" if self.compile_seconds else "",
        ]
        return ", ".join(filter(None, parts))


def _gib(size: int) -> str:
    return f"{size / GIB:.2f} GiB"


@dataclass(frozen=True, slots=True)
class FolderServer:
    """A server that loads a model folder on a simulated card: the smoke test starts none on the
    CPU."""

    serve: Serve
    read_log: Callable[[str], StatedLog]
    """Reads the figures of a log; where it states one several times, the last counts."""
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


# The readers of logs.

TORCH_NO_ROOM = (
    r"Tried to allocate \d[\d.]{0,20} [KMG]iB\. GPU \d{1,3} has a total capacity of [\d.]{1,20} "
    r"[MG]iB of which [\d.]{1,20} (?:bytes|[KMG]iB) is free"
)
"""PyTorch's words where the card refuses memory: ``c10/cuda/CUDACachingAllocator.cpp``."""


def _last(pattern: str, log: str) -> str | None:
    """The group of the last match."""
    found = re.findall(pattern, log)
    return str(found[-1]) if found else None


def _count(pattern: str, log: str) -> int | None:
    found = _last(pattern, log)
    return int(found.replace(",", "")) if found else None


def _bytes(sizes: Iterable[str | None]) -> int | None:
    """The sum of sizes in GiB; None: there is none."""
    found = [round(float(size) * GIB) for size in sizes if size]
    return sum(found) if found else None


def _words(pattern: str, log: str) -> str:
    found = re.search(pattern, log)
    return found[0] if found else ""


# vLLM 0.20.2: ``vllm/v1/worker/gpu_model_runner.py`` and ``gpu_worker.py``,
# ``vllm/v1/core/kv_cache_utils.py`` (0.33.0: ``kv_cache_planning.py``, too),
# ``vllm/platforms/cuda.py``, ``vllm/v1/attention/backends``.
VLLM_SIZE = r"(-?\d{1,6}\.\d{1,9}) GiB"
VLLM_NO_ROOM = (
    r"No available memory for the cache blocks"
    r"|\d[\d.]{0,20} GiB KV cache is needed, which is larger than the available KV cache memory "
    rf"\(-?\d[\d.]{{0,20}} GiB\)|{TORCH_NO_ROOM}"
)
VLLM_ATTENTION = (
    r"Using (?:(\w{1,60}) attention backend|AttentionBackendEnum\.(\w{1,60}) backend\.)"
)
VLLM_ENGINE = r"^\(EngineCore[^)]{0,40}\) (?:ERROR [^]]{1,80}\] )?"
VLLM_ERROR = rf"{VLLM_ENGINE}((?:\w{{1,40}}\.){{0,6}}[A-Z]\w{{1,40}}: .{{1,300}})"
REASONS = 8  # lines that may follow an error


def read_vllm(log: str) -> StatedLog:
    """The figures of vLLM's log."""
    attention = ["".join(groups) for groups in re.findall(VLLM_ATTENTION, log)]
    seconds = _last(r"torch\.compile took (\d{1,6}\.\d{1,9}) s in total", log)
    return StatedLog(
        weights=_bytes([_last(rf"Model loading took {VLLM_SIZE}", log)]),
        kv_cache=_bytes([_last(rf"Available KV cache memory: {VLLM_SIZE}", log)]),
        kv_tokens=_count(r"GPU KV cache size: (\d[\d,]{0,20}) tokens", log),
        attention=" and ".join(dict.fromkeys(attention)) or None,
        flash=_count(r"Using FlashAttention version (\d)", log),
        graphs=_bytes([_last(rf"Graph capturing finished in \d+ secs, took {VLLM_SIZE}", log)]),
        compile_seconds=float(seconds) if seconds else None,
        no_room=_words(VLLM_NO_ROOM, log),
        error=_vllm_error(log),
        longest=_count(r"the estimated maximum model length is (\d{1,9})", log),
    )


def _vllm_error(log: str) -> str:
    """The last error; one that ends with a colon goes on in the engine's next lines."""
    *_, found = (None, *re.finditer(VLLM_ERROR, log, re.MULTILINE))
    if found is None:
        return ""
    lines = [found[1].strip()]
    if lines[0].endswith(":"):
        for line in log[found.end() :].splitlines()[1 : REASONS + 1]:
            start = re.match(VLLM_ENGINE, line)
            if start is None:
                break
            lines.append(line[start.end() :].strip())
    return "\n".join(lines)


# SGLang 0.5.23, ``sglang/srt``: ``model_executor/model_runner.py``,
# ``model_executor/model_runner_components/cuda_graph_setup.py``,
# ``model_executor/pool_configurator.py``, ``mem_cache/memory_pool.py``, ``managers/scheduler.py``;
# its "GB" are GiB.
SGLANG_SIZE = r"(\d{1,6}\.\d{2}) ?GB"
SGLANG_NO_ROOM = rf"Not enough memory\. Please try to \w+ --mem-fraction-static|{TORCH_NO_ROOM}"
SGLANG_ERROR = r"(?m)^((?:\w{1,40}\.){0,6}[A-Z]\w{1,40}(?:Error|Exception): .{1,300})"


def read_sglang(log: str) -> StatedLog:
    """The figures of SGLang's log: the sums of a model's and its drafter's.

    SGLang also starts with less KV cache than its context needs.
    """
    tokens = _count(r"max_total_num_tokens=(\d{1,12}),", log) or 0
    context = _count(r" context_len=(\d{1,12}),", log) or 0
    small = f"a KV cache of {tokens:,} tokens" if 0 < tokens < context else ""
    caches = re.findall(r"(?:KV|Mamba) Cache is allocated\. (.{1,400})", log)
    weights = re.findall(rf"Load weight end\..{{1,300}} mem usage={SGLANG_SIZE}", log)
    graphs = re.findall(rf"Capture .{{1,60}} end\..{{1,400}} mem usage={SGLANG_SIZE}", log)
    return StatedLog(
        weights=_bytes(weights),
        kv_cache=_bytes(re.findall(rf"size: {SGLANG_SIZE}", "\n".join(caches))),
        kv_tokens=tokens or None,
        attention=_last(r"'attention_backend': '(\w{1,40})'", log),
        graphs=_bytes(graphs),
        no_room=_words(SGLANG_NO_ROOM, log) or small,
        longest=tokens if small else None,
        error=_last(SGLANG_ERROR, log) or "",
    )


# LMDeploy 0.18.0 with TurboMind, ``src/turbomind``: ``turbomind.cc``, ``slab.h``, ``allocator.cc``
# and ``engine.cc`` (``--log-level INFO``).  The cache consists of slabs; an object in them is a
# block of some tokens.
SLABS = r"slab_size ([1-9]\d{0,14}), object_size \d{1,15}, object_count (\d{1,9}),"
CACHE_FULL = "cache out of memory, no request can be admitted"


def read_lmdeploy(log: str) -> StatedLog:
    """The figures of LMDeploy's log; it does not state the weights.

    The tokens are not known where its cache has objects of several kinds.
    """
    size = _last(r"Object cache budget: (\d{1,9}\.\d{2}) MB from free", log)
    kv_cache = round(float(size) * GIB / 1024) if size else None
    slabs, block = re.findall(SLABS, log), _count(r"cache_block_seq_len=(\d{1,9})", log)
    tokens = None
    if kv_cache and len(slabs) == 1 and block is not None:
        slab, count = map(int, slabs[0])
        tokens = kv_cache // slab * count * block
    return StatedLog(
        kv_cache=kv_cache,
        kv_tokens=tokens,
        no_room=_words(rf"CUDA error: out of memory|{CACHE_FULL}", log),
        longest=tokens if CACHE_FULL in log else None,
    )


# TabbyAPI's ``backends/exllamav3/model.py`` states the cache in tokens, and no sizes; ExLlamaV3's
# ``model/model_ls.py`` says where a part of the model does not fit.
def read_tabbyapi(log: str) -> StatedLog:
    """What TabbyAPI's log says about its start: the KV cache in tokens, and a card without room."""
    tokens = _count(r"Using configured cache_size: (\d{1,12}) tokens\.", log)
    return StatedLog(
        kv_tokens=tokens if "Model successfully loaded." in log else None,
        no_room=_words(rf"{TORCH_NO_ROOM}|Insufficient VRAM in split for model and cache", log),
    )
