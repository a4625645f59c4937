"""Check: the image's server serves the test model, and stops on SIGTERM."""

from __future__ import annotations

import json
import posixpath
import re
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from html.parser import HTMLParser
from math import prod
from pathlib import Path
from typing import Any
from urllib.parse import urljoin

from builder.checks import series
from builder.checks.contract import driver_of
from builder.checks.server import (
    Answer,
    Detokenized,
    DevicePage,
    NotServingError,
    Server,
    ServeSpec,
    Tokens,
    UnansweredError,
    launched,
    offloaded,
)
from builder.checks.speed import RunSettings, measure
from builder.checks.subject import Context, GpuTest
from builder.checks.verdict import Check
from builder.core import sizes
from builder.core.errors import UntriedError, listed
from builder.docker import gpus
from builder.docker.containers import NotRunnableError
from builder.engines.servers import TokenizerPages
from builder.presets import made_models
from builder.presets.made_models import TinyModel
from builder.presets.schema import Generation
from builder.recipes.probes import Serve
from builder.recipes.schema import Recipe
from simulator.selection import Capability

# The test models: a tiny llama with random weights, whose text always prints, and a folder.

MODEL = TinyModel("llama", "F16", 27)
MODEL_NAME = "tiny"
CONTEXT = 512  # tokens


def write_model(path: Path) -> None:
    """Write the model that a file is."""
    made_models.write_tiny(MODEL, path)


# The test model in whisper.cpp's own format: src/whisper.cpp, ``whisper_model_load``.
#
# The sizes of its vocabulary and of its contexts are fixed, as are four layers (MODEL_TINY).  Text
# tokens are one word, and the rows of all other tokens are zeros: any sound becomes that word.

WHISPER_WORD = " hello"
WHISPER_TOKENS, WHISPER_TEXTS = 51_864, 50_256  # all tokens, and the tokens of texts
WHISPER_WIDTH, WHISPER_LAYERS, WHISPER_AUDIO, WHISPER_TEXT, MELS, FREQUENCIES = (
    *(64, 4, 1500, 448),
    *(80, 201),
)


def write_whisper_model(path: Path, seed: int = 1) -> None:
    """Write the model, seven megabytes; the same seed gives the same bytes."""
    import numpy as np

    generator, word = np.random.default_rng(seed), WHISPER_WORD.encode()
    sizes = (WHISPER_WIDTH, 1, WHISPER_LAYERS)
    numbers = (WHISPER_TOKENS, WHISPER_AUDIO, *sizes, WHISPER_TEXT, *sizes, MELS, 1)
    with path.open("wb") as stream:
        stream.write(struct.pack("<4s11i", b"lmgg", *numbers))
        filters = generator.random((MELS, FREQUENCIES), dtype=np.float32) / FREQUENCIES
        stream.write(struct.pack("<2i", MELS, FREQUENCIES) + filters.tobytes())
        stream.write(struct.pack("<i", WHISPER_TEXTS))
        # A card that computes nothing gives token 0.  A text never begins with the last token.
        stream.write((struct.pack("<i", len(word)) + word) * (WHISPER_TEXTS - 1))
        stream.write(struct.pack("<i", 1) + b" ")
        for name, shape in _whisper_shapes().items():
            values = (generator.standard_normal(shape) * 0.1).astype(np.float32)
            if name.startswith("decoder.token"):
                values[WHISPER_TEXTS:] = 0
            half = len(shape) > 1 and name.endswith(".weight")
            head = (len(shape), len(name), int(half), *reversed(shape))
            stream.write(struct.pack(f"<{len(head)}i", *head) + name.encode())
            stream.write(values.astype(np.float16 if half else np.float32).tobytes())
    path.chmod(0o644)  # the image's own user reads it


