"""``builder paths``."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from builder.cli import completion
from builder.cli.fit import FOLDER, require_fits
from builder.cli.options import CatalogOption, JsonOption, RecipeName, catalog_at
from builder.cli.tables import table
from builder.cli.terminal import line, log, print_json

if TYPE_CHECKING:
    from builder.build.session import BuildSession
    from builder.build.work_paths import EnginePaths
    from simulator.work import WorkPath

CONTEXT = 2048  # tokens with which a model is started, which every model has


def paths(
    recipe: RecipeName,
    other: Annotated[
        str | None,
        typer.Argument(
            metavar="RECIPE",
            autocompletion=completion.recipes,
            help="Show what this recipe's image does otherwise.",
        ),
    ] = None,
    *,
    model: Annotated[
        str | None,
        typer.Option(
            "--model",
            metavar=FOLDER,
            help="Start the image's server now, with this model (as for fit) on --card.",
        ),
    ] = None,
    card: Annotated[
        str | None,
        typer.Option(
            "--card",
            metavar="CARD",
            autocompletion=completion.known_cards,
            help="Card to simulate for --model: 5090, 5090-laptop, ...",
        ),
    ] = None,
    catalog: CatalogOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show which path an engine takes for its work on the card: attention, products, KV cache.

    An engine chooses kernels by card, model and options, and falls back to others without a word.
    The smoke test starts its server on a simulated card, with a small model and as each preset,
    and keeps the names of the kernels. Where this machine has no record of it, trials/ has what
    another one kept. With two recipes, the table has what differs. `fit` takes options of the
    engine, and shows the paths, too.

    The exit code is 4 if nobody started the recipe's server on a simulated card. With --model, it
    is 15 if the model does not fit, and 8 if the engine fails for another reason.
    """
    from builder.build.work_paths import paths_of
    from builder.cli.session import build_session
    from builder.core import settings

    if (model is None) != (card is None):
        raise typer.BadParameter("--model and --card go together", param_hint="--model")
    recipes, state = catalog_at(catalog), settings.load().state_dir
    names = [recipes.engine(name).recipe.name for name in filter(None, (recipe, other))]
    if model is not None and card is not None:
        session = build_session(catalog, platform="linux/amd64")
        found = [_started(session, name, model, card) for name in names]
    else:
        found = [paths_of(recipes, name, state) for name in names]
    if as_json:
        print_json([asdict(each) for each in found])
        return
    for each in found:
        if each.kept:
            log(f"{each.recipe}: from trials/, as no record of this machine has its server's start")
        if each.stated:
            line(f"{each.recipe}: {each.stated}")
    if len(found) == 1:
        table(("model", "work", "path", "launches"), list(_rows(found[0])))
    else:
        rows = list(_differences(*found))
        table(("model", "work", *names), rows)
        if not rows:
            log("no path differs with the models that both were started with")


def _started(session: BuildSession, name: str, model: str, card: str) -> EnginePaths:
    """The paths with a model on a card; raises like ``fit``, and ``FitError``."""
    from builder.build.work_paths import EnginePaths
    from builder.presets import cards
    from builder.presets.fit import fit
    from builder.presets.trial import FitRequest

    wanted = [cards.load(session.catalog.root, card)]
    found = fit(session, name, FitRequest(model, None, None, wanted, [CONTEXT], search=False))
    require_fits(found)
    (trial,) = found.trials
    return EnginePaths(name, {found.model.name: trial.paths}, trial.stated)


def _rows(found: EnginePaths) -> Iterator[tuple[str, ...]]:
    for model, paths in found.by_model.items():
        for each in paths:
            yield model, each.work, each.text, f"{each.launches:,}"


def _differences(before: EnginePaths, after: EnginePaths) -> Iterator[tuple[str, ...]]:
    """The kinds of work that take other paths with the same model."""
    from simulator.work import texts_by_work

    for model in filter(after.by_model.__contains__, before.by_model):
        # Without the order, which is by launches.
        taken = [sorted(each.by_model[model], key=_text) for each in (before, after)]
        sides = [texts_by_work(paths) for paths in taken]
        for work in dict.fromkeys([*sides[0], *sides[1]]):
            row = [side.get(work, "none") for side in sides]
            if row[0] != row[1]:
                yield model, work, *row


def _text(path: WorkPath) -> str:
    return path.text
