"""The presets that run on a machine, the best known and fastest first, and why others do not."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum
from functools import cached_property
from math import ceil

from builder.core import sizes
from builder.docker import gpus
from builder.engines.device_code import runs_on
from builder.presets import command, model_files, needs, short_names, speeds
from builder.presets.cards import Card
from builder.presets.catalog import PresetEntry
from builder.presets.figures import PresetUse, Result
from builder.presets.machine import USABLE, HostCard, Machine, host_card, is_listed_as
from builder.presets.needs import MemoryNeed
from builder.presets.schema import Preset
from builder.presets.speeds import Computed, NotComputedError
from builder.recipes.catalog import Catalog
from builder.recipes.schema import Recipe

DIFFERENCE = 0.1
"""Share by which figures of one memory differ, so that both are shown."""


@dataclass(frozen=True, slots=True)
class ReceiptFigure:
    """A figure of a receipt: a run of a preset, as it is."""

    tokens_per_second: float
    """The mean of the runs."""
    interval: tuple[float, float] | None = None
    """The mean's, with 95 % confidence; None for one run."""
    context: int | None = None
    """Tokens."""
    runs: int | None = None
    by: str = ""
    """Who measured; empty: not named."""
    receipt: str = ""
    """Name of its file without the suffix."""


@dataclass(frozen=True, slots=True)
class Measured:
    """A receipt of a preset: its figures, one for each context, and its cards."""

    cards: tuple[tuple[str, int], ...]
    """Name and MiB, as nvidia-smi lists them."""
    figures: tuple[ReceiptFigure, ...]


TOOLS = {"--jinja", "--enable-auto-tool-choice"}
TEMPLATE = "--chat-template-kwargs"


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
    measured_cards: int
    on_such_cards: bool
    """Whether that figure is of the machine's cards."""
    measured: ReceiptFigure | None
    """The figure of a receipt on such cards, which comes before the published figure."""
    computed: Computed | None
    """The speed that the bandwidth of the machine's cards allows; None: it cannot be computed."""
    not_computed: str
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
    capabilities: tuple[str, ...]
    room: int
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
    trials: Mapping[str, PresetUse] = field(default_factory=dict)
    """The recorded trials, by preset."""
    receipts: Mapping[str, Sequence[Measured]] = field(default_factory=dict)
    """The receipts that are runs of a preset, the newest first, by preset."""
    refused: Mapping[str, str] = field(default_factory=dict)
    """Why an image got no tag, by recipe."""
    options: tuple[str, ...] = ()
    """More arguments of the engine, which replace the same ones of a preset."""
    other_model: bool = False
    """Another model than the preset's: the figures of its memory say nothing."""


def matching(entries: Sequence[PresetEntry], text: str) -> list[PresetEntry]:
    """The presets whose name or model has every word of ``text``, in any case."""

    def words(text: str) -> list[str]:
        return re.sub(r"[-_/:@\s]+", " ", text.lower()).split()

    def described(entry: PresetEntry) -> str:
        model = entry.preset.model
        parts = (entry.name, model.name, model.repository, model.file, model.quantization)
        return " ".join(words(" ".join(filter(None, parts))))

    return [entry for entry in entries if all(word in described(entry) for word in words(text))]


def choose(entries: Sequence[PresetEntry], question: Question) -> Choice:
    """The presets that run on the machine, and the others with their reasons."""
    answers = [_Run(entry, question).answer() for entry in entries]
    fits = sorted((each for each in answers if isinstance(each, Fitting)), key=_place)
    excluded = tuple(each for each in answers if isinstance(each, Excluded))
    names = {entry.name: entry.preset.model.name for entry in entries}
    return Choice(question.machine, tuple(fits), excluded, short_names.models(names))


def _place(found: Fitting) -> tuple[bool, Standing, float, str]:
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
    run = _Run(entry, replace(question, context=own if larger else asked))
    found = run.answer()
    why = list(found.why) if isinstance(found, Excluded) else []
    if long := too_long(preset, question):
        return (*why, *long)
    if larger and not why:
        why += filter(None, [run.no_room(asked, run.figures(asked), published=not own)])
    return tuple(why)


