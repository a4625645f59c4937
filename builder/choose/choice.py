"""The presets that run on a machine, the best known and fastest first, and why others do not."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum
from math import ceil

from builder.choose import needs, speeds
from builder.choose.machine import USABLE, HostCard, Machine, host_card
from builder.choose.needs import MemoryNeed
from builder.choose.speeds import Computed, NotComputedError
from builder.families.device_code import no_code, runs_on
from builder.presets import capabilities, command, model_files, short_names
from builder.presets.catalog import PresetEntry
from builder.presets.figures import Result
from builder.presets.schema import Preset
from builder.recipes.catalog import Catalog
from builder.recipes.schema import Recipe
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


DIFFERENCE = 0.1
"""Share by which figures of one memory differ, so that both are shown."""

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
    """The largest known figure; None: not known; the machine has as much memory as the card of the
    publication."""
    other_memory: MemoryNeed | None
    """The smallest known figure, where both differ by more than ``DIFFERENCE``."""
    least: int
    """Bytes of the weights and of the cache, the least that the run takes; 0: not known."""
    certain: bool
    """Whether it is known that it fits, not by a figure that nobody confirmed, and that the driver
    is new enough."""
    filled: bool
    """Whether it is known that prompts fill the context in so much memory."""
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
        """The first preset of each model that can be downloaded and is known to fit."""
        first: dict[str, Fitting] = {}
        for each in self.fits:
            if each.downloadable and each.certain:
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
    refused: Callable[[str], str] = field(default=lambda _: "")
    """Why the image of a recipe got no tag; empty: it was not refused, or is not known."""
    options: tuple[str, ...] = ()
    """More arguments of the engine, which replace the same ones of a preset."""
    other_model: bool = False
    """Another model than the preset's: the figures of its memory say nothing."""


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


def faults(entry: PresetEntry, question: Question) -> tuple[str, ...]:
    """Why a run of a preset with its own context, or exactly the question's, does not work.

    Above the preset's context, which a user may try, only what is known speaks against it.
    """
    preset, own = entry.preset, entry.preset.serve.context or 0
    asked = question.context or own
    larger = preset.published_context is None and asked > own
    found = _answer(entry, replace(question, context=own if larger else asked))
    why = list(found.why) if isinstance(found, Excluded) else []
    if long := too_long(preset, question):
        return (*why, *long)
    if larger and not why:
        cards = _cards(preset, question)
        need = next(iter(_figures(entry, asked, None, question)), None)
        why += filter(None, [_no_room(need, entry, asked, cards, question, published=not own)])
    return tuple(why)


def too_long(preset: Preset, question: Question) -> list[str]:
    """Why no card has the question's context: the model was not trained for it."""
    most = 0 if question.other_model else needs.trained(preset, _arguments(preset, question))
    if not most or question.context <= most:
        return []
    return [f"its model was trained for {most} tokens of context, not for {question.context}"]


def _cards(preset: Preset, question: Question) -> list[HostCard]:
    """The cards of the machine that a preset would get: they have most memory."""
    recipe, machine = question.catalog.engine(preset.recipe).recipe, question.machine
    able = [card for card in machine.cards if runs_on(recipe, card.capability, machine.platform)]
    return sorted(able, key=lambda card: -card.memory)[: preset.cards]


def _arguments(preset: Preset, question: Question) -> list[str]:
    recipe = question.catalog.engine(preset.recipe).recipe
    return command.long_names(command.written(preset, recipe, (), question.options), recipe)


def _figures(
    entry: PresetEntry, context: int, result: Result | None, question: Question
) -> list[MemoryNeed]:
    """The figures of the memory with a context that can be right, the largest first.

    The user's options may change them: then there is none.
    """
    preset = entry.preset
    if _changed(preset, question):
        return []
    trial = question.trials(entry)
    least = needs.least(preset, _arguments(preset, question), context, trial)
    found = needs.figures(preset, context, result, trial)
    return [
        each for each in found if each.by == "trial" or least is None or each.size >= least.weights
    ]


def _changed(preset: Preset, question: Question) -> bool:
    """Whether another model, or options, change the memory of a preset."""
    recipe = question.catalog.engine(preset.recipe).recipe
    lists = (preset.serve.arguments, question.options)
    own, new = (speeds.values_of(command.long_names(words, recipe)) for words in lists)
    differ = {name for name, value in new.items() if own.get(name) != value}
    return question.other_model or bool(needs.RESIZING & differ)


