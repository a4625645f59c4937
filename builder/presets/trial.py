"""One trial: a server on simulated cards with one context, and a request that fills it."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from builder.checks.client import UnansweredError
from builder.checks.fill import fill
from builder.checks.run import Simulation
from builder.checks.server import (
    ENDING,
    NotReadyError,
    NotServingError,
    Server,
    ServeSpec,
    launched,
    offloaded,
)
from builder.checks.simulated import SimulatedServer
from builder.core.errors import SmokeError, UntriedError
from builder.engines.logs import StatedLog
from builder.presets.cards import Card
from builder.presets.checkpoint import Checkpoint
from builder.presets.hollow import HollowModel
from builder.presets.results import CardPeak, FitTrial, Refused
from simulator import frames, memory
from simulator.demangle import function_of
from simulator.figures import mib
from simulator.frames import Frame
from simulator.report import Report

LEAST_SHARE = 0.01  # of the weights that is on the card: an engine may keep experts on the host
LAUNCH = "it answered, although the card refused a launch"
# Functions of ggml that allocate for others: their callers show the purpose.
ALLOCATORS = (
    "ggml_cuda_device_malloc",
    "ggml_backend_cuda_buffer_type_alloc_buffer",
    "ggml_backend_buft_alloc_buffer",
    "ggml_backend_alloc_ctx_tensors",
    "ggml_cuda_pool",
    "ggml_backend_cuda_host",
)


@dataclass(frozen=True, slots=True)
class FitRequest:
    """The models as ``models.location`` reads them, the cards, and the sizes of the context."""

    model: str
    draft: str | None
    projector: str | None
    cards: Sequence[Card]
    contexts: Sequence[int]
    """In tokens; empty: some that are usual, or the model's maximum for engines from wheels."""
    options: Sequence[str] = ()
    search: bool = True
    seconds: float = 900.0


@dataclass(frozen=True, slots=True)
class Target:
    """An image's server, and the models that it serves on the cards of a request."""

    server: SimulatedServer
    request: FitRequest
    model: HollowModel | Checkpoint
    draft: HollowModel | None
    projector: HollowModel | None
    files: Mapping[str, Path]
    """Copies of the image's files with device code, by path."""


def attempt(target: Target, context: int, work: Path) -> FitTrial:
    """Start the server with this context and fill it; ``work`` is an empty directory.

    Raises ``UntriedError`` where it ends, or never gets ready, for another reason than memory;
    ``SmokeError`` where it does not use the cards, or does not load the model's weights there.
    """
    started = time.monotonic()
    header = target.model.header if isinstance(target.model, HollowModel) else None
    with target.server.on(target.request.cards, header, work) as simulation:
        found = _served(target, context, simulation)
    require_weights(found, target.server.reference, target.model.weights)
    return found.model_copy(update={"seconds": round(time.monotonic() - started, 1)})


def _served(target: Target, context: int, simulation: Simulation) -> FitTrial:
    request, folder = target.request, target.server.folder
    made_up = folder.dummy if folder is not None and not target.model.size else ()
    spec = ServeSpec(
        target.model.file,
        context,
        target.draft.file if target.draft else None,
        [*made_up, *request.options],
        simulator=simulation.mounts,
        verbose=True,
        limited=False,
        projector=target.projector.file if target.projector else None,
        compiles=isinstance(target.model, Checkpoint),
    )
    image = target.server
    with launched(image.reference, image.serve, image.port, spec) as server:
        filled, fault, log, slow = 0, "", "", False
        try:
            server.wait(request.seconds)
            log = server.container.log()  # a request follows, which fills it
            if not _left_behind(log):
                filled = fill(server, context)
                server.require_running()
        except (NotServingError, UnansweredError) as error:
            fault = _fault(server, error)
            log = continued(log, server.container.end_of_log()) if log else server.container.log()
            slow = isinstance(error, NotReadyError) and fault == str(error)
        report = simulation.settled()
    if slow and not (report and report.failed):
        raise UntriedError(
            f"the engine is not ready to serve {context} tokens in {request.seconds:g} s",
            fault,
            "give it more time: --seconds; or change its options, after --",
        )
    if report is None:
        raise _unused(target, fault)
    stacks = frames.named(report, target.files.get)
    read = folder.read_log(log) if folder else log
    return evaluate(report, stacks, context, fault, read).model_copy(update={"filled": filled})


def continued(log: str, end: str) -> str:
    """A log with those lines of its later end that it does not have: figures are stated once."""
    known = {*log.splitlines()}
    return "\n".join([log, *(line for line in end.splitlines() if line not in known)])


def _fault(server: Server, error: Exception) -> str:
    """Why a server did not answer; where it has ended, its own last words."""
    try:
        server.require_running(ENDING)
    except NotServingError as ended:
        return str(ended)
    return str(error)