def too_long(preset: Preset, question: Question) -> list[str]:
    """Why no card has the question's context: the model was not trained for it."""
    most = 0 if question.other_model else needs.trained(preset, _options(preset, question))
    if not most or question.context <= most:
        return []
    return [f"its model was trained for {most} tokens of context, not for {question.context}"]


def capabilities(preset: Preset) -> tuple[str, ...]:
    """``vision``, ``tools``, and ``thinking`` or ``no thinking``, as far as its options show them.

    llama.cpp, tools/server/README.md: ``--jinja`` is for tool calls, ``--mmproj`` for pictures,
    ``--reasoning-budget 0`` turns thinking off, and so does ``enable_thinking`` of a chat template.
    vLLM, "Tool Calling" and "Reasoning Outputs": ``--enable-auto-tool-choice``,
    ``--reasoning-parser``.
    """
    options = {
        command.option_of(first): first.partition("=")[2] or " ".join(values)
        for first, *values in command.groups(preset.serve.arguments)
    }
    try:
        template = json.loads(options.get(TEMPLATE, ""))
    except ValueError:
        template = None
    off = isinstance(template, dict) and template.get("enable_thinking") is False
    found = ["vision"] if preset.mmproj is not None or "--mmproj" in options else []
    found += ["tools"] if TOOLS & options.keys() else []
    if options.get("--reasoning-budget") == "0" or off:
        found.append("no thinking")
    elif "--reasoning-parser" in options:
        found.append("thinking")
    return tuple(found)


def figure_on(
    runs: Sequence[Measured], cards: Sequence[HostCard], context: int
) -> ReceiptFigure | None:
    """The figure of the newest run on such cards: of the context, else of its largest one."""
    for run in runs:
        left = list(cards)
        for name, memory in run.cards:
            same = (card for card in left if is_listed_as(card, name, memory))
            card = next(same, None)
            if card is None:
                break
            left.remove(card)
        else:
            if not left:
                return max(
                    run.figures, key=lambda each: (each.context == context, each.context or 0)
                )
    return None


def _options(preset: Preset, question: Question) -> dict[str, str]:
    recipe = question.catalog.engine(preset.recipe).recipe
    written = command.written(preset, recipe, (), question.options)
    return command.values_by_setting(written, recipe)


