"""The memory of Lucebox's server on a simulated card, as a row of studies/measurements.md.

    ./farm build lucebox-f12a87c
    .venv/bin/python studies/lucebox.py [--card CARD] [--size GB] [--context TOKENS...] [--json]

The smoke test cannot start it: its engine takes only a GGUF of Qwen3.5 or 3.6 27B, and wants its
drafter in safetensors.  Here both are sparse files of zeros: the target has the shape of Qwen3.6
27B, the drafter the tensors that dflash/src/safetensors_draft.cpp wants, with the sizes of
dflash/include/dflash27b.h.  A short prompt and one of nearly the whole context are answered.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from dataclasses import replace
from math import prod
from pathlib import Path

from pydantic import BaseModel

from builder.build.build import BuildSession
from builder.build.lookup import Images
from builder.checks import serves
from builder.checks.server import ServeSpec, launched
from builder.checks.simulated import SimulatedServer
from builder.cli.session import build_session
from builder.docker.containers import blobs_of
from builder.engines.layout import LAYOUT
from builder.image.contents import ReadOptions, read_contents
from builder.presets import cards, made_models, shapes
from builder.recipes.probes import Serve
from simulator import gguf
from simulator.report import Report, mib
from simulator.selection import Capability

RECIPE = "lucebox-f12a87c"
MODEL = "unsloth/Qwen3.6-27B-GGUF"
CONTEXTS = (16384, 131072, 262144)  # tokens; the first is server.py's default
HIDDEN, QUERIES, KEYS, FEED_FORWARD, HEAD, LAYERS, TAPPED = 5120, 4096, 1024, 17408, 128, 5, 5
TOKENIZER = "/tokenizer"
SECONDS = 900.0  # for an answer
SERVE = Serve(
    api_flavor="openai",
    arguments=["--target", "{model}", "--tokenizer", TOKENIZER, "--max-ctx", "{context}"],
    draft=["--draft", "{draft}"],
)


class Usage(BaseModel):
    """As in OpenAI's API; server.py counts no tokens of the prompt."""

    completion_tokens: int


class Answer(BaseModel):
    """A chat completion."""

    usage: Usage


def drafter_tensors() -> dict[str, list[int]]:
    """The shapes by name."""
    layer = {
        "input_layernorm": [HIDDEN],
        "post_attention_layernorm": [HIDDEN],
        "self_attn.q_proj": [QUERIES, HIDDEN],
        "self_attn.k_proj": [KEYS, HIDDEN],
        "self_attn.v_proj": [KEYS, HIDDEN],
        "self_attn.o_proj": [HIDDEN, QUERIES],
        "self_attn.q_norm": [HEAD],
        "self_attn.k_norm": [HEAD],
        "mlp.gate_proj": [FEED_FORWARD, HIDDEN],
        "mlp.up_proj": [FEED_FORWARD, HIDDEN],
        "mlp.down_proj": [HIDDEN, FEED_FORWARD],
    }
    whole = {"fc": [HIDDEN, TAPPED * HIDDEN], "hidden_norm": [HIDDEN], "norm": [HIDDEN]}
    for number in range(LAYERS):
        whole |= {f"layers.{number}.{name}": shape for name, shape in layer.items()}
    return {f"{name}.weight": shape for name, shape in whole.items()}


def simulated(session: BuildSession, card: cards.Card, work: Path) -> SimulatedServer:
    """The server of the recipe's image."""
    image, recipe = Images(session).served(RECIPE)
    options = ReadOptions(card=Capability.parse(card.capability), code_outside=LAYOUT.cuda)
    cache = session.settings.cache_dir
    contents = read_contents(blobs_of(image.reference, work), work, options, cache)
    port, devel = recipe.image.port, session.resolve(RECIPE).devel
    if port is None or devel is None:
        sys.exit(f"{RECIPE} has no port, or no base to compile in")
    return SimulatedServer(image.reference, contents, SERVE, port, devel, cache, session.log)


def measure(
    server: SimulatedServer, card: cards.Card, files: tuple[Path, Path, Path], context: int
) -> Report:
    """The report after both prompts; raises ``UnansweredError``."""
    model, draft, tokenizer = files
    with model.open("rb") as stream:
        header = gguf.read(stream)
    with tempfile.TemporaryDirectory(dir=model.parent) as name:
        work = Path(name)
        with server.on([card], header, work) as simulation:
            volumes = {**simulation.mounts.volumes, TOKENIZER: tokenizer}
            mounts = replace(simulation.mounts, volumes=volumes)
            spec = ServeSpec(model, context, draft, simulator=mounts, limited=False)
            with launched(server.reference, SERVE, server.port, spec) as found:
                found.wait(SECONDS)
                for text in ("Hello", "x" * (context - 1024)):  # a token for each character
                    message = {"role": "user", "content": text}
                    body = {"messages": [message], "max_tokens": 16}
                    answer = found.client.post("/v1/chat/completions", body, Answer, SECONDS)
                    if not answer.usage.completion_tokens:
                        sys.exit(f"{context} tokens: the answer is empty")
                report = simulation.settled()
    if report is None or report.failed or report.violations:
        refused = (report.failed, report.violations) if report else "it did not use the card"
        sys.exit(f"{context} tokens: {refused}")
    return report


def main() -> None:
    """Print the row, or JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--card", default="5090-laptop")
    parser.add_argument("--size", type=float, default=14.5, help="of the target, in GB")
    parser.add_argument("--context", type=int, nargs="+", default=CONTEXTS)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    session = build_session(None, platform="linux/amd64")
    card = cards.load(session.catalog.root, options.card)
    with tempfile.TemporaryDirectory() as name:
        work = Path(name)
        work.chmod(0o755)
        model, draft, tokenizer = work / "model.gguf", work / "draft.safetensors", work / "tokens"
        made_models.write_shape(shapes.published_shape()[MODEL], model, int(options.size * 10**9))
        tensors = drafter_tensors().items()
        holes = {each: ("BF16", shape, 2 * prod(shape)) for each, shape in tensors}
        serves.write_weights(draft, holes)
        for file in (model, draft):
            file.chmod(0o644)  # the image's own user reads them
        serves.write_model_folder(tokenizer)
        server = simulated(session, card, work)
        files = (model, draft, tokenizer)
        reports = {each: measure(server, card, files, each) for each in options.context}
    if options.json:
        peaks = {str(context): report.peak for context, report in reports.items()}
        print(json.dumps({"card": card.name, "memory": card.memory, "peaks": peaks}, indent=2))
        return
    tokens = ", ".join(f"{context:,}" for context in reports)
    peaks_text = ", ".join(mib(report.peak) for report in reports.values())
    print(
        f"| {RECIPE} on the simulated {card.name} ({mib(card.memory)}), with a Qwen3.6 27B of "
        f"{options.size:g} GB and its drafter in BF16: peak with {tokens} tokens | {peaks_text} |"
    )


if __name__ == "__main__":
    main()
