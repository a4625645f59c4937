"""All trials of a model on cards: the requested contexts, then the search for the largest."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

from builder.build.build import BuildSession
from builder.build.lookup import Images
from builder.checks import server as serving
from builder.checks.simulated import STAND_INS, SimulatedServer, Simulation
from builder.core.errors import RecipeError, SmokeError, UntriedError
from builder.core.files import workspace
from builder.core.log import Log
from builder.docker import containers
from builder.docker.containers import blobs_of, copy_all_out
from builder.engines.families import ENGINES, complete
from builder.engines.layout import LAYOUT
from builder.engines.logs import READERS, StatedLog
from builder.engines.servers import API_FLAVORS
from builder.image.contents import Contents, ReadOptions, read_contents
from builder.presets import command
from builder.presets.cards import Card
from builder.presets.command import option_of
from builder.presets.hollow import HollowModel, write_checkpoint, write_hollow
from builder.recipes.probes import Serve
from builder.recipes.schema import Recipe
from simulator.report import (
    Frame,
    Report,
    by_kind,
    caller_of,
    kind_of,
    mib,
    named,
    peaks,
    with_rest,
)
from simulator.selection import Capability
from simulator.work import WorkPath, function_of

# The result of a trial of one context, and all trials of a model on cards; as JSON.


class _Part(BaseModel):
    """The base class; sizes are bytes."""

    model_config = ConfigDict(frozen=True)


class CardPeak(_Part):
    """The most memory that was in use on one card."""

    name: str
    memory: int
    context: int  # the CUDA context's own memory, which is part of the peak
    peak: int
    by_kind: dict[str, int] = {}  # the memory by kind, when it was at its peak


class Refused(_Part):
    """An allocation for which a card had no room."""

    requested: int
    free: int
    card: str
    function: str
    """The function of the engine that asked for it; FILE+0xOFFSET where no symbol names it."""
    kind: str  # its purpose: weights, KV cache, compute, drafter, projector or other

    def __str__(self) -> str:
        return f"{mib(self.requested)} for {self.kind} by {self.function}, {mib(self.free)} free"


class FitTrial(_Part):
    """An engine's start with one context, and a long request."""

    context: int
    fits: bool
    why: str = ""  # why it does not fit
    cards: tuple[CardPeak, ...] = ()
    by_kind: dict[str, int] = {}
    refused: Refused | None = None
    """The last allocation that a card refused, where the context does not fit."""
    retried: int = 0
    """Refused allocations after which the engine freed memory, asked again, and answered."""
    estimate: int | None = None
    """The largest context by the engine's own estimate, in tokens, where this one does not fit; 0:
    none fits; None: the engine makes none."""
    stated: str = ""
    """What the engine's log states of its memory; empty for llama.cpp's, whose allocations tell."""
    filled: int = 0  # tokens of the long prompts that were answered
    launches: int = 0
    paths: tuple[WorkPath, ...] = ()
    seconds: float = 0.0

    @property
    def needed(self) -> int | None:
        """The least memory of the card that refused an allocation; None where none did."""
        if self.refused is None:
            return None
        memory = next(card.memory for card in self.cards if card.name == self.refused.card)
        return memory - self.refused.free + self.refused.requested

    @property
    def is_filled(self) -> bool:
        """Whether the long prompts filled the context, but for a part that no engine allocates
        for."""
        return self.filled >= serving.FILLED * self.context

    @property
    def peak(self) -> int:
        """The peak of all cards together."""
        return sum(card.peak for card in self.cards)

    @property
    def share(self) -> float:
        """The share that is in use of the card that is fullest."""
        return max((card.peak / card.memory for card in self.cards), default=0.0)


class Fit(_Part):
    """All trials of a model on cards, by context."""

    recipe: str
    image: str
    digest: str
    model: dict[str, Any]
    """A file that the engine loads, split ones counted as one: name, size, architecture, context,
    and how many bytes of it were read."""
    draft: dict[str, Any] | None = None
    projector: dict[str, Any] | None = None
    cards: tuple[dict[str, Any], ...]  # name, memory, and the figures without a source
    options: tuple[str, ...] = ()  # the engine's arguments after the recipe's
    room: tuple[str, ...] = ()
    """The engine's options by which a longer context fits into its KV cache."""
    trials: tuple[FitTrial, ...]
    largest: int | None = None
    step: int | None
    seconds: float = 0.0


