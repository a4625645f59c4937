"""The presets that run on a machine, the best known and fastest first, and why others do not."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum

from builder.choose import needs, speeds
from builder.choose.machine import HostCard, Machine, host_card
from builder.choose.needs import MemoryNeed
from builder.choose.speeds import Computed, NotComputedError
from builder.families.device_code import no_code, runs_on
from builder.presets import capabilities, model_files, short_names
from builder.presets.catalog import PresetEntry
from builder.presets.figures import Result
from builder.presets.schema import Preset
from builder.recipes.catalog import Catalog
from builder.simulator.cards import Card
from builder.smoke.verdict import PresetUse
from builder.tools import sizes
from builder.tools.docker import gpus

Trials = Callable[[PresetEntry], PresetUse | None]
"""The recorded trial of a preset; None where there is none."""


@dataclass(frozen=True, slots=True)
class Measured:
    """A figure of a receipt: a run of the preset, as it is, on these cards."""

    tokens_per_second: float
    """The mean of the runs."""
    interval: tuple[float, float] | None
    """The mean's, with 95 % confidence; None for one run."""
    runs: int
    context: int
    """Tokens."""
    by: str
    """Who measured; empty: not named."""
    receipt: str
    """Name of its file without the suffix."""


Receipts = Callable[[PresetEntry, Sequence[HostCard], int], Measured | None]
"""The figure of a preset's receipt on cards with a context of so many tokens, or None."""


class Standing(IntEnum):
    """How well a preset is known on a machine's cards, the best first."""

    MEASURED = 0
    """By a receipt of such cards."""
    PUBLISHED = 1
    """Its figure was published for such cards."""
    ELSEWHERE = 2
    """Its figure was published for other cards."""
    COMPUTED = 3
    """It has no figure but a computed speed."""
    UNKNOWN = 4
    """It has no figure at all, or neither its context nor its memory is known: whether it fits is
    then not known, either."""


@dataclass(frozen=True, slots=True)
class Fitting:
    """A preset that runs on the machine."""

    preset: str
    quantization: str
    """Empty: not known."""
    download: int
    """Bytes of its models; 0: not known."""
    downloadable: bool
    """Whether each of its models has a repository.  Without one, the user has to name a file."""
    recipe: str
    context: int
    """Tokens; 0: the engine's own default."""
    other_context: int | None
    """The context, where it is not the preset's own."""
    tokens_per_second: float | None
    """As published; None: it was not."""
    figure_context: int
    """The context of that figure; 0: not known."""
    measured_on: str
    """The card of that figure: a file of ``cards/``."""
    measured_cards: int
    on_such_cards: bool
    """Whether that figure is of the machine's cards."""
    measured: Measured | None
    """The figure of a receipt on such cards, which comes before the published figure."""
    computed: Computed | None
    """The speed that the bandwidth of the machine's cards allows; None: it cannot be computed."""
    not_computed: str
    """Why it cannot; empty if it can."""
    memory: MemoryNeed | None
    """None: not known; the machine has as much memory as the card of the publication."""
    driver: str
    """The oldest driver; empty: not known."""
    capabilities: tuple[str, ...]
    """As ``presets.capabilities`` has them."""
    room: int
    """Bytes that CUDA can allocate on the cards of the run."""
    caveats: tuple[str, ...]

    @property
    def standing(self) -> Standing:
        """How well it is known on the machine's cards."""
        if self.measured is not None:
            return Standing.MEASURED
        if not (self.context or self.memory):
            return Standing.UNKNOWN
        if self.tokens_per_second is None:
            return Standing.COMPUTED if self.computed else Standing.UNKNOWN
        return Standing.PUBLISHED if self.on_such_cards else Standing.ELSEWHERE


@dataclass(frozen=True, slots=True)
class Excluded:
    """A preset that does not run on the machine."""

    preset: str
    why: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Choice:
    """All presets that were asked for."""

    machine: Machine
    fits: tuple[Fitting, ...]
    """The best known first, then the fastest."""
    excluded: tuple[Excluded, ...]
    models: Mapping[str, str]
    """The short name of each preset's model, by the preset's name."""

    @property
    def recommended(self) -> tuple[Fitting, ...]:
        """The first preset of each model that has one whose models can be downloaded."""
        first: dict[str, Fitting] = {}
        for each in self.fits:
            if each.downloadable:
                first.setdefault(self.models[each.preset], each)
        return tuple(first.values())