def _whisper_shapes() -> dict[str, tuple[int, ...]]:
    """The tensors by name, with the slowest dimension first."""
    width = WHISPER_WIDTH
    found: dict[str, tuple[int, ...]] = {
        "encoder.positional_embedding": (WHISPER_AUDIO, width),
        "encoder.conv1.weight": (width, MELS, 3),
        "encoder.conv1.bias": (width, 1),
        "encoder.conv2.weight": (width, width, 3),
        "encoder.conv2.bias": (width, 1),
        "decoder.positional_embedding": (WHISPER_TEXT, width),
        "decoder.token_embedding.weight": (WHISPER_TOKENS, width),
    }
    norms = ["encoder.ln_post", "decoder.ln"]
    for part, kinds in (("encoder", ["attn"]), ("decoder", ["attn", "cross_attn"])):
        for block in (f"{part}.blocks.{number}" for number in range(WHISPER_LAYERS)):
            norms += [f"{block}.mlp_ln", *(f"{block}.{kind}_ln" for kind in kinds)]
            for kind in (f"{block}.{kind}" for kind in kinds):
                for name in ("query", "key", "value", "out"):
                    found[f"{kind}.{name}.weight"] = (width, width)
                    found |= {f"{kind}.{name}.bias": (width,)} if name != "key" else {}
            found[f"{block}.mlp.0.weight"] = (4 * width, width)
            found[f"{block}.mlp.0.bias"] = (4 * width,)
            found[f"{block}.mlp.2.weight"] = (width, 4 * width)
            found[f"{block}.mlp.2.bias"] = (width,)
    return found | {f"{norm}.{name}": (width,) for norm in norms for name in ("weight", "bias")}


# The test model of engines that load folders of the Hugging Face Hub: ``folder/``.
#
# Two layers of Qwen3: grouped attention, norms of queries and keys, gated units, positions by
# rotation.  A head of 128 is one that every attention backend of vLLM takes; the vocabulary is
# larger than the tokenizer's, because models round it up, too.  A token is a byte.

FOLDER = Path(__file__).with_name("folder")
FOLDER_NAME = "tiny"
WEIGHTS = "model.safetensors"
FOLDER_CONTEXT = 2048  # tokens


def write_model_folder(folder: Path) -> None:
    """Make the folder, with the files that every user may read; its weights are zeros, a hole."""
    folder.mkdir()
    folder.chmod(0o755)  # the image's own user reads it
    found = {file.name: json.loads(file.read_text("utf-8")) for file in FOLDER.glob("*.json")}
    # In GPT-2's order.  The first one is "!", as in its and Qwen's vocabularies: zeros, which a
    # card that computes nothing gives for sampled tokens, are printable text.
    letters = sorted(made_models.bytes_as_characters())
    found["tokenizer.json"]["model"]["vocab"] = {text: at for at, text in enumerate(letters)}
    for name, content in found.items():
        (folder / name).write_text(json.dumps(content, indent=1), "utf-8")
    shapes = shapes_of(found["config.json"])
    holes = {name: ("BF16", shape, 2 * prod(shape)) for name, shape in shapes.items()}
    write_weights(folder / WEIGHTS, holes)
    for file in folder.iterdir():
        file.chmod(0o644)


def write_weights(
    file: Path, tensors: Mapping[str, tuple[str, Sequence[int], bytes | int]]
) -> None:
    """Write tensors in the format of safetensors (README, "Format"): the type, the shape, and the
    bytes, or of how many bytes the hole is that reads as zeros."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}  # Transformers refuses others
    end = 0
    for name, (kind, shape, data) in tensors.items():
        begin, end = end, end + (data if isinstance(data, int) else len(data))
        header[name] = {"dtype": kind, "shape": shape, "data_offsets": [begin, end]}
    text = json.dumps(header, separators=(",", ":")).encode()  # Lucebox's parser takes no spaces
    with file.open("wb") as stream:
        stream.write(struct.pack("<Q", len(text)) + text)
        for _, _, data in tensors.values():
            stream.seek(data, 1) if isinstance(data, int) else stream.write(data)
        stream.truncate(8 + len(text) + end)
    file.chmod(0o644)  # the image's own user reads it


def shapes_of(config: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    """The tensors of a configuration, with the names of Transformers' ``Qwen3ForCausalLM``."""
    width, head, inner = config["hidden_size"], config["head_dim"], config["intermediate_size"]
    heads, groups = config["num_attention_heads"] * head, config["num_key_value_heads"] * head
    layer: dict[str, tuple[int, ...]] = {
        **dict.fromkeys(("input_layernorm", "post_attention_layernorm"), (width,)),
        **dict.fromkeys(("self_attn.q_norm", "self_attn.k_norm"), (head,)),
        "self_attn.q_proj": (heads, width),
        **dict.fromkeys(("self_attn.k_proj", "self_attn.v_proj"), (groups, width)),
        "self_attn.o_proj": (width, heads),
        **dict.fromkeys(("mlp.gate_proj", "mlp.up_proj"), (inner, width)),
        "mlp.down_proj": (width, inner),
    }
    whole: dict[str, tuple[int, ...]] = {
        "embed_tokens": (config["vocab_size"], width),
        "norm": (width,),
    }
    for number in range(config["num_hidden_layers"]):
        whole |= {f"layers.{number}.{name}": shape for name, shape in layer.items()}
    shapes = {f"model.{name}.weight": shape for name, shape in whole.items()}
    return {**shapes, "lm_head.weight": (config["vocab_size"], width)}


