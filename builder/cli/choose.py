"""``builder choose``."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

import typer

from builder.cli import options
from builder.cli.options import checked_capability, one_context, option, user_settings
from builder.cli.terminal import counted, line, log, pairs, paragraph, print_json, table
from builder.core import sizes
from builder.core.errors import FitError, RecipeError
from builder.core.farm import farm_root

if TYPE_CHECKING:
    from collections.abc import Mapping

    from builder.presets.cards import Machine
    from builder.presets.catalog import PresetEntry, Presets
    from builder.presets.choose import Choice, Fitting
    from builder.presets.shapes import MemoryNeed
    from builder.recipes.catalog import Catalog

HEADER = (
    *("preset", "tokens/s", "known", "computed", "context", "memory", "quantization"),
    *("download", "capabilities", "engine", "driver", "image"),
)
DROPS = (
    *("image", "driver", "engine", "download", "quantization", "capabilities", "memory"),
    *("context", "computed", "known"),
)
"""Columns that a narrow terminal does not show, the first one first."""
UNKNOWN = "unknown"


def _checked_driver(value: str | None) -> str | None:
    from builder.presets.cards import DRIVER

    if value is not None and not DRIVER.fullmatch(value):
        raise typer.BadParameter(f"{value!r} is no version of NVIDIA's driver such as 580.65.06")
    return value


def _checked_memory(value: str | None) -> str | None:
    try:
        return str(sizes.memory_of(value)) if value is not None else None
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error


def choose(
    card: list[str] | None = option(
        "--card CARD",
        "Card of cards/: 5090, 5090-laptop, ... Twice: two cards. Default: the cards of this "
        "machine, by nvidia-smi.",
        autocompletion=options.known_cards,
    ),
    memory: str | None = option(
        "--memory SIZE",
        "Memory of a card that has no file, as on its box: 12G. Needs --capability.",
        callback=_checked_memory,
    ),
    capability: str | None = option(
        "--capability MAJOR.MINOR",
        "Compute capability of a card that has no file: 12.0. Needs --memory.",
        callback=checked_capability,
    ),
    driver: str | None = option(
        "--driver VERSION",
        "Version of NVIDIA's driver: 580.65.06. Default: this machine's; with --card, drivers "
        "are not compared.",
        callback=_checked_driver,
    ),
    model: str | None = option(
        "--model TEXT", "Only presets whose name or model has each of these words: 'qwen3.6 27b'."
    ),
    context: str | None = option("--context TOKENS", "Smallest context: 65536 or 64K; K is 1024."),
    catalog: options.CatalogOption = None,
    as_json: options.JsonOption = False,
) -> None:
    """Recommend a preset of each model for a card.

    Presets are ranked by how their speed is known: measured by a receipt on such cards, published
    for such cards, published for other cards, computed, unknown. Within a rank, the fastest comes
    first. Presets whose model files have no repository come after all ranks. The first preset of
    each model with a repository is recommended. The presets that do not run come last, with the
    reason.

    A preset runs if its image is for the machine's platform, has code for the card and was not
    refused, the driver is new enough, and the memory suffices. The memory is the largest known
    figure: of the recorded trial of its image on a simulated card, of prompts that fill the
    context, of its source; without one, the cards of the published run decide. The weights are
    never more than the card holds. A preset that fits only by a figure that nobody confirmed is not
    recommended.
    Speeds come from receipts of the preset on such cards, otherwise from the publication, with its
    card. For other cards a speed is computed from the bandwidth, with the interval of nine of ten
    runs: studies/speeds.md.

    The exit code is 15 if no preset runs.
    """
    from builder.presets.choose import known, of_farm

    least = one_context(context) if context is not None else 0
    there, recipes = of_farm(farm_root(catalog))
    entries = _wanted(there, model)
    here = _machine(recipes, card or [], memory, capability, driver or "")
    own = user_settings()
    presets = known(recipes, entries, own.state_dir)
    if presets.invalid:
        log(f"{counted(presets.invalid, 'receipt')} left out as invalid: `builder receipts`")
    answer = presets.choice(here, least)
    images = {}
    for name in {each.recipe for each in answer.fits}:
        image = recipes.engine(name).recipe.image
        images[name] = f"{own.repository(image.repository)}:{image.tags[0]}"
    if as_json:
        print_json(_as_json(answer, images, presets.digests))
    else:
        _print(answer, images)
    if not answer.fits:
        raise FitError(f"no preset runs on {_shown(here)}", hint=_next_step(answer))


def _machine(
    recipes: Catalog, names: list[str], memory: str | None, capability: str | None, driver: str
) -> Machine:
    """The cards of --card, else the card of --memory and --capability, else this machine's."""
    from builder.presets import cards
    from simulator.selection import Capability

    if memory is None and capability is None:
        if names:
            return cards.machine_with(recipes.root, names, driver)
        found = cards.this_machine(recipes.root)
        return replace(found, driver=driver or found.driver)
    if names or memory is None or capability is None:
        raise typer.BadParameter(
            "give --memory and --capability together, and no --card", param_hint="--memory"
        )
    return cards.unnamed_card(int(memory), Capability.parse(capability), driver)