def _answer(entry: PresetEntry, question: Question) -> Fitting | Excluded:
    preset, machine = entry.preset, question.machine
    recipe = question.catalog.engine(preset.recipe).recipe
    cards = _cards(preset, question)
    driver = needs.driver_on(recipe, question.catalog, cards)
    refused = question.refused(recipe.name)
    elsewhere = list(_other_platform(recipe, machine))
    why = [*filter(None, [refused]), *(elsewhere or _no_code(preset, cards, question))]
    why += _old_driver(driver, machine)
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
        known = _figures(entry, context, result, question)
        fault = _no_room(next(iter(known), None), entry, context, cards, question)
        if not fault:
            return _fitting(entry, (context, result), known, cards, question)
        # Report the fault of the smallest context.
        lacks = lacks if lacks and question.context else fault
    if trial is None or trial.smaller is None or question.context > trial.context:
        return Excluded(entry.name, (lacks,))
    if context := _between(entry, trial, cards, question, question.context):
        known = _figures(entry, context, None, question)
        return _fitting(entry, (context, None), known, cards, question)
    if question.context:
        need = next(iter(_figures(entry, question.context, None, question)), None)
        lacks = _no_room(need, entry, question.context, cards, question)
        if fits := _between(entry, trial, cards, question):
            lacks = f"{lacks}; a context of {fits} tokens fits"
    return Excluded(entry.name, (lacks,))


def _between(
    entry: PresetEntry,
    use: PresetUse,
    cards: Sequence[HostCard],
    question: Question,
    wanted: int = 0,
) -> int:
    """The context between both trials that has room on the cards: tokens, 0 for none.

    It is ``wanted``; without one, the largest multiple of ``needs.STEP``.
    """
    if use.smaller is None or _changed(entry.preset, question):
        return 0
    least, last = use.smaller.context, use.context // needs.STEP * needs.STEP
    tries = (max(wanted, least),) if wanted else range(last, least - 1, -needs.STEP)
    for each in tries:
        need = next(iter(_figures(entry, each, None, question)), None)
        if need is not None and not _no_room(need, entry, each, cards, question):
            return each
    return 0


def _fitting(
    entry: PresetEntry,
    run: tuple[int, Result | None],
    known: Sequence[MemoryNeed],
    cards: Sequence[HostCard],
    question: Question,
) -> Fitting:
    preset, (context, result) = entry.preset, run
    recipe = question.catalog.engine(preset.recipe).recipe
    computed, why_not = _computed(preset, recipe.engine, cards, question)
    figure = result or preset.published
    trial = question.trials(entry)
    least = needs.least(preset, _arguments(preset, question), context, trial)
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
        memory=known[0] if known else None,
        other_memory=known[-1] if known and _differ(known[0], known[-1]) else None,
        least=least.size if least is not None else 0,
        certain=(
            not _less(preset, cards, question)
            or any(each.by in {"trial", "filled", "source"} for each in known)
        )
        and needs.is_new_enough(question.machine.driver, recipe, question.catalog),
        filled=_is_filled(known, trial, context, cards),
        driver=needs.driver_on(recipe, question.catalog, cards),
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
    """Whether a card may have no more memory than the one that could not fill the published
    context: cards of one nominal size differ by 1 - ``USABLE``."""
    if preset.published_context is None:
        return False
    tried = question.cards.get(preset.card)
    return tried is None or any(card.memory * USABLE <= tried.memory for card in cards)


def _too_short(preset: Preset, largest: int, wanted: int) -> str:
    if not largest:
        return f"its context is not known, {wanted} tokens are asked for"
    text = f"its context is {largest} tokens, {wanted} are asked for"
    if largest >= (preset.published_context or 0):
        return text
    return f"{text}; the published {preset.published_context} did not fit the {preset.card}"


def _other_platform(recipe: Recipe, machine: Machine) -> Iterator[str]:
    if machine.platform is not None and machine.platform not in recipe.platform:
        known = " and ".join(recipe.platform)
        yield f"its image is for {known}, the machine of the card is {machine.platform}"


def _no_code(preset: Preset, able: Sequence[HostCard], question: Question) -> list[str]:
    machine = question.machine
    if not able:
        recipe = question.catalog.engine(preset.recipe).recipe
        known = (card.capability for card in machine.cards)
        return [f"its image has {no_code(recipe, *known, platform=machine.platform)}"]
    if len(able) < preset.cards:
        return [f"it needs {preset.cards} cards, this machine has {len(able)} for it"]
    return []