TOKENS = 12
STOP = 10  # seconds between SIGTERM and SIGKILL
ANSWER = 60.0  # seconds for any one answer
HEALTH_TIMEOUT = 20.0  # seconds for the image's own health check
PROMPT = "Hello"
SHOWN = 60  # characters of an answer in a table
NAMED = 4  # models that an error names
PARTS = {"stylesheet": "css", "modulepreload": "javascript", "manifest": "json"}
"""What a page names with ``<link>``, by its ``rel``: a part of its type."""
OTHER = re.compile("//|[a-z]+:", re.IGNORECASE)  # a reference to another host
MOST_PARTS = 100  # that are asked for
IMPORT = re.compile(r"""\bimport\(\s*["'](\.{0,2}/[\w./+-]+)["']""")
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
    if serve.refuses is not None:
        yield Check.skipped("serves", "answers", "a right answer", UNKNOWN)
        return
    model = test_model(serve, context.work)
    try:
        spec = ServeSpec(model, CONTEXT, driver_stub=context.stub)
        with launched(context.subject.reference, serve, image.port, spec) as server:
            yield (start := starts(server, serve.seconds))
            if not start.passed:
                return
            if image.health is not None:
                yield _health_check(server)
            for request in requests_of(server):
                yield answered(server, request)
            if context.recipe.llama and context.recipe.llama.ui:
                expected = "a page, whose scripts and styles load"
                yield answered(
                    server, ("shows its web page", expected, partial(shows_page, server))
                )
            yield stops(server)
    except NotRunnableError as error:
        yield Check.of("serves", "starts", "its program runs", str(error), False)
    except UntriedError as error:
        yield Check.untried("serves", "a server in a container", "starts", error)


UNKNOWN = (
    "not asked: no small model can be made for it. Its answers, its end on SIGTERM and the memory "
    "that it takes are not known"
)


def test_model(serve: Serve, folder: Path) -> Path | None:
    """Make the tiny model that a server loads, in a folder; None: it is started without one."""
    if serve.refuses is not None:
        return None
    if serve.model == "whisper":
        write_whisper_model(model := folder / f"{MODEL_NAME}.bin")
    else:
        write_model(model := folder / f"{MODEL_NAME}.gguf")
    return model


def refuses(server: Server, seconds: float, kind: str) -> Iterator[Check]:
    """Whether a server that has no model reaches a card, says so and ends."""
    text = server.api_flavor.refuses or ""
    found, passed = f"it still runs after {seconds:.0f} s", False
    try:
        server.require_running(seconds)
    except NotServingError as error:
        passed = text in server.container.log()
        found = "it does" if passed else str(error)
    yield Check.of(kind, "starts without a model", f"ends with the words {text!r}", found, passed)
    yield Check.skipped(kind, "answers", "a right answer", UNKNOWN)


def starts(
    server: Server, seconds: float, where: str = "", kind: str = "serves", of: str = ""
) -> Check:
    """Whether a server gets healthy in time; ``of`` begins the subject: "NAME: "."""
    passed = True
    try:
        found = f"after {server.wait(seconds):.1f} s"
    except NotServingError as error:
        found, passed = str(error), False
    return Check.of(kind, f"{of}starts", f"healthy within {seconds:.0f} s{where}", found, passed)


