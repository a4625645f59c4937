"""The preset that a short name means on a machine: the best that runs there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from builder.choose import choice, machine, needs
from builder.choose.machine import Machine
from builder.errors import FitError, WorldError
from builder.families import complete
from builder.launch.check import AUTO, context_of, of_run, unfit_for_recipe
from builder.launch.described import LaunchRequest, find_entry, run_of
from builder.models import gguf
from builder.presets import catalog as presets
from builder.presets import command, model_files, short_names
from builder.presets.catalog import PresetEntry
from builder.presets.short_names import is_preset
from builder.receipts.known import known
from builder.recipes.catalog import Catalog
from builder.records import trials
from builder.records.record import newest_good
from builder.tools.log import Log


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
    names = {*files, *engines}
    if is_preset(wanted.target) or wanted.target in names:
        return wanted
    entries = short_names.named(presets.load(catalog).valid(), wanted.target, names)
    if wanted.cpu:
        return _as_published(
            _on_cpu(catalog, entries, wanted.target), wanted, "it runs on the CPU", log
        )
    try:
        root = catalog.root
        here = machine.present(root) if card == AUTO else machine.named(root, [card])
    except WorldError:  # the machine's own fault is reported with the others
        return _as_published(entries, wanted, "this machine has no GPU", log)
    choose = "`builder choose`" if card == AUTO else f"`builder choose --card {card}`"
    return _on(here, catalog, entries, wanted, state, log, choose)


def refusal(catalog: Catalog, wanted: LaunchRequest, card: str, state: Path) -> FitError | None:
    """Why ``builder choose`` would not name this run; None: nothing known speaks against it.

    ``card`` is a name of ``cards/``, whose driver is not known; ``auto``: only what holds on every
    card counts.  Raises ``UsageError`` for an unknown card, ``RecipeError``.
    """
    entry = find_entry(catalog, wanted)
    run = run_of(entry, catalog, wanted)
    count = run.preset.cards if run.preset else 1
    here = None if card == AUTO else machine.named(catalog.root, [card] * count)
    facts = known(catalog, [entry] if entry else [], state)
    record = newest_good(state, run.recipe.name)
    records = {run.recipe.name: record} if record else {}
    refused = trials.known(catalog.root, [run.recipe.name], records).refused(run.recipe.name)
    why = [refused] if refused else []
    on_card = here if here is not None and not wanted.cpu else None
    if entry is None:
        why += unfit_for_recipe(run, on_card) if on_card else []
    else:
        asked = of_run(facts.question(on_card or Machine(())), run, "model" in wanted.given)
        why += choice.faults(entry, asked) if on_card else choice.too_long(entry.preset, asked)
    own = command.long_names(wanted.options, run.recipe)
    most = _trained(wanted.given.get("model")) if not needs.stretches(own) else 0
    if most and context_of(run) > most:
        why.append(f"its model was trained for {most} tokens of context, not for {context_of(run)}")
    if not why:
        return None
    where = f"on {card}" if on_card else "here"
    hint = f"`builder choose{f' --card {card}' if on_card else ''}` shows the presets that run"
    return FitError(f"{run.name} does not run {where}", "\n".join(dict.fromkeys(why)), hint)


def _trained(model: Path | None) -> int:
    """The tokens of context that a GGUF of the user was trained for; 0: not known."""
    if model is None:
        return 0
    try:
        with model.expanduser().open("rb") as stream:
            return gguf.read(stream).of_architecture("context_length") or 0
    except (OSError, gguf.NotGgufError):  # the model's own fault is reported elsewhere
        return 0


def _on(
    here: Machine,
    catalog: Catalog,
    entries: Sequence[PresetEntry],
    wanted: LaunchRequest,
    state: Path,
    log: Log,
    choose: str,
) -> LaunchRequest:
    answer = known(catalog, entries, state).choice(here, wanted.context or 0)
    if not answer.fits:
        why = "\n".join(f"{each.preset}: {'; '.join(each.why)}" for each in answer.excluded)
        hint = f"{choose} shows the presets that run there"
        raise FitError(f"no preset of {wanted.target} runs here", why, hint)
    best = next(iter(answer.recommended), answer.fits[0])
    log(f"{wanted.target} is {best.preset} here: {choose} shows why")
    return replace(wanted, target=best.preset, context=wanted.context or best.other_context)


def _as_published(
    entries: Sequence[PresetEntry], wanted: LaunchRequest, why: str, log: Log
) -> LaunchRequest:
    best = min(entries, key=_place)
    log(f"{wanted.target} is {best.name}, its fastest published run, since {why}")
    return replace(wanted, target=best.name)


def _place(entry: PresetEntry) -> tuple[bool, bool, float, str]:
    """The fastest first; runs of unknown contexts, and models that nobody can download, last."""
    preset, figure = entry.preset, entry.preset.published
    speed = figure.tokens_per_second.middle if figure else 0
    lacking = not model_files.downloadable(preset), not preset.serve.context
    return *lacking, -speed, entry.name


def _on_cpu(catalog: Catalog, entries: Sequence[PresetEntry], target: str) -> Sequence[PresetEntry]:
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