def _wanted(presets: Presets, model: str | None) -> list[PresetEntry]:
    """The valid presets, of the model that was asked for; raises ``RecipeError`` if none is."""
    from builder.presets.choose import matching

    broken = len(presets.entries) - len(presets.valid())
    if broken:
        log(f"{counted(broken, 'preset')} left out as invalid: see `builder recipe check`")
    found = matching(presets.valid(), model or "")
    if not found:
        known = sorted({entry.preset.model.name for entry in presets.valid()})
        what = f"no preset is of a model {model}" if model else "there are no presets"
        raise RecipeError(what, f"the models: {', '.join(known)}" if known else "")
    return found


def _shown(machine: Machine) -> str:
    cards = machine.cards
    names = [
        f"{each.name} ({each.capability if each.capability.major else UNKNOWN}), "
        f"{sizes.card(each.memory) if each.memory else 'memory unknown'}"
        for each in cards
    ]
    driver = f", driver {machine.driver}" if machine.driver else ""
    return f"{' and '.join(names)}{driver}"


def _next_step(answer: Choice) -> str:
    if any("asked for" in why for each in answer.excluded for why in each.why):
        return "ask for less --context; `builder fit` tries other models and sizes"
    reasons = ["; ".join(each.why) for each in answer.excluded]
    if all("no code" in why for why in reasons):
        return "add the card's architecture to `arch` in [cuda] of a recipe, and build it"
    if all("driver" in why for why in reasons):
        return "install a newer driver of NVIDIA's"
    return "`builder fit` tries other models and smaller contexts"


def _as_json(
    answer: Choice, images: Mapping[str, str], digests: Mapping[str, str]
) -> dict[str, Any]:
    cards = [{**asdict(card), "capability": str(card.capability)} for card in answer.machine.cards]
    best = [each.preset for each in answer.recommended]
    fits = []
    for each in answer.fits:
        image = {"image": images[each.recipe], "digest": digests.get(each.recipe, "")}
        fits.append({**asdict(each), "recommended": each.preset in best, **image})
    machine = {"driver": answer.machine.driver, "platform": answer.machine.platform}
    return {
        "cards": cards,
        **machine,
        "remarks": list(answer.machine.remarks),
        "recommended": best,
        "fits": fits,
        "excluded": [asdict(each) for each in answer.excluded],
    }


def _print(answer: Choice, images: Mapping[str, str]) -> None:
    pairs({"machine": _shown(answer.machine)})
    for remark in answer.machine.remarks:
        log(remark)
    best = answer.recommended
    rows = {each.preset: _row(each, images[each.recipe]) for each in answer.fits}
    first = [rows.pop(each.preset) for each in best]
    loads = any(each.downloadable for each in answer.fits)
    none = "None of these is known to fit" if loads else "No model of these can be downloaded"
    title = "More presets of these models" if best else none
    more = [(), (title,), *rows.values()] if rows else []
    if answer.fits:
        line("")
        table(HEADER, [*first, *more], drops=DROPS)
    if answer.excluded:
        line("\nDoes not run here")
        reasons = [(each.preset, "; ".join(each.why)) for each in answer.excluded]
        table(("preset", "why"), reasons, wraps="why")
    for each in best:
        paragraph(f"Known problems of {each.preset}", each.caveats)
    if best:
        context = f" --context {best[0].other_context}" if best[0].other_context else ""
        line(f"\nStart one: `builder run {best[0].preset}{context}`")


def _row(each: Fitting, image: str) -> tuple[str, ...]:
    memory = UNKNOWN
    if each.memory is not None:
        figures = [
            _taken(need, filled=each.filled) for need in (each.memory, each.other_memory) if need
        ]
        memory = f"{figures[0][0]} of {sizes.gib(each.room)} ({figures[0][1]})"
        memory += "".join(f"; {taken} {by}" for taken, by in figures[1:])
    elif each.least:
        memory = f"unknown, at least {_gib(each.least)} of {sizes.gib(each.room)}"
    measured = each.measured is not None
    known = measured or (each.on_such_cards and each.tokens_per_second is not None)
    return (
        each.preset,
        *_speed(each),
        each.computed.shown if each.computed is not None and not known else "",
        str(each.context) if each.context else UNKNOWN,
        memory,
        each.quantization or UNKNOWN,
        sizes.shown(each.download) if each.download else UNKNOWN,
        ", ".join(each.capabilities),
        each.recipe,
        f"{each.driver} or newer" if each.driver else UNKNOWN,
        image,
    )


def _gib(size: int) -> str:
    return sizes.gib(size).removesuffix(" GiB")


def _taken(need: MemoryNeed, *, filled: bool) -> tuple[str, str]:
    by = {
        "filled": "filled",
        "estimate": "estimated",
        "source": "published",
        "unverified": "published, unverified",
    }
    tried = "tried" if filled else "tried, short prompt"
    return _gib(need.size), by.get(need.by, tried)


def _speed(each: Fitting) -> tuple[str, str]:
    """Tokens in a second, with the context if it is another one; and how that is known.

    A computed speed has a column of its own.
    """
    found = each.measured
    if found is not None:
        speed, context = f"{found.tokens_per_second:g}", found.context
        known = f"measured on such cards, by {found.by or 'a receipt'}"
    elif each.tokens_per_second is None:
        return UNKNOWN, UNKNOWN
    else:
        speed, context = f"{each.tokens_per_second:g}", each.figure_context
        count = f"{each.measured_cards} x " if each.measured_cards > 1 else ""
        where = "such cards" if each.on_such_cards else f"{count}{each.measured_on}"
        known = f"published on {where}"
    return f"{speed} at {context}" if context and context != each.context else speed, known
