"""All trials of a model on cards: the requested contexts, then the search for the largest."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from builder.build.lookup import Images
from builder.build.session import BuildSession
from builder.checks import run
from builder.checks.server import DRAFT
from builder.checks.simulated import SimulatedServer
from builder.core.errors import RecipeError
from builder.core.files import workspace
from builder.core.log import Log
from builder.docker import containers, copies
from builder.docker.blobs import blobs_of
from builder.engines.api_flavor import API_FLAVORS
from builder.engines.families import ENGINES, complete
from builder.engines.layout import LAYOUT
from builder.image import reading
from builder.image.contents import Contents
from builder.image.options import ReadOptions
from builder.presets import checkpoint, command, contexts, hollow
from builder.presets.advice import is_final
from builder.presets.cards import Card
from builder.presets.hollow import HollowModel
from builder.presets.results import Fit, FitCard, FitTrial, LoadedFile
from builder.presets.service import OPTIONS_OF_PLACES
from builder.presets.trial import FitRequest, Target, attempt
from builder.recipes.probes import Serve
from builder.recipes.schema import Recipe
from simulator.figures import mib
from simulator.selection import Capability

AT_ONCE = 2  # trials; each is mostly one thread of the engine
CONTEXTS = (32768, 65536, 131072, 262144)  # tokens: what is tried where nothing is asked for
LONGEST = 131072  # tokens: the search's upper end for a model whose header has none


class OptionError(ValueError):
    """An option of the engine cannot be given after ``--``."""


def fit(session: BuildSession, name: str, wanted: FitRequest) -> Fit:
    """Try a recipe's image with a model on simulated cards.

    Raises ``FetchError`` for a model that cannot be read, ``RecipeError`` for a recipe without a
    server, ``OptionError`` for options of the engine that are set already, and like ``attempt``.
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
        usual = CONTEXTS if isinstance(target.model, HollowModel) else (longest,)
        asked = sorted(wanted.contexts or usual)
        tried = _tried(target, asked, work, session.log)
        largest = max((context for context, trial in tried.items() if trial.fits), default=None)
        if wanted.search and not is_final(tried[asked[0]], wanted.options):
            trial = partial(_one, target, work=work, log=session.log)
            largest = contexts.search(tried, trial, longest)
    return Fit(
        recipe=recipe.name,
        image=image.reference,
        digest=image.digest,
        model=LoadedFile.model_validate(target.model),
        draft=LoadedFile.model_validate(target.draft) if target.draft else None,
        projector=LoadedFile.model_validate(target.projector) if target.projector else None,
        cards=tuple(map(FitCard.model_validate, wanted.cards)),
        options=tuple(wanted.options),
        room=target.server.folder.room if target.server.folder else (),
        trials=tuple(tried[context] for context in sorted(tried)),
        largest=largest,
        step=contexts.STEP if wanted.search else None,
        seconds=round(time.monotonic() - started, 1),
    )


def require_free(options: Sequence[str], recipe: Recipe, draft: str | None) -> None:
    """Raise ``OptionError`` for an option by which the recipe names a model or the context, or that
    sets the server's address, and for ``{draft}`` without a drafter."""
    for name in command.addresses(options):
        raise OptionError(f"{name} is set by fit: leave it out after --")
    if draft is None and any(DRAFT in word for word in options):
        raise OptionError(f"{DRAFT} stands for the file of --draft: add --draft, or leave it out")
    set_by = command.places_by_setting(None, recipe)
    for first, *values in command.groups(options):
        setting = command.setting_of(first, recipe) if command.option_of(first) else ""
        place = set_by.get(setting) if setting else None
        if place and not any(DRAFT in word for word in (first, *values)):
            name, ours = first.partition("=")[0], OPTIONS_OF_PLACES[place]
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
    """How the recipe's server is started: with its port, and its base's image to compile in."""
    serve, port = ENGINES[recipe.family].server_of(recipe), recipe.image.port
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
    """The image with the simulator's libraries, and the models with holes for weights."""

    def made(name: str) -> Path:
        (work / name).mkdir()
        (work / name).chmod(0o755)  # the image's own user reads it
        return work / name

    def hollowed(text: str | None, name: str) -> HollowModel | None:
        return hollow.write(text, made(name), session.log) if text is not None else None

    folder = ENGINES[recipe.family].folder_of(recipe)
    write = hollow.write if folder is None else checkpoint.write
    model = write(wanted.model, made("model"), session.log)
    draft, projector = hollowed(wanted.draft, "draft"), hollowed(wanted.projector, "projector")
    cache = session.settings.cache_dir
    card = Capability.parse(wanted.cards[0].capability)
    session.log(f"reading {reference}")
    options = ReadOptions(card=card, code_outside=LAYOUT.cuda)
    contents = reading.read(blobs_of(reference, work), work, options, cache)
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
        if parsed.code and not file.shares and parsed.soname not in run.STAND_INS
    ]
    targets = {path: folder / f"{number}.elf" for number, path in enumerate(paths)}
    copies.copy_all_out(reference, targets)
    return targets


def _tried(target: Target, asked: Sequence[int], work: Path, log: Log) -> dict[int, FitTrial]:
    """The contexts that were asked for, two at once; the smallest first and alone, so that a
    fault of all contexts is reported once."""
    first, *others = asked
    found = {first: _one(target, first, work, log)}
    if is_final(found[first], target.request.options):
        return found
    at_once = AT_ONCE if isinstance(target.model, HollowModel) else 1  # vLLM compiles on all cores
    with ThreadPoolExecutor(min(at_once, os.cpu_count() or 1)) as pool:
        trials = pool.map(partial(_one, target, work=work, log=log), others)
        return found | dict(zip(others, trials, strict=True))


def _one(target: Target, context: int, work: Path, log: Log) -> FitTrial:
    folder = work / f"trial-{context}"
    folder.mkdir()
    found = attempt(target, context, folder)
    outcome = f"fits, {mib(found.peak)} at the peak" if found.fits else "does not fit"
    if found.needed is not None:
        outcome += f", it needs at least {mib(found.needed)}"
    log(f"{context} tokens: {outcome} ({found.seconds:.1f} s)")
    return found