def requests_of(server: Server) -> Iterator[Request]:
    """All requests to a server."""
    if not server.api_flavor.generates:
        yield request_of(server)
        return
    yield "lists its model", "one model", partial(_models, server)
    yield "completes text", f"{TOKENS} tokens of text", partial(completes, server)
    yield "streams", "the same text in pieces, to the end", partial(_streams, server)
    if tokenizer := server.api_flavor.tokenizer:
        expected = f"{PROMPT!r} becomes tokens and {PROMPT!r} again"
        yield "tokenizes and back", expected, partial(_tokenizes, server, tokenizer)
    yield "answers a chat", "text of the assistant", partial(_chats, server)
    yield "answers two at once", "both in full", partial(answers_two, server)


def request_of(server: Server) -> Request:
    """The request that its recipe names, as a check."""
    asked = server.api_flavor.request
    if asked is None:
        raise ValueError("its recipe names no request")

    def ask() -> str:
        return repr(server.client.ask(asked)[:SHOWN].strip())

    return f"answers /{asked.path}", f"contains {listed(asked.contains, NAMED, ', ')}", ask


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
    names = [repr(posixpath.basename(name)[:SHOWN]) for name in server.models(ANSWER)]
    if len(names) != 1:
        raise UnansweredError(f"it lists {len(names)} models: {listed(names, NAMED, ', ')}")
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
    whole = server.request(body, ANSWER)
    answer = server.client.post(server.api_flavor.chat, whole, Answer, ANSWER)
    role = next((each.message.role for each in answer.choices or [] if each.message), None)
    text = answer.text
    if role != "assistant" or not text:
        raise UnansweredError(f"the role {role!r} with the text {text[:SHOWN]!r}")
    return repr(text[:SHOWN])


class _Page(HTMLParser):
    """``parts``: the scripts and styles that a page names, with a word of their type."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.parts: dict[str, str] = {}
        self.text: dict[str, str] = {}  # by tag
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        kind = "javascript" if tag == "script" else PARTS.get(given.get("rel", "").lower())
        if kind and (named := given.get("src" if tag == "script" else "href")):
            self.parts[named] = kind
        self.text.setdefault(tag, "")

    def handle_data(self, data: str) -> None:
        if self.lasttag in self.text:
            self.text[self.lasttag] += data.strip()
        if self.lasttag == "script":  # SvelteKit's pages begin so
            self.parts |= dict.fromkeys(IMPORT.findall(data), "javascript")

    def parse_marked_section(self, i: int, report: bool = True) -> int:
        """A comment, as in browsers: html.parser raises AssertionError for an unknown one."""
        return self.parse_bogus_comment(i, report)


def shows_page(server: Server) -> str:
    """The page at ``/``, with all scripts and styles that it names.  Raises ``UnansweredError``."""
    kind, content = server.client.page("/", ANSWER)
    page, size = _Page(content.decode("utf-8", "replace")), len(content)
    if not kind.startswith("text/html") or "script" not in page.text:
        raise UnansweredError(
            f"GET /: no page with a script, but {kind[:SHOWN]}: {content[:SHOWN]!r}"
        )
    own = {urljoin("/", name): each for name, each in page.parts.items() if not OTHER.match(name)}
    for path, wanted in list(own.items())[:MOST_PARTS]:
        kind, content = server.client.page(path, ANSWER)
        if wanted not in kind or not content:
            raise UnansweredError(f"GET {path[:SHOWN]}: {len(content)} bytes of type {kind!r}")
        size += len(content)
    title = f"{page.text['title'][:SHOWN]!r}, " if page.text.get("title") else ""
    return f"{title}{len(own)} scripts and styles, {sizes.shown(size)}"


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


# Check on a GPU: the right device, the model on it, and a speed that does not collapse.

LOADING = 900.0  # seconds for a real model
REAL_CONTEXT = 8192


def check_gpu(context: Context) -> Iterator[Check]:
    """Start the server with all GPUs; check the devices, the model's place, and the speed."""
    recipe, gpu_test = context.recipe, context.subject.gpu_test
    if recipe.serve is None or recipe.image.port is None or gpu_test is None:
        return
    model, size = gpu_test.model, REAL_CONTEXT
    if model is None:
        model, size = test_model(recipe.serve, context.work), CONTEXT
    spec = ServeSpec(model, size, gpu_test.draft, gpus=gpus.ALL, verbose=True, limited=False)
    try:
        with launched(context.subject.reference, recipe.serve, recipe.image.port, spec) as server:
            driver = recipe.cuda.driver or driver_of(context.contents)
            yield from _devices(gpus.visible_in(server.container), recipe, driver)
            yield from on_gpu(server, recipe.serve, gpu_test)
    except UntriedError as error:
        yield Check.untried("gpu", "a server with a GPU", "is started", error)