@dataclass(frozen=True)
class _Run:
    """A preset on the machine of a question."""

    entry: PresetEntry
    question: Question

    @property
    def preset(self) -> Preset:
        return self.entry.preset

    @cached_property
    def recipe(self) -> Recipe:
        return self.question.catalog.engine(self.preset.recipe).recipe

    @cached_property
    def cards(self) -> list[HostCard]:
        """The cards of the machine that it would get: they have most memory."""
        machine = self.question.machine
        able = [
            card
            for card in machine.cards
            if runs_on(self.recipe, card.capability, machine.platform)
        ]
        return sorted(able, key=lambda card: -card.memory)[: self.preset.cards]

    @cached_property
    def published_card(self) -> Card | None:
        return self.question.cards.get(self.preset.card)

    @cached_property
    def trial(self) -> PresetUse | None:
        return self.question.trials.get(self.entry.name)

    @cached_property
    def options(self) -> dict[str, str]:
        return _options(self.preset, self.question)

    @cached_property
    def changed(self) -> bool:
        lists = (self.preset.serve.arguments, self.question.options)
        own, new = (command.values_by_setting(words, self.recipe) for words in lists)
        differ = {name for name, value in new.items() if own.get(name) != value}
        return self.question.other_model or bool(needs.RESIZING & differ)

    @cached_property
    def part(self) -> float | None:
        """The largest part of the run on one card; None: each card holds as much as it can."""
        return needs.largest_part(self.recipe, self.options, len(self.cards))

    @cached_property
    def smaller_cards(self) -> bool:
        """Whether the cards have less memory than the publication's, or it is not known."""
        own = self.published_card
        if own is None:
            return True
        if self.part is not None:
            return any(card.memory < own.memory for card in self.cards)
        return sum(card.memory for card in self.cards) < own.memory * self.preset.cards

    def least(self, context: int) -> tuple[int, int] | None:
        return needs.least(self.preset, self.options, context, self.trial)

    def figures(self, context: int, result: Result | None = None) -> list[MemoryNeed]:
        """The figures of the memory with a context that can be right, the largest first.

        The user's options may change them: then there is none.
        """
        if self.changed:
            return []
        weights, _ = self.least(context) or (0, 0)
        found = needs.figures(self.preset, context, result, self.trial)
        return [each for each in found if each.by == "trial" or each.size >= weights]

    def answer(self) -> Fitting | Excluded:
        wanted, contexts = self.question.context, self.contexts()
        wide = [each for each in contexts if each[0] >= wanted]
        why = [*self.unable(), *([] if wide else [self.too_short(contexts[0][0])])]
        if why:
            return Excluded(self.entry.name, tuple(why))
        lacks = ""
        # With a requested context, the smallest that is enough comes first; else the largest.
        for context, result in reversed(wide) if wanted else wide:
            known = self.figures(context, result)
            fault = self.no_room(context, known)
            if not fault:
                return self.fitting(context, result, known)
            # Report the fault of the smallest context.
            lacks = lacks if lacks and wanted else fault
        use = self.trial
        if use is None or use.smaller is None or wanted > use.context:
            return Excluded(self.entry.name, (lacks,))
        # Between both trials: the requested context, else the largest multiple of STEP with room.
        least, last = use.smaller.context, use.context // needs.STEP * needs.STEP
        multiples = range(last, least - 1, -needs.STEP)
        tries = (max(wanted, least),) if wanted else multiples
        if context := next(filter(self.has_room, tries), 0):
            return self.fitting(context, None, self.figures(context))
        if wanted:
            lacks = self.no_room(wanted, self.figures(wanted))
            if fits := next(filter(self.has_room, multiples), 0):
                lacks = f"{lacks}; a context of {fits} tokens fits"
        return Excluded(self.entry.name, (lacks,))

    def unable(self) -> Iterator[str]:
        """Why no context helps: the image, the cards, the driver."""
        recipe, machine, cards = self.recipe, self.question.machine, self.cards
        if refused := self.question.refused.get(recipe.name):
            yield refused
        if why := [*needs.no_image(recipe, machine.cards, machine.platform)]:
            yield from why
        elif len(cards) < self.preset.cards:
            yield f"it needs {self.preset.cards} cards, this machine has {len(cards)} for it"
        driver = needs.driver_on(recipe, self.question.catalog, cards)
        if gpus.is_older(machine.driver, driver):
            yield f"the driver {machine.driver} is too old: it needs {driver} or newer"

    def contexts(self) -> list[tuple[int, Result | None]]:
        """The contexts that it was published with, and the figure of each; largest first.

        One that was too large for the preset's card is for cards with more memory: cards of one
        nominal size differ by 1 - ``USABLE``.
        """
        preset, tried = self.preset, self.published_card
        own = preset.serve.context or 0
        too_large = preset.published_context is not None and (
            tried is None or any(card.memory * USABLE <= tried.memory for card in self.cards)
        )
        found: dict[int, Result | None] = {own: None}
        for result in preset.result:
            context = preset.context_of(result)
            fits = context <= own or not too_large
            if result.of_preset and fits and found.get(context) is None:
                found[context] = result
        return sorted(found.items(), key=lambda each: -each[0])

    def too_short(self, largest: int) -> str:
        wanted, published = self.question.context, self.preset.published_context or 0
        if not largest:
            return f"its context is not known, {wanted} tokens are asked for"
        text = f"its context is {largest} tokens, {wanted} are asked for"
        if largest >= published:
            return text
        return f"{text}; the published {published} did not fit the {self.preset.card}"

    def has_room(self, context: int) -> bool:
        known = self.figures(context)
        return bool(known) and not self.no_room(context, known)

    def no_room(self, context: int, known: Sequence[MemoryNeed], *, published: bool = True) -> str:
        """What the run lacks on its cards; empty: nothing is known.

        ``known`` are its figures.  ``published``: cards as small as the cards of the publication
        are enough where nothing else is known of its memory, and smaller ones are not.
        """
        cards = self.cards
        if unknown := [card.name for card in cards if not card.memory]:
            return f"the memory of the {unknown[0]} is not known"
        least = None if self.question.other_model else self.least(context)
        if least and (lacks := self.lacks(sum(least), of_share=True)):
            what = "its weights and its cache take" if least[1] else "its weights take"
            return f"{what} {sizes.gib(sum(least))} at least{lacks}"
        if known:
            need = known[0]
            source = {
                "trial": "as tried",
                "filled": "with a full context",
                "estimate": "as estimated",
            }
            by = source.get(need.by, "as published")
            whole = need.by in {"source", "unverified"} and sum(need.kinds.values()) == need.size
            lacks = self.lacks(need.on(cards), of_share=whole)
            return f"it takes {sizes.gib(need.on(cards))} ({by}){lacks}" if lacks else ""
        if not published or self.changed or not self.smaller_cards:
            return ""
        card = self.published_card
        if card is None:
            return f"its memory is not known, nor the memory of the {self.preset.card}"
        ran = sizes.gib(card.memory * self.preset.cards)
        return f"its memory is not known; it ran with {ran}, and here are {self.room}"

    @property
    def room(self) -> str:
        if self.part is not None and len(self.cards) > 1:
            return " and ".join(sizes.gib(card.memory) for card in self.cards)
        return sizes.gib(sum(card.memory for card in self.cards))

    def lacks(self, size: int, *, of_share: bool) -> str:
        """How much the cards have too little for a run; empty: they have enough."""
        share, part = needs.share(self.options) if of_share else 1.0, self.part
        if part is None or len(self.cards) == 1:
            lacking, each = size - share * sum(card.memory for card in self.cards), ""
        else:
            lacking = size * part - share * min(card.memory for card in self.cards)
            each = f", {sizes.gib(round(size * part))} of it on one card"
        if lacking <= 0:
            return ""
        here = f"here are {self.room}" + (
            f", of which it may take {share:.0%}" if share < 1 else ""
        )
        return f"{each}, and {here}: {sizes.gib(ceil(lacking))} too little"

    def fitting(self, context: int, result: Result | None, known: list[MemoryNeed]) -> Fitting:
        preset, cards, use, own = self.preset, self.cards, self.trial, self.published_card
        room = sum(card.memory for card in cards)
        figure = result or preset.published
        files = [file.known_size for file in model_files.of_preset(preset).values()]
        computed, not_computed = None, ""
        try:
            bandwidth = own.bandwidth if own is not None else 0
            computed = speeds.computed(preset, self.recipe.engine, cards[0].bandwidth, bandwidth)
        except NotComputedError as error:
            not_computed = str(error)
        differ = bool(known) and known[0].size > known[-1].size * (1 + DIFFERENCE)
        confirmed = any(each.by in {"trial", "filled", "source"} for each in known)
        catalog, driver = self.question.catalog, self.question.machine.driver
        return Fitting(
            preset=self.entry.name,
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
            on_such_cards=own is not None and all(card == host_card(own) for card in cards),
            measured=figure_on(self.question.receipts.get(self.entry.name, ()), cards, context),
            computed=computed,
            not_computed=not_computed,
            memory=known[0] if known else None,
            other_memory=known[-1] if differ else None,
            least=sum(self.least(context) or ()),
            certain=(not self.smaller_cards or confirmed)
            and needs.is_new_enough(driver, self.recipe, catalog),
            filled=(bool(known) and known[0].by == "filled")
            or (
                use is not None
                and bool(use.filled)
                and context <= use.context
                and room >= use.memory
            ),
            driver=needs.driver_on(self.recipe, catalog, cards),
            capabilities=capabilities(preset),
            room=room,
            caveats=(*preset.slower(figure), *(each.shown for each in preset.caveat)),
        )
