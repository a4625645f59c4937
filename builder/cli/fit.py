"""``builder fit``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from builder.cli.options import CatalogOption, JsonOption, contexts, known_cards, recipes
from builder.cli.terminal import filled, line, pairs, print_json, table
from builder.core import sizes
from builder.core.log import duration

if TYPE_CHECKING:
    from builder.presets.fit import Fit, FitTrial, LoadedFile

MODEL = "FILE|URL|REPO:FILE"
FOLDER = f"{MODEL}|FOLDER|REPO"
MEMORY = ("memory", "context")
"""The figures of a card that decide whether a model fits."""


def fit(
    target: Annotated[
        str,
        typer.Argument(
            metavar="RECIPE|IMAGE",
            autocompletion=recipes,
            help="A recipe, whose image is tried, or an image of a recipe.",
        ),
    ],
    options: Annotated[
        list[str] | None,
        typer.Argument(metavar="OPTION", help="More options for the engine, after --."),
    ] = None,
    *,
    model: Annotated[
        str,
        typer.Option(
            "--model",
            metavar=FOLDER,
            help="GGUF to try: a file, a URL, or a file of a repository on the Hugging Face Hub. "
            "For engines from wheels: a model folder, or a repository. No weights are read but "
            "their headers. HF_ENDPOINT and HF_TOKEN are used as by the Hub's client.",
        ),
    ],
    draft: Annotated[
        str | None,
        typer.Option("--draft", metavar=MODEL, help="Draft model for speculative decoding."),
    ] = None,
    mmproj: Annotated[
        str | None, typer.Option("--mmproj", metavar=MODEL, help="Multimodal projector.")
    ] = None,
    card: Annotated[
        list[str],
        typer.Option(
            "--card",
            metavar="CARD",
            autocompletion=known_cards,
            help="Card to simulate: 5090, 5090-laptop, 5060-ti-16gb, ... Twice: two cards.",
        ),
    ],
    context: Annotated[
        str | None,
        typer.Option(
            metavar="TOKENS[,...]",
            help="Sizes of the context to try; K is 1024, and 262K is 256K: 262144.",
            show_default="32K,64K,128K,262K; for engines from wheels the model's maximum",
        ),
    ] = None,
    search: Annotated[
        bool,
        typer.Option(
            "--search/--no-search",
            help="Search the largest context that fits, in steps of 1024 tokens.",
        ),
    ] = True,
    seconds: Annotated[
        float,
        typer.Option(metavar="SECONDS", min=1, help="Time limit until a server is ready."),
    ] = 900,
    catalog: CatalogOption = None,
    as_json: JsonOption = False,
) -> None:
    """Try how much context of a model fits on a card, without the card or the model.

    The recipe's image starts its real server on a simulated card, with the real header of the
    model and a hole for its weights. A long request follows, so that memory that is allocated at
    run time counts. For each context, the table has the peak by kind and the refused allocation.

    The exit code is 15 if no context fits, and 8 if the engine fails for another reason.
    """
    from builder.cli.session import build_session
    from builder.presets import cards
    from builder.presets.fit import FitRequest, OptionError
    from builder.presets.fit import fit as try_on_cards

    sizes_to_try = contexts(context) if context is not None else []
    # The simulated cards are for a PC.
    session = build_session(catalog, platform="linux/amd64")
    found_cards = [cards.load(session.catalog.root, name) for name in card]
    wanted = FitRequest(
        model, draft, mmproj, found_cards, sizes_to_try, tuple(options or ()), search, seconds
    )
    try:
        found = try_on_cards(session, target, wanted)
    except OptionError as error:
        raise typer.BadParameter(str(error), param_hint="OPTION") from error
    if as_json:
        print_json(found.model_dump(mode="json"))
    else:
        _print(found)
    require_fits(found)


def require_fits(found: Fit) -> None:
    """Raise ``FitError`` where no context that was tried fits."""
    from builder.core.errors import FitError
    from builder.presets.fit import advice

    if found.largest is None:
        raise FitError(
            f"{found.model.name} does not fit on {_cards(found)}",
            found.trials[0].why,
            advice(found),
        )


def _print(found: Fit) -> None:
    kinds = list(dict.fromkeys(kind for trial in found.trials for kind in trial.by_kind))
    places = ("card",) if len(found.cards) > 1 else ()
    header = ("context", "", *places, "peak", *kinds, "CUDA context", "why not")
    table(header, [row for trial in found.trials for row in _rows(trial, kinds)])
    unverified = {
        f"{card.name}: {', '.join(named)}": None
        for card in found.cards
        if (named := [figure for figure in MEMORY if figure in card.unverified])
    }
    line("")
    pairs(
        filled(
            {
                "largest": largest(found),
                "warning": warning(found),
                "model": _model(found.model),
                "draft model": _model(found.draft) if found.draft else "",
                "projector": _model(found.projector) if found.projector else "",
                "cards": _cards(found),
                "unverified": "; ".join(unverified),
                "engine's log": found.trials[-1].stated,
                "paths": _paths(found.trials),
                "took": duration(found.seconds),
            }
        )
    )


def largest(found: Fit) -> str:
    """The largest context that fits, and the reason that no larger one does."""
    if found.largest is None:
        return "none"
    refused = [each.context for each in found.trials if each.context > found.largest]
    if found.largest == found.model.context:
        why = "the model's maximum"
    elif refused:
        why = f"{refused[0]} does not fit"
    else:
        why = "the largest that was tried"
    return f"{found.largest} tokens: {why}"


def warning(found: Fit) -> str:
    """A warning about contexts that the model does not have, that were not filled, for which the
    card had just enough room, or that do not fit although a larger one does."""
    maximum, fitting = found.model.context, [each for each in found.trials if each.fits]
    beyond = [str(each.context) for each in fitting if maximum and each.context > maximum]
    texts = [f"more than the model's maximum of {maximum}: {', '.join(beyond)}"] if beyond else []
    part = [f"{each.filled} of {each.context}" for each in fitting if not each.is_filled]
    texts += [f"the requests filled only {', '.join(part)} tokens"] if part else []
    again = [each.context for each in fitting if each.retried]
    if again:
        texts.append(f"from {min(again)} on the engine had to free memory while it answered")
    failing = [each.context for each in found.trials if not each.fits]
    smaller = [str(context) for context in failing if context < (found.largest or 0)]
    if smaller:
        texts.append(f"{', '.join(smaller)} tokens do not fit, although {found.largest} do")
    return "; ".join(texts)


def _model(file: LoadedFile) -> str:
    longest = f", the model's maximum: {file.context} tokens" if file.context else ""
    return f"{file.name}, {sizes.shown(file.size)}: {sizes.shown(file.read)} read{longest}"


def _paths(trials: Sequence[FitTrial]) -> str:
    """The paths that the engine took with the largest context, of those that fit if one does."""
    from simulator.work import texts_by_work

    *_, last = [trial for trial in trials if trial.fits] or trials
    return "; ".join(f"{work}: {text}" for work, text in texts_by_work(last.paths).items())


def _cards(found: Fit) -> str:
    return " and ".join(f"{card.name}, {sizes.card(card.memory)}" for card in found.cards)


def _rows(trial: FitTrial, kinds: Sequence[str]) -> Iterator[tuple[str, ...]]:
    from simulator.report import mib

    state = "fits" if trial.fits else "does not fit"
    for number, card in enumerate(trial.cards):
        named = (f"{number} {card.name}",) if len(trial.cards) > 1 else ()
        parts = (mib(card.by_kind.get(kind, 0)) for kind in kinds)
        why = trial.why if number == 0 else ""
        yield str(trial.context), state, *named, mib(card.peak), *parts, mib(card.context), why