def evaluate(
    report: Report,
    stacks: Sequence[Sequence[Frame]],
    context: int,
    fault: str,
    log: str | StatedLog,
) -> FitTrial:
    """The trial by the report of a server that ended with ``fault``; empty: it answered.

    ggml's pool frees its buffers after a refusal, and asks again (ggml-org/llama.cpp#22155), and so
    does PyTorch: a refusal counts only where the server ended, or did not answer.

    ``stacks`` are the report's, named.  ``log`` is the server's when it was ready; of PyTorch's
    what it states: the memory by kind, and that the server serves less than it was asked for.
    Raises ``UntriedError`` for a fault, or a refused launch, although the cards had room for all.
    """
    if report.violations and not fault:
        raise _broken(report, stacks, context, LAUNCH)
    refused, estimate, stated = None, None, ""
    if isinstance(log, str):
        kinds, of_cards = _by_kind(report, stacks), []
        for number in range(len(report.cards)):
            own = tuple(each for each in report.allocations if each.card == number)
            of_cards.append(_by_kind(report.model_copy(update={"allocations": own}), stacks))
        refused = _refused(report, stacks) if fault else None
        if fault and refused is None:
            raise _broken(report, stacks, context, fault)
        why = f"no room: {refused}" if refused else _left_behind(log)
        answered = not fault
    else:
        if fault and not log.no_room:
            raise _broken(report, stacks, context, log.error or fault)
        kinds = memory.with_rest(report, log.kinds)
        of_cards = [kinds] if len(report.cards) == 1 else [{}] * len(report.cards)
        answered = not fault and log.longest is None
        why = "" if answered else f"no room: {log.no_room}"
        estimate, stated = None if answered else log.longest or 0, log.text
    return FitTrial(
        context=context,
        fits=not why,
        why=why,
        cards=tuple(
            CardPeak(**card.model_dump(exclude={"used"}), by_kind=own)
            for card, own in zip(report.cards, of_cards, strict=True)
        ),
        by_kind=kinds,
        refused=refused,
        estimate=estimate,
        stated=stated,
        retried=len(report.failed) if answered else 0,
        launches=report.launched,
        paths=report.paths,
    )


def _by_kind(report: Report, stacks: Sequence[Sequence[Frame]]) -> dict[str, int]:
    return {kind: use.at_peak for kind, use in memory.by_kind(report, stacks).items()}


def _refused(report: Report, stacks: Sequence[Sequence[Frame]]) -> Refused | None:
    if not report.failed:
        return None
    last = report.failed[-1]
    stack = stacks[last.stack]
    return Refused(
        requested=last.requested,
        free=last.free,
        card=report.cards[last.card].name,
        function=frames.caller_of(stack, ALLOCATORS),
        kind=memory.kind_of(stack),
    )


def require_weights(found: FitTrial, reference: str, weights: int) -> None:
    """Raise ``SmokeError`` where a trial fits because the weights are not on the cards.

    ``weights`` are the bytes of the model's tensors.  Memory for an unknown purpose may be weights.
    """
    loaded = sum(found.by_kind.get(kind, 0) for kind in ("weights", "other"))
    if not found.fits or loaded >= weights * LEAST_SHARE:
        return
    raise SmokeError(
        f"{reference} does not load this model",
        f"the engine put {mib(loaded)} of {mib(weights)} of weights on the card",
        "choose an engine that runs the model; leave out options that keep weights on the host",
    )


def _left_behind(log: str) -> str:
    """How many layers the engine left to the CPU by itself; empty for none."""
    short = [found for found in offloaded(log) if found.layers != found.of]
    return f"only {short[0].layers} of {short[0].of} layers are on the card" if short else ""


def _unused(target: Target, fault: str) -> SmokeError | UntriedError:
    reference = target.server.reference
    if fault:
        return UntriedError(
            f"{reference} does not start with {target.model.file.name} and these options",
            fault,
            f"`docker run --rm {reference} --help` lists the engine's options",
        )
    return SmokeError(
        f"{reference} does not use the card",
        "it answers, and called no function of CUDA",
        "check the engine's options: some run on the CPU",
    )


def _broken(
    report: Report, stacks: Sequence[Sequence[Frame]], context: int, fault: str
) -> UntriedError:
    """A server that ended, or did not answer, although the cards had room for all."""
    why = [fault]
    why += [
        f"the card refuses {function_of(each.kernel)}: {each.why}" for each in report.violations
    ]
    why += [
        f"not simulated: {each.function} by {frames.caller_of(stacks[each.stack])}"
        for each in report.unsupported
    ]
    return UntriedError(
        f"the engine did not serve {context} tokens, for another reason than memory",
        "\n".join(why),
        "change the engine's options, after --; `builder smoke` tries its image with a test model",
    )