@dataclass(frozen=True, slots=True)
class Question:
    """The machine, the wishes, and the known facts of presets."""

    machine: Machine
    catalog: Catalog
    cards: Mapping[str, Card]
    """The cards of ``cards/`` that presets were published for, by their file's name."""
    context: int = 0
    """The least context in tokens."""
    trials: Trials = field(default=lambda _: None)
    receipts: Receipts = field(default=lambda *_: None)


def matching(entries: Sequence[PresetEntry], text: str) -> list[PresetEntry]:
    """The presets whose name or model has every word of ``text``, in any case."""
    words = _words(text)
    return [entry for entry in entries if all(word in _described(entry) for word in words)]


def _words(text: str) -> list[str]:
    return re.sub(r"[-_/:@\s]+", " ", text.lower()).split()


def _described(entry: PresetEntry) -> str:
    model = entry.preset.model
    parts = (entry.name, model.name, model.repository, model.file, model.quantization)
    return " ".join(_words(" ".join(filter(None, parts))))


def choose(entries: Sequence[PresetEntry], question: Question) -> Choice:
    """The presets that run on the machine, and the others with their reasons."""
    answers = [_answer(entry, question) for entry in entries]
    fits = [each for each in answers if isinstance(each, Fitting)]
    fits.sort(key=by_standing)
    excluded = tuple(each for each in answers if isinstance(each, Excluded))
    names = {entry.name: entry.preset.model.name for entry in entries}
    return Choice(question.machine, tuple(fits), excluded, short_names.models(names))


def by_standing(found: Fitting) -> tuple[bool, Standing, float, str]:
    """The place of a preset among others: the best known first, then the fastest.

    Presets whose models cannot be downloaded come last.
    """
    speed = found.measured.tokens_per_second if found.measured else found.tokens_per_second
    if found.standing is Standing.COMPUTED and found.computed:
        speed = found.computed.tokens_per_second
    return not found.downloadable, found.standing, -(speed or 0), found.preset


def _answer(entry: PresetEntry, question: Question) -> Fitting | Excluded:
    preset = entry.preset
    recipe = question.catalog.engine(preset.recipe).recipe
    able = [card for card in question.machine.cards if runs_on(recipe, card.capability)]
    cards = sorted(able, key=lambda card: -card.memory)[: preset.cards]
    driver = needs.oldest_driver(recipe, question.catalog)
    why = [*_no_code(preset, able, question), *_old_driver(driver, question.machine)]
    contexts = _contexts(preset, cards, question)
    wide = [each for each in contexts if each[0] >= question.context]
    if not wide:
        why.append(_too_short(preset, contexts[0][0], question.context))
    if why:
        return Excluded(entry.name, tuple(why))
    trial = question.trials(entry)
    # With a requested context, the smallest that is enough comes first; else the largest.
    tried = reversed(wide) if question.context else wide
    lacks = ""
    for context, result in tried:
        need = needs.of_context(preset, context, result, trial)
        fault = _no_room(need, preset, cards, question)
        if not fault:
            return _fitting(entry, (context, result), need, cards, question)
        # Report the fault of the smallest context.
        lacks = lacks if lacks and question.context else fault
    if trial is None or trial.smaller is None or question.context > trial.context:
        return Excluded(entry.name, (lacks,))
    if context := needs.context_between(trial, cards, question.context):
        need = needs.tried(trial, context)
        return _fitting(entry, (context, None), need, cards, question)
    if question.context:
        lacks = _no_room(needs.tried(trial, question.context), preset, cards, question)
        if fits := needs.context_between(trial, cards):
            lacks = f"{lacks}; a context of {fits} tokens fits"
    return Excluded(entry.name, (lacks,))


