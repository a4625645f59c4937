"""Runs one prompt against a server, and times every answer by the server's own clock."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from builder.checks.server import (
    CHARACTERS,
    ServerClient,
    ServerTimings,
    StreamedAnswer,
    UnansweredError,
    Usage,
    filler,
)
from builder.core.log import Log
from builder.engines.servers import ApiFlavor
from builder.presets.schema import Generation

# Published benchmarks of local models use this task; the wording is ours.
PROMPT = (
    "Write Space Invaders as one HTML file that runs in a browser as it is: canvas and plain "
    "JavaScript, no libraries. A cannon that moves with the arrow keys and fires with the space "
    "bar, rows of invaders that march and come down, shields that crumble, a score, three lives, "
    "and a new wave when the last invader is gone. Answer with the code only."
)
# vLLM's counters (docs: usage/metrics.md); its answers do not contain them.
DRAFTED = re.compile(r"^vllm:spec_decode_num_draft_tokens(?:_total)?(?:\{[^}]*\})? (\S+)", re.M)
ACCEPTED = re.compile(r"^vllm:spec_decode_num_accepted_tokens(?:_total)?(?:\{[^}]*\})? (\S+)", re.M)
METRICS_TIMEOUT = 10.0  # seconds


@dataclass(frozen=True, slots=True)
class RunSettings:
    """The prompt, the sampling, and the number of runs."""

    prompt: str = PROMPT
    tokens: int = 2000
    """Most tokens of one answer."""
    temperature: float = 0.6
    top_k: int = 20
    min_p: float = 0.0
    seed: int = 1
    """The first run's; each later run adds 1."""
    warm_ups: int = 2
    runs: int = 10
    fill: int = 0
    """Approximate number of tokens of other text before the prompt."""
    seconds: float = 900.0
    """Time limit of one answer."""


def measure(
    client: ServerClient,
    api_flavor: ApiFlavor,
    settings: RunSettings,
    *,
    model: str = "",
    log: Log = lambda _: None,
) -> tuple[list[Generation], list[Generation]]:
    """The warm-ups, and the runs; one log line for each.  Raises ``UnansweredError``."""
    done: list[Generation] = []
    for number in range(settings.warm_ups + settings.runs):
        run = generate(client, api_flavor, settings, settings.seed + number, model)
        done.append(run)
        warm = number < settings.warm_ups
        name = f"warm-up {number + 1}" if warm else f"run {number - settings.warm_ups + 1}"
        log(f"  {name}: {run.tokens_per_second:.2f} t/s, {run.tokens} tokens{_drafts(run)}")
    return done[: settings.warm_ups], done[settings.warm_ups :]


def _drafts(run: Generation) -> str:
    share = run.acceptance
    return "" if share is None else f", {run.accepted} of {run.drafted} drafted ({share:.0%})"


def generate(
    client: ServerClient, api_flavor: ApiFlavor, settings: RunSettings, seed: int, model: str = ""
) -> Generation:
    """One answer; raises ``UnansweredError`` if it is missing or incomplete."""
    before = _counters(client)
    stream = client.stream(api_flavor.chat, _body(settings, seed, model), settings.seconds)
    if not stream.finished:
        raise UnansweredError(f"the answer ended early, after {len(stream.events)} pieces")
    after = _counters(client)
    if before is None or after is None:
        return timed(stream, seed)
    return timed(stream, seed, (after[0] - before[0], after[1] - before[1]))


def _body(settings: RunSettings, seed: int, model: str) -> dict[str, Any]:
    body: dict[str, Any] = {
        "messages": [{"role": "user", "content": filling(settings.fill) + settings.prompt}],
        "max_tokens": settings.tokens,
        "temperature": settings.temperature,
        "top_k": settings.top_k,
        "min_p": settings.min_p,
        "seed": seed,
        "stream": True,
        "stream_options": {"include_usage": True},
        "cache_prompt": False,  # llama.cpp: no run reuses the prompt of another
    }
    return body | ({"model": model} if model else {})


def filling(tokens: int) -> str:
    """Text of about that many tokens, without long repetitions."""
    return filler(tokens * CHARACTERS) + ("\n\n" if tokens else "")


def timed(stream: StreamedAnswer, seed: int, drafts: tuple[int, int] | None = None) -> Generation:
    """The speed of a streamed answer, by the server's timings, else by the client's clock.

    llama.cpp's servers send ``timings`` with the last piece (tools/server/server-task.cpp,
    ``result_timings``).  Raises ``UnansweredError`` for an answer without tokens.
    """
    answers = [event.data for event in stream.events]
    timings = next((each.timings for each in reversed(answers) if each.timings), ServerTimings())
    usage = next((each.usage for each in reversed(answers) if each.usage), Usage())
    pieces = [event.at for event in stream.events if event.data.text]
    tokens = timings.predicted_n or usage.completion_tokens or len(pieces)
    if tokens == 0:
        raise UnansweredError("the answer has no tokens")
    speed = timings.predicted_per_second
    drafted, accepted = drafts or (timings.draft_n, timings.draft_n_accepted)
    return Generation(
        tokens=tokens,
        tokens_per_second=speed if speed else _client_speed(tokens, pieces, stream.seconds),
        prompt_tokens=usage.prompt_tokens or timings.prompt_n or 0,
        seconds=round(stream.seconds, 3),
        seed=seed,
        prompt_tokens_per_second=timings.prompt_per_second or None,
        drafted=drafted,
        accepted=accepted,
        timed_by="server" if speed else "client",
    )


def _client_speed(tokens: int, pieces: list[float], seconds: float) -> float:
    """Tokens per second from the first piece to the last; with one piece, over the request."""
    between = pieces[-1] - pieces[0] if len(pieces) > 1 else 0.0
    return (tokens - 1) / between if between > 0 else tokens / max(seconds, 1e-6)


def _counters(client: ServerClient) -> tuple[int, int] | None:
    """Drafted and accepted tokens since the server started; None if it does not count them."""
    try:
        page = client.text("/metrics", METRICS_TIMEOUT)
    except UnansweredError:
        return None
    drafted, accepted = DRAFTED.findall(page), ACCEPTED.findall(page)
    if not drafted or not accepted:
        return None
    try:
        return int(sum(map(float, drafted))), int(sum(map(float, accepted)))
    except (ValueError, OverflowError):  # no numbers, or infinite ones
        return None