def _old_driver(needed: str, machine: Machine) -> list[str]:
    if gpus.is_older(machine.driver, needed):
        return [f"the driver {machine.driver} is too old: it needs {needed} or newer"]
    return []


def _differ(large: MemoryNeed, small: MemoryNeed) -> bool:
    return large.size > small.size * (1 + DIFFERENCE)


def _is_filled(
    known: Sequence[MemoryNeed], trial: PresetUse | None, context: int, cards: Sequence[HostCard]
) -> bool:
    """Whether prompts filled such a context, or a larger one, in as much memory."""
    if known and known[0].by == "filled":
        return True
    there = sum(card.memory for card in cards)
    return (
        trial is not None
        and bool(trial.filled)
        and context <= trial.context
        and there >= trial.memory
    )


def _less(preset: Preset, cards: Sequence[HostCard], question: Question) -> bool:
    """Whether the cards have less memory than the cards of the publication, or it is not known."""
    own = question.cards.get(preset.card)
    if own is None:
        return True
    recipe = question.catalog.engine(preset.recipe).recipe
    if needs.largest_part(recipe, _arguments(preset, question), len(cards)) is not None:
        return any(card.memory < own.memory for card in cards)
    return sum(card.memory for card in cards) < own.memory * preset.cards


def _no_room(
    need: MemoryNeed | None,
    entry: PresetEntry,
    context: int,
    cards: Sequence[HostCard],
    question: Question,
    *,
    published: bool = True,
) -> str:
    """What a run lacks on cards; empty: nothing is known.

    ``published``: cards as small as the cards of the publication are enough where nothing else is
    known of its memory, and smaller ones are not.
    """
    preset = entry.preset
    recipe = question.catalog.engine(preset.recipe).recipe
    words = _arguments(preset, question)
    room = _Room(cards, needs.largest_part(recipe, words, len(cards)), needs.share(words))
    if unknown := [card.name for card in cards if not card.memory]:
        return f"the memory of the {unknown[0]} is not known"
    trial = question.trials(entry)
    least = None if question.other_model else needs.least(preset, words, context, trial)
    if least is not None and (lacks := room.lacks(least.size, of_share=True)):
        what = "its weights and its cache take" if least.cache else "its weights take"
        return f"{what} {sizes.gib(least.size)} at least{lacks}"
    if need is not None:
        source = {"trial": "as tried", "filled": "with a full context", "estimate": "as estimated"}
        known = source.get(need.by, "as published")
        whole = need.by in {"source", "unverified"} and sum(need.kinds.values()) == need.size
        lacks = room.lacks(need.on(cards), of_share=whole)
        return f"it takes {sizes.gib(need.on(cards))} ({known}){lacks}" if lacks else ""
    if not published or _changed(preset, question) or not _less(preset, cards, question):
        return ""
    card = question.cards.get(preset.card)
    if card is None:
        return f"its memory is not known, nor the memory of the {preset.card}"
    ran = sizes.gib(card.memory * preset.cards)
    return f"its memory is not known; it ran with {ran}, and here are {room.shown}"


@dataclass(frozen=True, slots=True)
class _Room:
    """The memory of the cards of a run."""

    cards: Sequence[HostCard]
    part: float | None
    """The largest part of the run on one card; None: each card holds as much as it can."""
    share: float
    """The share of each card that weights and cache may take."""

    @property
    def shown(self) -> str:
        """``15.5 GiB``; of two that hold equal parts, both."""
        if self.part is not None and len(self.cards) > 1:
            return " and ".join(sizes.gib(card.memory) for card in self.cards)
        return sizes.gib(sum(card.memory for card in self.cards))

    def lacks(self, size: int, *, of_share: bool) -> str:
        """How much the cards have too little for a run; empty: they have enough."""
        share = self.share if of_share else 1.0
        if self.part is None or len(self.cards) == 1:
            lacking = size - share * sum(card.memory for card in self.cards)
            each = ""
        else:
            lacking = size * self.part - share * min(card.memory for card in self.cards)
            each = f", {sizes.gib(round(size * self.part))} of it on one card"
        if lacking <= 0:
            return ""
        here = f"here are {self.shown}"
        here += f", of which it may take {share:.0%}" if share < 1 else ""
        return f"{each}, and {here}: {sizes.gib(ceil(lacking))} too little"