def _fitting(
    entry: PresetEntry,
    run: tuple[int, Result | None],
    need: MemoryNeed | None,
    cards: Sequence[HostCard],
    question: Question,
) -> Fitting:
    preset, (context, result) = entry.preset, run
    recipe = question.catalog.engine(preset.recipe).recipe
    computed, why_not = _computed(preset, recipe.engine, cards, question)
    figure = result or preset.published
    files = [file.known_size for file in model_files.of_preset(preset).values()]
    return Fitting(
        preset=entry.name,
        quantization=preset.model.quantization or "",
        download=sum(size for size in files if size) if all(files) else 0,
        downloadable=model_files.downloadable(preset),
        recipe=preset.recipe,
        context=context,
        other_context=None if context in {0, preset.serve.context} else context,
        tokens_per_second=round(figure.tokens_per_second.middle, 2) if figure else None,
        figure_context=preset.context_of(figure) if figure else 0,
        measured_on=preset.card,
        measured_cards=preset.cards,
        on_such_cards=_are(cards, question.cards.get(preset.card)),
        measured=question.receipts(entry, cards, context),
        computed=computed,
        not_computed=why_not,
        memory=need,
        driver=needs.oldest_driver(recipe, question.catalog),
        capabilities=capabilities.of_preset(preset),
        room=sum(card.memory for card in cards),
        caveats=(*preset.slower(figure), *(each.shown for each in preset.caveat)),
    )


def _computed(
    preset: Preset, engine: str, cards: Sequence[HostCard], question: Question
) -> tuple[Computed | None, str]:
    """The computed speed, or why there is none."""
    own = question.cards.get(preset.card)
    published = own.bandwidth if own is not None else 0
    try:
        return speeds.computed(preset, engine, cards[0].bandwidth, published), ""
    except NotComputedError as error:
        return None, str(error)


def _are(cards: Sequence[HostCard], wanted: Card | None) -> bool:
    return wanted is not None and all(card == host_card(wanted) for card in cards)


def _contexts(
    preset: Preset, cards: Sequence[HostCard], question: Question
) -> list[tuple[int, Result | None]]:
    """The contexts that the preset was published with, and the figure of each; largest first.

    One that was too large for the preset's card is for cards with more memory.
    """
    own = preset.serve.context or 0
    too_large = _was_too_large(preset, cards, question)
    found: dict[int, Result | None] = {own: None}
    for result in preset.result:
        context = preset.context_of(result)
        fits = context <= own or not too_large
        if result.of_preset and fits and found.get(context) is None:
            found[context] = result
    return sorted(found.items(), key=lambda each: -each[0])


def _was_too_large(preset: Preset, cards: Sequence[HostCard], question: Question) -> bool:
    """Whether a card has no more memory than the one that could not fill the published context."""
    if preset.published_context is None:
        return False
    tried = question.cards.get(preset.card)
    return tried is None or any(card.memory <= tried.memory for card in cards)


def _too_short(preset: Preset, largest: int, wanted: int) -> str:
    if not largest:
        return f"its context is not known, {wanted} tokens are asked for"
    text = f"its context is {largest} tokens, {wanted} are asked for"
    if largest >= (preset.published_context or 0):
        return text
    return f"{text}; the published {preset.published_context} did not fit the {preset.card}"


def _no_code(preset: Preset, able: Sequence[HostCard], question: Question) -> list[str]:
    cards = question.machine.cards
    if not able:
        recipe = question.catalog.engine(preset.recipe).recipe
        return [f"its image has {no_code(recipe, *(card.capability for card in cards))}"]
    if len(able) < preset.cards:
        return [f"it needs {preset.cards} cards, this machine has {len(able)} for it"]
    return []


def _old_driver(needed: str, machine: Machine) -> list[str]:
    if gpus.is_older(machine.driver, needed):
        return [f"the driver {machine.driver} is too old: it needs {needed} or newer"]
    return []


def _no_room(
    need: MemoryNeed | None, preset: Preset, cards: Sequence[HostCard], question: Question
) -> str:
    there = sum(card.memory for card in cards)
    if need is None:
        card = question.cards.get(preset.card)
        if card is None:
            return f"its memory is not known, nor the memory of the {preset.card}"
        before = card.memory * preset.cards
        if there >= before:
            return ""
        ran = sizes.gib(before)
        return f"its memory is not known; it ran with {ran}, and here are {sizes.gib(there)}"
    size = need.on(cards)
    if size <= there:
        return ""
    source = "as published" if need.by == "source" else "as tried"
    lacking = f"here are {sizes.gib(there)}: {sizes.gib(size - there)} too little"
    return f"it takes {sizes.gib(size)} ({source}), and {lacking}"