# One trial: a server on simulated cards with one context, and a request that fills it.

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
    """The models as ``presets.models`` reads them, the cards, and the sizes of the context."""

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
    model: HollowModel
    draft: HollowModel | None
    projector: HollowModel | None
    files: Mapping[str, Path]  # copies of the image's files with device code, by path


def _served(target: Target, context: int, simulation: Simulation) -> FitTrial:
    request, folder = target.request, target.server.folder
    made_up = folder.dummy if folder is not None and not target.model.size else ()
    spec = serving.ServeSpec(
        target.model.file,
        context,
        target.draft.file if target.draft else None,
        [*made_up, *request.options],
        simulator=simulation.mounts,
        verbose=True,
        limited=False,
        projector=target.projector.file if target.projector else None,
        compiles=target.model.header is None,
    )
    image = target.server
    with serving.launched(image.reference, image.serve, image.port, spec) as server:
        filled, fault, log, slow = 0, "", "", False
        try:
            server.wait(request.seconds)
            log = server.container.log()  # a request follows, which fills it
            if not _left_behind(log):
                filled = serving.fill(server, context)
                server.require_running()
        except (serving.NotServingError, serving.UnansweredError) as error:
            fault = _fault(server, error)
            log = continued(log, server.container.end_of_log()) if log else server.container.log()
            slow = isinstance(error, serving.NotReadyError) and fault == str(error)
        report = simulation.settled()
    if slow and not (report and report.failed):
        raise UntriedError(
            f"the engine is not ready to serve {context} tokens in {request.seconds:g} s",
            fault,
            "give it more time: --timeout; or change its options, after --",
        )
    if report is None:
        raise _unused(target, fault)
    stacks = named(report, target.files.get)
    read = READERS[folder.log](log) if folder else log
    return evaluate(report, stacks, context, fault, read).model_copy(update={"filled": filled})


def continued(log: str, end: str) -> str:
    """A log with those lines of its later end that it does not have: figures are stated once."""
    known = {*log.splitlines()}
    return "\n".join([log, *(line for line in end.splitlines() if line not in known)])


def _fault(server: serving.Server, error: Exception) -> str:
    try:
        server.require_running(serving.ENDING)
    except serving.NotServingError as ended:
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
        kinds, of_cards = peaks(by_kind(report, stacks)), []
        for number in range(len(report.cards)):
            own = tuple(each for each in report.allocations if each.card == number)
            of_cards.append(peaks(by_kind(report.model_copy(update={"allocations": own}), stacks)))
        refused = _refused(report, stacks) if fault else None
        if fault and refused is None:
            raise _broken(report, stacks, context, fault)
        why = f"no room: {refused}" if refused else _left_behind(log)
        answered = not fault
    else:
        if fault and not log.no_room:
            raise _broken(report, stacks, context, log.error or fault)
        kinds = with_rest(report, log.kinds)
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


def _refused(report: Report, stacks: Sequence[Sequence[Frame]]) -> Refused | None:
    if not report.failed:
        return None
    last = report.failed[-1]
    stack, card = stacks[last.stack], report.cards[last.card].name
    function, kind = caller_of(stack, ALLOCATORS), kind_of(stack)
    return Refused(
        requested=last.requested, free=last.free, card=card, function=function, kind=kind
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
    short = [found for found in serving.offloaded(log) if found.layers != found.of]
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
        f"not simulated: {each.function} by {caller_of(stacks[each.stack])}"
        for each in report.unsupported
    ]
    return UntriedError(
        f"the engine did not serve {context} tokens, for another reason than memory",
        "\n".join(why),
        "change the engine's options, after --; `builder smoke` tries its image with a test model",
    )


# The search for the largest context that fits.

STEP = 1024  # tokens: the granularity of the search
SMALLEST = 1024


