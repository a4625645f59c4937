"""All trials of a model on cards: those that were asked for, then the search for the largest."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from builder.errors import RecipeError
from builder.families.layout import LAYOUT
from builder.fit import contexts
from builder.fit.advice import is_final
from builder.fit.options import require_free
from builder.fit.results import Fit, FitCard, ModelFile, Trial
from builder.fit.trial import Target, attempt
from builder.images import lookup
from builder.images.session import BuildSession
from builder.kernels.selection import Capability
from builder.models import hollow
from builder.models.hollow import Model
from builder.plan.resolve import complete
from builder.recipes.schema import Recipe, Serve
from builder.servers.api_flavor import API_FLAVORS
from builder.simulator import build, config
from builder.simulator.cards import Card
from builder.simulator.figures import mib
from builder.smoke import device, reading
from builder.smoke.wanted import Wanted as WantedContents
from builder.smoke.wanted import WantedCode
from builder.tools.docker import containers
from builder.tools.docker.blobs import blobs_of
from builder.tools.files import workspace
from builder.tools.log import Log

AT_ONCE = 2  # trials; each is mostly one thread of the engine
LONGEST = 131072  # tokens: the search's upper end for a model whose header has none


@dataclass(frozen=True, slots=True)
class Wanted:
    """What to fit: models as ``models.location`` reads them, cards, and sizes of the context."""

    model: str
    draft: str | None
    projector: str | None
    cards: Sequence[Card]
    contexts: str
    """As ``contexts.contexts_of`` reads them."""
    options: Sequence[str] = ()
    search: bool = True
    seconds: float = 600.0
    """Time limit until a server is ready."""


@dataclass(frozen=True, slots=True)
class _Server:
    """How a recipe's server is started; ``devel`` is its base's image to compile in."""

    serve: Serve
    port: int
    devel: str


@dataclass(frozen=True, slots=True)
class _Models:
    model: Model
    draft: Model | None
    projector: Model | None


def fit(session: BuildSession, name: str, wanted: Wanted) -> Fit:
    """Try a recipe's image with a model on simulated cards.

    Raises ``FetchError`` for a model that cannot be read, ``RecipeError`` for a recipe without a
    server, ``ContextError`` for contexts that cannot be read, ``OptionError`` for options of the
    engine that are set already, and like ``attempt``.
    """
    started = time.monotonic()
    session.settings.require_directories()
    containers.remove_orphans()
    require_one_capability(wanted.cards)
    entry = session.catalog.engines.get(name)
    if entry is not None and entry.recipe is not None:
        _server_of(session, complete(entry.recipe), wanted)  # before a user builds it in vain
    reference, image, recipe = lookup.served(session, name)
    server = _server_of(session, recipe, wanted)
    require_free(wanted.options, recipe)
    with workspace(session.settings.cache_dir) as work:
        models = _hollow(wanted, work, session.log)
        longest = models.model.header.of_architecture("context_length") or LONGEST
        asked = contexts.contexts_of(wanted.contexts, longest)
        target = _target(session, reference, server, wanted, models, work)
        tried = _tried(target, asked, work, session.log)

        def trial(context: int) -> Trial:
            return _one(target, context, work, session.log)

        largest = _largest(tried)
        if wanted.search and not is_final(tried[asked[0]], wanted.options):
            largest = contexts.search(tried, trial, longest)
    return Fit(
        recipe=recipe.name,
        image=reference,
        digest=image.digest,
        model=_described(models.model),
        draft=_described(models.draft) if models.draft else None,
        projector=_described(models.projector) if models.projector else None,
        cards=tuple(
            FitCard(name=card.name, memory=card.memory, unverified=dict(card.unverified))
            for card in wanted.cards
        ),
        options=tuple(wanted.options),
        trials=tuple(tried[context] for context in sorted(tried)),
        largest=largest,
        step=contexts.STEP if wanted.search else None,
        seconds=round(time.monotonic() - started, 1),
    )


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


def _server_of(session: BuildSession, recipe: Recipe, wanted: Wanted) -> _Server:
    """How the recipe's server is started.

    Raises ``RecipeError`` where it has none, it takes no such file, or it cannot be simulated.
    """
    serve, port = recipe.serve, recipe.image.port
    if serve is None or port is None:
        raise RecipeError(
            f"{recipe.name} cannot be tried",
            "the recipe does not define how its server is started",
            "add [serve] and image.port to the recipe",
        )
    if wanted.draft is not None and not serve.draft:
        raise RecipeError(
            f"{recipe.name} takes no draft model",
            "its [serve] has no arguments for one",
            "leave out --draft, or choose another engine: `builder list`",
        )
    if wanted.projector is not None and API_FLAVORS[serve.api_flavor].projector is None:
        raise RecipeError(f"{recipe.name} takes no multimodal projector", hint="leave out --mmproj")
    devel = session.resolve(recipe.name).base.references.get("devel")
    if devel is None:
        raise RecipeError(
            f"{recipe.name} cannot be tried on a simulated card",
            "its base has no image to compile the simulated libraries in",
            "choose an engine that this farm compiles: `builder list`",
        )
    require_code(wanted.cards, recipe)
    return _Server(serve, port, devel)


def _hollow(wanted: Wanted, work: Path, log: Log) -> _Models:
    """The models with holes for weights, each in a directory of its own."""

    def write(text: str, name: str) -> Model:
        folder = work / name
        folder.mkdir()
        return hollow.write(text, folder, log)

    return _Models(
        write(wanted.model, "model"),
        write(wanted.draft, "draft") if wanted.draft is not None else None,
        write(wanted.projector, "projector") if wanted.projector is not None else None,
    )


def _described(model: Model) -> ModelFile:
    header = model.header
    return ModelFile(
        name=model.file.name,
        size=model.size,
        read=model.read,
        architecture=header.architecture,
        context=header.of_architecture("context_length"),
    )


def _target(
    session: BuildSession,
    reference: str,
    server: _Server,
    wanted: Wanted,
    models: _Models,
    work: Path,
) -> Target:
    """The image with the simulator's libraries and configuration.

    Raises ``UntriedError`` where the engine lacks the base, or the image cannot be read.
    """
    cache = session.settings.cache_dir
    libraries = build.libraries(cache, server.devel, session.log)
    code = WantedCode(Capability.parse(wanted.cards[0].capability), outside=LAYOUT.cuda)
    session.log(f"reading {reference}")
    blobs = blobs_of(reference, work)
    contents = reading.read(blobs, work, WantedContents(code=code), cache)
    return Target(
        reference=reference,
        serve=server.serve,
        port=server.port,
        model=models.model.file,
        weights=models.model.weights,
        draft=models.draft.file if models.draft else None,
        projector=models.projector.file if models.projector else None,
        extra=wanted.options,
        libraries=libraries,
        configuration=config.files(wanted.cards, models.model.header, device.code_of(contents)),
        files=device.copied(reference, contents, work),
        search_path=device.search_path(contents, server.serve),
        preload=device.needs_preload(contents),
        seconds=wanted.seconds,
    )


def _tried(target: Target, asked: Sequence[int], work: Path, log: Log) -> dict[int, Trial]:
    """The contexts that were asked for, two at once; the smallest first and alone, so that what
    concerns all of them is reported once."""
    first, *others = asked
    found = {first: _one(target, first, work, log)}
    if is_final(found[first], target.extra):
        return found
    with ThreadPoolExecutor(min(AT_ONCE, os.cpu_count() or 1)) as pool:
        trials = pool.map(lambda context: _one(target, context, work, log), others)
        return found | dict(zip(others, trials, strict=True))


def _one(target: Target, context: int, work: Path, log: Log) -> Trial:
    folder = work / f"trial-{context}"
    folder.mkdir()
    found = attempt(target, context, folder)
    outcome = f"fits, {mib(found.peak)} at the peak" if found.fits else "does not fit"
    if found.needed is not None:
        outcome += f", it needs at least {mib(found.needed)}"
    log(f"{context} tokens: {outcome} ({found.seconds:.1f} s)")
    return found


def _largest(tried: dict[int, Trial]) -> int | None:
    return max((context for context, trial in tried.items() if trial.fits), default=None)