def _devices(found: Sequence[gpus.Gpu], recipe: Recipe, oldest: str | None) -> Iterator[Check]:
    wanted = sorted({str(Capability.of_arch(arch)) for arch in recipe.cuda.arch})
    names = ", ".join(f"{gpu.name} ({gpu.capability})" for gpu in found) or "none"
    right = any(gpu.capability in wanted for gpu in found)
    yield Check.of("gpu", "device", f"compute capability {' or '.join(wanted)}", names, right)
    if oldest is not None and found:
        known, expected = filter(None, (gpu.driver for gpu in found)), f"{oldest} or newer"
        if version := min(known, key=gpus.version_numbers, default=""):
            enough = not gpus.is_older(version, oldest)
            yield Check.of("gpu", "driver", expected, version, enough)
        else:
            why = "nvidia-smi does not know the driver's version"
            yield Check.untried("gpu", "driver", expected, why)


def on_gpu(server: Server, serve: Serve, gpu_test: GpuTest) -> Iterator[Check]:
    """The start, the model's place, and the speed."""
    patience = serve.seconds if gpu_test.model is None else LOADING
    if serve.refuses is not None:
        yield from refuses(server, patience, "gpu")
        return
    yield (started := starts(server, patience, kind="gpu"))
    if started.passed and not server.api_flavor.generates:
        yield answered(server, request_of(server), "gpu")
    elif started.passed:
        yield placed(server)
        yield from collapse(server, gpu_test.settings)


def placed(server: Server, kind: str = "gpu", subject: str = "model") -> Check:
    """Whether the weights are on the GPU, by the server's own report."""
    if server.api_flavor.device_page is None:
        models = offloaded(server.container.log())
        found = "; ".join(map(str, models)) or "its log does not mention offloaded layers"
        whole = bool(models) and all(each.layers == each.of for each in models)
    else:
        try:
            page = server.client.get(server.api_flavor.device_page, DevicePage, 30.0)
            found, whole = f"it runs on {page.backend}", page.backend == "cuda"
        except UnansweredError as error:
            found, whole = str(error), False
    return Check.of(kind, subject, "all of it on the GPU", found, whole)


def collapse(server: Server, settings: RunSettings) -> Iterator[Check]:
    """The collapse test: later runs must not be slower, nor the draft's acceptance drop."""
    expected = f"{settings.runs} runs, later ones as fast as earlier ones"
    try:
        _, runs = measure(server.client, server.api_flavor, settings)
        yield from check_runs(runs, expected)
    except UnansweredError as error:
        yield Check.of("gpu", "speed over runs", expected, str(error), False)


def check_runs(runs: Sequence[Generation], expected: str) -> Iterator[Check]:
    """The speeds and the acceptance of runs, in their order."""
    speeds = [run.tokens_per_second for run in runs]
    found = series.evaluate(speeds)
    listed = " ".join(f"{speed:.1f}" for speed in speeds)
    figures = (
        f"{found.shape}: {found.why}; mean {found.mean:.2f} t/s, "
        f"{found.lowest:.2f} to {found.highest:.2f}, deviation {found.deviation:.2f}, "
        f"{found.shown_trend} ({listed})"
    )
    yield Check.of("gpu", "speed over runs", expected, figures, found.passed)
    shares = [run.acceptance for run in runs if run.acceptance is not None]
    if shares:
        accepted = series.evaluate_acceptance(shares)
        listed = " ".join(f"{share:.2f}" for share in shares)
        share = f"{accepted.shape}: {accepted.why} ({listed})"
        yield Check.of("gpu", "draft acceptance over runs", "does not drop", share, accepted.passed)