def search_contexts(
    tried: dict[int, FitTrial], attempt: Callable[[int], FitTrial], longest: int
) -> int | None:
    """The largest context that fits, to ``STEP`` tokens; None where not even the smallest does.

    It takes larger contexts than one that does not fit for ones that do not fit either.  The
    model's own maximum, ``longest``, is tried first.  ``tried`` gets each trial of ``attempt``.
    """
    stride, last = 0, 0
    while True:
        low, high = _bounds(tried)
        if high is None:
            if low >= longest:
                return low
            tried[longest] = attempt(longest)
            continue
        if high - low <= STEP or high <= SMALLEST:
            return low or None
        middle = (low + high) // 2
        guess = _predicted(tried)
        if stride:  # away from the prediction, in strides that grow until they halve
            fits = tried[last].fits
            middle = min(low + stride, middle) if fits else max(high - stride, middle)
        elif guess is not None:
            middle = guess
        stride = max(2 * stride, STEP) if guess is not None else 0
        last = _within(middle, low, high)
        tried[last] = attempt(last)


def _bounds(tried: Mapping[int, FitTrial]) -> tuple[int, int | None]:
    """The largest context that fits, 0 for none, and the smallest beyond it that does not; by an
    engine's own estimate, the one after the estimate does not."""
    low = max((context for context, trial in tried.items() if trial.fits), default=0)
    failed = {context: trial for context, trial in tried.items() if not trial.fits}
    above = [*failed, *(trial.estimate + 1 for trial in failed.values() if trial.estimate)]
    return low, min((context for context in above if context > low), default=None)


