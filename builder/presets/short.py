"""The preset that a short name means on a machine: the best that runs there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from builder.core.errors import FitError, WorldError
from builder.core.log import Log
from builder.engines.families import complete
from builder.presets import catalog as presets
from builder.presets import command, machine, model_files, short_names
from builder.presets.catalog import PresetEntry
from builder.presets.choose import faults, stretches, too_long
from builder.presets.described import Launch, LaunchRequest
from builder.presets.known import known
from builder.presets.run import AUTO, question_of, unfit_for_recipe
from builder.recipes.catalog import Catalog
from simulator import gguf


def resolved(
    catalog: Catalog, wanted: LaunchRequest, card: str, state: Path, log: Log
) -> LaunchRequest:
    """The request with the name of a preset, where ``wanted`` has a short name.

    ``card`` is a name of ``cards/``; ``auto``: the cards of this machine.  The context fits the
    card.  On the CPU, and on a machine without a card, it is the fastest published run.  Raises
    ``RecipeError`` for an unknown name, ``FitError`` where no such preset runs on the machine.
    """
    engines = {each.recipe.engine for each in catalog.engines.values() if each.recipe}
    files = {file.stem for file in (catalog.root / "recipes").glob("*.toml")}  # read or not
    names, target = {*files, *engines}, wanted.target
    if short_names.is_preset(target) or target in names:
        return wanted
    entries = short_names.named(presets.load(catalog).valid(), target, names)
    if wanted.cpu:
        entries = _on_cpu(catalog, entries, target)
        return _as_published(entries, wanted, "it runs on the CPU", log)
    try:
        root = catalog.root
        here = machine.present(root) if card == AUTO else machine.named(root, [card])
    except WorldError:  # the machine's own fault is reported with the others
        return _as_published(entries, wanted, "this machine has no GPU", log)
    choose = "`builder choose`" if card == AUTO else f"`builder choose --card {card}`"
    answer = known(catalog, entries, state).choice(here, wanted.context or 0)
    if not answer.fits:
        why = "\n".join(f"{each.preset}: {'; '.join(each.why)}" for each in answer.excluded)
        hint = f"{choose} shows the presets that run there"
        raise FitError(f"no preset of {target} runs here", why, hint)
    best = next(iter(answer.recommended), answer.fits[0])
    log(f"{target} is {best.preset} here: {choose} shows why")
    return replace(wanted, target=best.preset, context=wanted.context or best.other_context)


def _as_published(
    entries: Sequence[PresetEntry], wanted: LaunchRequest, why: str, log: Log
) -> LaunchRequest:
    def place(entry: PresetEntry) -> tuple[bool, bool, float, str]:
        """The fastest first; runs of unknown contexts, and models to bring by hand, last."""
        preset, figure = entry.preset, entry.preset.published
        speed = figure.tokens_per_second.middle if figure else 0
        lacking = not model_files.downloadable(preset), not preset.serve.context
        return *lacking, -speed, entry.name

    best = min(entries, key=place)
    log(f"{wanted.target} is {best.name}, its fastest published run, since {why}")
    return replace(wanted, target=best.name)


def _on_cpu(catalog: Catalog, entries: Sequence[PresetEntry], target: str) -> list[PresetEntry]:
    """The presets whose image's server the smoke test starts, without a GPU."""
    recipes = {each.name: catalog.engine(each.preset.recipe).recipe for each in entries}
    able = [each for each in entries if complete(recipes[each.name]).serve is not None]
    if not able:
        images = sorted({recipe.name for recipe in recipes.values()})
        raise FitError(
            f"no preset of {target} runs on the CPU",
            f"the servers of these images need a GPU: {', '.join(images)}",
            "`builder list --presets` shows the presets of other models",
        )
    return able


def refusal(job: Launch, card: str) -> FitError | None:
    """Why ``builder choose`` would not name this run; None: nothing known speaks against it.

    ``card`` is a name of ``cards/``, whose driver is not known; ``auto``: only what holds on every
    card counts.  Raises ``UsageError`` for an unknown card, ``RecipeError``.
    """
    run, question = job.run, question_of(job)
    count = run.preset.cards if run.preset else 1
    here = None if card == AUTO else machine.named(job.catalog.root, [card] * count)
    on_card = None if run.cpu else here
    why = [*filter(None, [question.refused.get(run.recipe.name)])]
    if job.entry is None:
        why += unfit_for_recipe(run, on_card) if on_card else []
    elif on_card:
        why += faults(job.entry, replace(question, machine=on_card))
    else:
        why += too_long(job.entry.preset, question)
    own = command.values_by_setting(run.options, run.recipe)
    most = _trained(job.wanted.given.get("model")) if not stretches(own) else 0
    if most and (run.context or 0) > most:
        why.append(f"its model was trained for {most} tokens of context, not for {run.context}")
    if not why:
        return None
    where = f"on {card}" if on_card else "here"
    hint = f"`builder choose{f' --card {card}' if on_card else ''}` shows the presets that run"
    return FitError(f"{run.name} does not run {where}", "\n".join(dict.fromkeys(why)), hint)


def _trained(model: Path | None) -> int:
    if model is None:
        return 0
    try:
        with model.expanduser().open("rb") as stream:
            return gguf.read(stream).of_architecture("context_length") or 0
    except (OSError, gguf.NotGgufError):  # the model's own fault is reported elsewhere
        return 0