def _within(context: int, low: int, high: int) -> int:
    rounded = context // STEP * STEP
    least = max((low // STEP + 1) * STEP, SMALLEST)
    return min(max(rounded, least), (high - 1) // STEP * STEP)


def _predicted(tried: Mapping[int, FitTrial]) -> int | None:
    """The engine's own estimate, or where the line through the two largest trials that fit meets
    the card's memory; None where a card was full, and the engine answered all the same."""
    estimates = [trial.estimate for trial in tried.values() if trial.estimate]
    if estimates:
        return min(estimates)
    fitting = sorted(context for context, trial in tried.items() if trial.fits)[-2:]
    if len(fitting) < 2 or any(tried[context].retried for context in fitting):
        return None
    (one, other), (first, second) = fitting, (tried[context].share for context in fitting)
    if second <= first:
        return None
    return int(other + (1 - second) / (second - first) * (other - one))


# The next step for a model that does not fit; whether another context can fit.

LAYERS = ("--n-gpu-layers", "--n_gpu_layers")
CACHE = ("--cache-type-k", "--cache-type-v", "--type_k", "--type_v")
"""Options of llama-server and of llama-cpp-python."""


def is_final(trial: FitTrial, options: Sequence[str]) -> bool:
    """Whether a trial decides for every context: the weights, or the user, leave no room for one.

    Engines load the weights first, and these are the same for every context.
    """
    if trial.fits:
        return False
    if trial.estimate is not None:
        return trial.estimate == 0
    if trial.refused is not None:
        return trial.refused.kind == "weights"
    return given_option(options, LAYERS) != ""


def advice(found: Fit) -> str:
    """The next step where no context fits; the smallest one is the most telling."""
    trial = found.trials[0]
    if trial.estimate is not None:
        free = " or ".join(each for each in found.room if not given_option(found.options, (each,)))
        steps = ["a smaller quantization", "a card with more memory"]
        steps += [f"{free} after --"] if free else []
        return f"take {', or '.join(steps)}"
    layers = given_option(found.options, LAYERS)
    if trial.refused is None and layers:
        return f"leave out {layers}: it keeps layers of the model from the card"
    if trial.refused is None or trial.refused.kind == "weights":
        return "take a smaller quantization, or more memory: --card may be given twice"
    steps = ["a smaller quantization"]
    if not given_option(found.options, CACHE):
        steps.append("a KV cache of another type (llama-server: -- --cache-type-k q8_0)")
    if found.step is None:
        steps.append("a smaller --context")
    return f"take {', or '.join(steps)}"


def given_option(options: Sequence[str], words: Sequence[str]) -> str:
    """The first of ``options`` that is one of ``words``, under any of its names; empty for none."""
    names = {option_of(word) for word in words} - {""}
    return next((word for word in options if option_of(word) in names), "")


# All trials of a model.

AT_ONCE = 2  # trials; each is mostly one thread of the engine
CONTEXTS = (32768, 65536, 131072, 262144)  # tokens: what is tried where nothing is asked for
LONGEST = 131072  # tokens: the search's upper end for a model whose header has none


class OptionError(ValueError):
    """An option of the engine cannot be given after ``--``."""


def fit(session: BuildSession, name: str, wanted: FitRequest) -> Fit:
    """Try a recipe's image with a model on simulated cards.

    Raises ``FetchError`` for a model that cannot be read, ``RecipeError`` for a recipe without a
    server, ``OptionError`` for options of the engine that are set already, and like a trial.
    """
    started = time.monotonic()
    session.settings.require_directories()
    containers.remove_orphans()
    require_one_capability(wanted.cards)
    entry = session.catalog.engines.get(name)
    if entry is not None and entry.recipe is not None:
        _server_of(session, complete(entry.recipe), wanted)  # before a user builds it for nothing
    image, recipe = Images(session).served(name)
    server = _server_of(session, recipe, wanted)
    require_free(wanted.options, recipe, wanted.draft)
    with workspace(session.settings.cache_dir) as work:
        target = _target(session, image.reference, recipe, server, wanted, work)
        longest = target.model.context or LONGEST
        # vLLM starts slowly, and says itself which context would fit.
        usual = CONTEXTS if target.model.header else (longest,)
        asked = sorted(wanted.contexts or usual)
        tried = _tried(target, asked, work, session.log)
        largest = max((context for context, trial in tried.items() if trial.fits), default=None)
        if wanted.search and not is_final(tried[asked[0]], wanted.options):
            trial = partial(_one, target, work=work, log=session.log)
            largest = search_contexts(tried, trial, longest)
    return Fit(
        recipe=recipe.name,
        image=image.reference,
        digest=image.digest,
        model=_facts(target.model),
        draft=_facts(target.draft) if target.draft else None,
        projector=_facts(target.projector) if target.projector else None,
        cards=tuple(
            each.model_dump(include={"name", "memory", "unverified"}) for each in wanted.cards
        ),
        options=tuple(wanted.options),
        room=target.server.folder.room if target.server.folder else (),
        trials=tuple(tried[context] for context in sorted(tried)),
        largest=largest,
        step=STEP if wanted.search else None,
        seconds=round(time.monotonic() - started, 1),
    )


def _facts(model: HollowModel) -> dict[str, Any]:
    names = ("name", "size", "read", "architecture", "context")
    return {name: getattr(model, name) for name in names}


def require_free(options: Sequence[str], recipe: Recipe, draft: str | None) -> None:
    """Raise ``OptionError`` for an option by which the recipe names a model or the context, or that
    sets the server's address, and for ``{draft}`` without a drafter."""
    for name in command.addresses(options):
        raise OptionError(f"{name} is set by fit: leave it out after --")
    if draft is None and any(serving.DRAFT in word for word in options):
        raise OptionError(
            f"{serving.DRAFT} stands for the file of --draft: add --draft, or leave it out"
        )
    set_by = command.places_by_setting(None, recipe)
    for first, *values in command.groups(options):
        setting = command.setting_of(first, recipe) if command.option_of(first) else ""
        place = set_by.get(setting) if setting else None
        if place and not any(serving.DRAFT in word for word in (first, *values)):
            name, ours = first.partition("=")[0], f"--{place}"
            raise OptionError(f"{name} is set by the {ours} of fit: leave it out after --")


def require_one_capability(cards: Sequence[Card]) -> None:
    """Raise ``RecipeError`` where cards take different code of an image: one table holds it."""
    if len({card.capability for card in cards}) > 1:
        raise RecipeError(
            "cards of different compute capabilities cannot be simulated together",
            ", ".join(f"{card.name}: {card.capability}" for card in cards),
            "choose cards of one compute capability, or try each alone",
        )


def require_code(cards: Sequence[Card], recipe: Recipe) -> None:
    """Raise ``RecipeError`` where a card is older than all code that a recipe asks for."""
    oldest = min(Capability.of_arch(arch) for arch in recipe.cuda.arch)
    for card in cards:
        if Capability.parse(card.capability) < oldest:
            raise RecipeError(
                f"the {card.name} does not run the code of {recipe.name}",
                f"it has compute capability {card.capability}; the oldest code of the recipe is "
                f"for {oldest}",
                f"choose a card of compute capability {oldest} or higher",
            )


def _server_of(session: BuildSession, recipe: Recipe, wanted: FitRequest) -> tuple[Serve, int, str]:
    serve, port = ENGINES[recipe.family].server_of(recipe), recipe.image.port
    if serve is None or port is None:
        raise RecipeError(
            f"{recipe.name} cannot be tried",
            "the recipe does not define how its server is started",
            "add [serve] and image.port to the recipe",
        )
    if wanted.draft is not None and not serve.draft:
        hint = "leave out --draft, or choose another engine: `builder list`"
        why = "its [serve] has no arguments for one"
        raise RecipeError(f"{recipe.name} takes no draft model", why, hint)
    if wanted.projector is not None and API_FLAVORS[serve.api_flavor].projector is None:
        raise RecipeError(f"{recipe.name} takes no multimodal projector", hint="leave out --mmproj")
    devel = session.resolve(recipe.name).devel
    if devel is None:
        raise RecipeError(
            f"{recipe.name} cannot be tried on a simulated card",
            "its base has no image to compile the simulated libraries in",
            "choose an engine that this farm compiles: `builder list`",
        )
    require_code(wanted.cards, recipe)
    return serve, port, devel


def _target(
    session: BuildSession,
    reference: str,
    recipe: Recipe,
    server: tuple[Serve, int, str],
    wanted: FitRequest,
    work: Path,
) -> Target:
    def hollowed(text: str | None, name: str) -> HollowModel | None:
        if text is None:
            return None
        return write_hollow(text, serving.shared_folder(work / name), session.log)

    folder = ENGINES[recipe.family].folder_of(recipe)
    write = write_hollow if folder is None else write_checkpoint
    model = write(wanted.model, serving.shared_folder(work / "model"), session.log)
    draft, projector = hollowed(wanted.draft, "draft"), hollowed(wanted.projector, "projector")
    cache = session.settings.cache_dir
    card = Capability.parse(wanted.cards[0].capability)
    session.log(f"reading {reference}")
    options = ReadOptions(card=card, code_outside=LAYOUT.cuda)
    contents = read_contents(blobs_of(reference, work), work, options, cache)
    simulated = SimulatedServer(reference, contents, *server, cache, session.log, folder)
    # Functions of PyTorch have no names in stacks: what asks for memory is Python.
    files = _copied(reference, contents, work) if folder is None else {}
    return Target(simulated, wanted, model, draft, projector, files)


def _copied(reference: str, contents: Contents, folder: Path) -> dict[str, Path]:
    """Copies of the image's files with device code, by path, without CUDA's own libraries, which
    are replaced."""
    paths = [
        file.path
        for file, parsed in contents.elves()
        if parsed.code and not file.shares and parsed.soname not in STAND_INS
    ]
    targets = {path: folder / f"{number}.elf" for number, path in enumerate(paths)}
    copy_all_out(reference, targets)
    return targets


def _tried(target: Target, asked: Sequence[int], work: Path, log: Log) -> dict[int, FitTrial]:
    """The contexts that were asked for, two at once; the smallest first and alone, so that a
    fault of all contexts is reported once."""
    first, *others = asked
    found = {first: _one(target, first, work, log)}
    if is_final(found[first], target.request.options):
        return found
    at_once = AT_ONCE if target.model.header else 1  # vLLM compiles on all cores
    with ThreadPoolExecutor(min(at_once, os.cpu_count() or 1)) as pool:
        trials = pool.map(partial(_one, target, work=work, log=log), others)
        return found | dict(zip(others, trials, strict=True))


def _one(target: Target, context: int, work: Path, log: Log) -> FitTrial:
    """Start the server with this context and fill it.

    Raises ``UntriedError`` where it ends, or never gets ready, for another reason than memory;
    ``SmokeError`` where it does not use the cards, or does not load the model's weights there.
    """
    started, folder = time.monotonic(), work / f"trial-{context}"
    folder.mkdir()
    with target.server.on(target.request.cards, target.model.header, folder) as simulation:
        found = _served(target, context, simulation)
    require_weights(found, target.server.reference, target.model.weights)
    found = found.model_copy(update={"seconds": round(time.monotonic() - started, 1)})
    outcome = f"fits, {mib(found.peak)} at the peak" if found.fits else "does not fit"
    if found.needed is not None:
        outcome += f", it needs at least {mib(found.needed)}"
    log(f"{context} tokens: {outcome} ({found.seconds:.1f} s)")
    return found
