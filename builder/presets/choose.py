"""The presets that run on a machine, the largest model first, and why others do not.

What is known beside the presets' files counts: trials, this machine's records, and receipts.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from enum import StrEnum
from itertools import islice
from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import AliasPath, BaseModel, Field

from builder.core import sizes
from builder.core.errors import PROGRAM, FitError, WorldError
from builder.core.log import Log
from builder.core.platforms import Platform
from builder.docker import gpus
from builder.engines import families, layout
from builder.engines.device_code import no_code, runs_on
from builder.presets import cards, command, is_preset, model_names, named, shapes
from builder.presets.cards import USABLE, Card, HostCard, Machine, host_card, is_listed_as
from builder.presets.catalog import PresetEntry, Presets, load, with_recipes
from builder.presets.schema import TRIALS, Preset, PresetUse, Result, read_trials
from builder.recipes.catalog import Catalog
from builder.recipes.schema import Recipe

if TYPE_CHECKING:
    from builder.presets.receipts import Receipt

PROPOSED = "llama-cpp"  # the engine of runs that are proposed: it reads every GGUF
AUTO = "auto"  # in place of a card's name: the cards of this machine

# The requirements of a preset: code for the card, a driver, memory.

STEP = 8192  # tokens of a context that is found between two trials
SHARES = ("--gpu-memory-utilization", "--mem-fraction-static")
"""Options of vLLM and SGLang: the share of each card that weights and cache may take."""
RESIZING = {
    *shapes.OFFLOADING,
    *("--n-gpu-layers", "--spec-draft-ngl", "--cache-type-k", "--cache-type-v"),
    *("--batch-size", "--ubatch-size", "--parallel", "--flash-attn", "--spec-type"),
    *("--model", "--model-draft", "--mmproj", "--kv-cache-dtype", "--dtype", "--quantization"),
    *("--max-num-seqs", "--max-num-batched-tokens", "--language-model-only", "--tensor-split"),
    *("--speculative-config", "--tensor-parallel-size", "--pipeline-parallel-size"),
}  # settings with which a run takes another memory than the preset's figures have
STRETCHING = {
    *("--rope-scaling", "--rope-scale", "--rope-freq-base", "--rope-freq-scale"),
    *("--yarn-orig-ctx", "--override-kv", "--hf-overrides", "--json-model-override-args"),
}  # options with which a model takes more tokens than it was trained for


def stretches(options: Mapping[str, str]) -> bool:
    """Whether options let a model take more tokens than it was trained for."""
    return bool(STRETCHING & options.keys())


def _share_of_cards(options: Mapping[str, str]) -> float:
    try:
        return min([1.0, *(float(options[name]) for name in SHARES if name in options)])
    except ValueError:  # the engine refuses it
        return 1.0


def largest_part(recipe: Recipe, options: Mapping[str, str], count: int) -> float | None:
    """The part of a run that the card with the most of it holds; None: each as much as it can.

    llama.cpp gives each card layers, or rows, by its free memory (``--split-mode``), unless
    ``--tensor-split`` has other parts; all others give each card the same.
    """
    given = options.get("--tensor-split", "")
    try:
        parts = [float(each) for each in re.split(r"[,/]", given) if each]
    except ValueError:
        parts = []
    if parts and sum(parts):
        return max(parts) / sum(parts)
    mode = options.get("--split-mode", "layer")
    if mode == "none":
        return 1.0
    serve = families.serve_of(recipe)
    splits = serve is not None and serve.api_flavor in {"llama-server", "llama-cpp-python"}
    return None if splits and mode in {"layer", "row"} else 1 / count


def no_image(
    recipe: Recipe, cards: Sequence[HostCard], platform: Platform | None, whose: str = "its"
) -> Iterator[str]:
    """Why a recipe's image runs on none of a machine's cards; nothing where it runs on one."""
    if platform not in {None, *recipe.platform}:
        known = " and ".join(recipe.platform)
        yield f"{whose} image is for {known}, the machine of the card is {platform}"
    elif not any(runs_on(recipe, card.capability, platform) for card in cards):
        capabilities = (card.capability for card in cards)
        yield f"{whose} image has {no_code(recipe, *capabilities, platform=platform)}"


def oldest_driver(recipe: Recipe, catalog: Catalog) -> str:
    """The oldest driver that a recipe's image runs with; empty where it is not known."""
    bases = (catalog.base(name).recipe for name in catalog.chain(recipe.base))
    return layout.oldest_driver(recipe, next((base.cuda for base in bases if base.cuda), None))


def driver_on(recipe: Recipe, catalog: Catalog, cards: Sequence[HostCard]) -> str:
    """The oldest driver that a recipe's image runs with on cards; empty where it is not known."""
    first = (layout.FIRST_DRIVERS.get(card.capability.major, "") for card in cards)
    return max((oldest_driver(recipe, catalog), *first), key=gpus.version_numbers)


# The choice.

DIFFERENCE = 0.1  # share by which figures of one memory differ, so that both are shown


Measured = tuple[Sequence[tuple[str, int]], Sequence[shapes.Figure]]
"""A receipt of a preset: its cards, by name and MiB as nvidia-smi lists them, and its figures, one
for each context."""
SOURCES = {"trial": "as tried", "filled": "with a full context", "estimate": "as estimated"}
TOOLS = {"--jinja", "--enable-auto-tool-choice"}
TEMPLATE = "--chat-template-kwargs"
WORDS = re.compile(r"[-_/:@\s]+")
PARAMETERS = re.compile(r"(\d+(?:\.\d+)?)B\b", re.I)
"""The billions of parameters in a model's name, all of them first: 35B-A3B, E4B."""
SLOW = 10  # tokens a second: slower than one reads


class Standing(StrEnum):
    """How well a preset is known on a machine's cards, the best first."""

    MEASURED = "measured"  # by a receipt of such cards
    PUBLISHED = "published"  # its figure was published for such cards
    ELSEWHERE = "elsewhere"  # its figure was published for other cards
    COMPUTED = "computed"  # it has no figure but a computed speed
    UNKNOWN = "unknown"
    """It has no figure at all, or neither its context nor its memory is known: whether it fits is
    then not known, either."""


class Obstacle(StrEnum):
    """The kinds of reasons why a preset does not run, as headings of a list."""

    IMAGE = "No image for this card"
    REFUSED = "Image refused by its checks"
    CARDS = "More cards needed"
    DRIVER = "Driver too old"
    CONTEXT = "Context shorter than asked for, or not known"
    MEMORY = "Too little memory"
    UNKNOWN = "Memory not known, and published on a larger card"


Reason = tuple[Obstacle, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """A preset that runs on the machine; sizes are bytes, None and empty texts not known.

    ``choose --json`` and the site's ``index.json`` have these names.
    """

    preset: str
    short_name: str
    model: str
    recipe: str
    recommended: bool  # the first certain one of its model that can be downloaded
    certain: bool = False
    """It is known to fit, not by a figure that nobody confirmed, and so is the driver."""
    quantization: str
    download: int | None
    composed: bool  # for this farm: nobody published such a run, and its first caveat says so
    needs_file: bool  # one of its models has no repository: the user has to name a file
    context: int  # tokens; 0: the engine's own default
    other_context: int | None  # the context, where it is not the preset's own
    known: Standing
    figure: shapes.Figure | None  # the best that is known: by a receipt, as published, or computed
    computed: shapes.Figure | None  # for this card, beside a ``figure`` of another one
    not_computed: str
    memory: int | None
    """The largest known figure; None: the machine has as much as the card of the publication."""
    memory_by: str
    other_memory: int | None
    """The smallest known figure, where both differ by more than ``DIFFERENCE``."""
    least: int | None  # the weights and the cache: the least that the run takes
    filled: bool  # whether it is known that prompts fill the context in so much memory
    room: int  # memory of its cards
    driver: str
    capabilities: tuple[str, ...]
    caveats: tuple[str, ...]  # of this card, without those that the image mends
    command: str

    @property
    def own(self) -> shapes.Figure | None:
        """The speed on the machine's own card; None: not known."""
        return self.computed if self.figure is None or self.figure.card else self.figure


@dataclass(frozen=True, slots=True)
class Refusal:
    """A preset that does not run on the machine, and why."""

    preset: str
    short_name: str
    model: str
    why: tuple[str, ...]
    obstacle: Obstacle  # of the first reason


@dataclass(frozen=True, slots=True)
class Choice:
    """All presets that were asked for."""

    machine: Machine
    fits: tuple[Option, ...]  # by model, the one to start first; of a model, the best first
    excluded: tuple[Refusal, ...]
    context: int = 0  # the least that was asked for

    @property
    def recommended(self) -> tuple[Option, ...]:
        """The first preset of each model that can be downloaded and is known to fit."""
        return tuple(each for each in self.fits if each.recommended)


@dataclass(frozen=True, slots=True)
class Question:
    """The machine, the wishes, and the known facts of presets."""

    machine: Machine
    catalog: Catalog
    cards: Mapping[str, Card]
    """The cards of ``cards/`` that presets were published for, by their file's name."""
    context: int = 0  # the least context in tokens
    trials: Mapping[str, PresetUse] = field(default_factory=dict)  # the recorded trials, by preset
    receipts: Mapping[str, Sequence[Measured]] = field(default_factory=dict)
    """The receipts that are runs of a preset, the newest first, by preset."""
    refused: Mapping[str, str] = field(default_factory=dict)  # why an image got no tag, by recipe
    options: tuple[str, ...] = ()
    """More arguments of the engine, which replace the same ones of a preset."""
    other_model: bool = False
    """Another model than the preset's: the figures of its memory say nothing."""


def matching(entries: Sequence[PresetEntry], text: str) -> list[PresetEntry]:
    """The presets whose name or model has every word of ``text``, in any case."""
    wanted = WORDS.sub(" ", text.lower()).split()
    found = []
    for entry in entries:
        model = entry.preset.model
        parts = (entry.name, model.name, model.repository, model.file, model.quantization)
        known = WORDS.sub(" ", " ".join(filter(None, parts)).lower())
        found += [entry] if all(word in known for word in wanted) else []
    return found


def choose(
    entries: Sequence[PresetEntry], question: Question, models: Mapping[str, str] | None = None
) -> Choice:
    """The presets that run on the machine, and the others with their reasons.

    The first model has most parameters: the largest is the most able one of its time.  A model
    that is too slow to read along, or whose speed is not known, comes after the others, and one
    without a recommended preset last.  ``models`` are the short names of the presets' models, by
    preset; None: by these presets.
    """
    models = models or model_names({entry.name: entry.preset.model.name for entry in entries})
    runs = [_Run(entry, question) for entry in entries]
    answers = [(run, run.answer(models[run.name])) for run in runs]
    able = [(run, each) for run, each in answers if isinstance(each, Option)]
    fits: dict[str, list[Option]] = {}
    done = set()
    for _, each in sorted(able, key=lambda pair: _place(*pair)):
        first = each.certain and not each.needs_file and each.short_name not in done
        done |= {each.short_name} if first else set()
        fits.setdefault(each.short_name, []).append(replace(each, recommended=first))
    ordered = sorted(fits.values(), key=_place_of_model)
    excluded = (each for _, each in answers if isinstance(each, Refusal))
    rows = tuple(each for of_model in ordered for each in of_model)
    return Choice(question.machine, rows, tuple(excluded), question.context)


def _place(run: _Run, found: Option) -> tuple[bool | float | str, ...]:
    """A figure of such cards is first, then a run that is made for cards of this memory, else for
    the next smaller ones: it has the largest quantization that fits.

    Without a speed, the one with most of the model on the card is first.
    """
    own, standing = found.own, [*Standing].index(found.known)
    if found.known is Standing.COMPUTED:  # as one whose figure is of other cards
        standing = [*Standing].index(Standing.ELSEWHERE)
    figure = own or found.figure
    speed = figure.tokens_per_second if figure else 0
    known = (found.needs_file, standing, own is None, figure is None)
    return *known, run.distance, -speed, -(found.memory or 0), found.preset


def _place_of_model(found: Sequence[Option]) -> tuple[bool | float | str, ...]:
    best = next((each for each in found if each.recommended), found[0])
    figure = best.own or best.figure
    speed = figure.tokens_per_second if figure else 0
    known = ([*Standing].index(best.known), best.own is None)
    size = model_place(best.model, speed)
    return not best.recommended, *size, *known, -speed, best.short_name


def model_place(model: str, speed: float) -> tuple[bool, float]:
    """The largest model first, by its name; one that is slow or of unknown speed behind it."""
    size = PARAMETERS.search(model)
    return speed < SLOW, -float(size[1]) if size else 0


def faults(entry: PresetEntry, question: Question) -> tuple[str, ...]:
    """Why a run of a preset with its own context, or exactly the question's, does not work.

    Above the preset's context, which a user may try, only what is known speaks against it.
    """
    preset, own = entry.preset, entry.preset.serve.context or 0
    asked = question.context or own
    larger = preset.published_context is None and asked > own
    run = _Run(entry, replace(question, context=own if larger else asked))
    found = run.answer("")
    why = list(found.why) if isinstance(found, Refusal) else []
    if long := too_long(preset, question):
        return (*why, *long)
    if larger and not why:
        lacks = run.no_room(asked, run.figures(asked), published=not own)
        why += [lacks[1]] if lacks else []
    return tuple(why)


def too_long(preset: Preset, question: Question) -> list[str]:
    """Why no card has the question's context: the model was not trained for it."""
    shape, options = shapes.model_shape(preset), _options(preset, question)
    if shape is None or question.other_model or stretches(options):
        return []
    most = shapes.number(shape, "context_length", 0)
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
    options = command.values_of(preset.serve.arguments)
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
) -> shapes.Figure | None:
    """The figure of the newest run on such cards: of the context, else of its largest one."""
    for measured_on, figures in runs:
        left = list(cards)
        for name, memory in measured_on:
            card = next((card for card in left if is_listed_as(card, name, memory)), None)
            if card is None:
                break
            left.remove(card)
        else:
            if not left:
                return max(figures, key=lambda each: (each.context == context, each.context or 0))
    return None


def run_words(name: str, preset: Preset, context: int | None) -> list[str]:
    """The words after ``run`` that start a preset: with FILE for each model without a repository
    and file, which the user has to name."""
    words = [name, *(["--context", str(context)] if context else [])]
    for place, file in preset.files.items():
        if file.repository is None and not file.whole and file.file is None:
            words += [f"--{place}", "FILE"]
    return words


def _options(preset: Preset, question: Question) -> dict[str, str]:
    recipe = question.catalog.engine(preset.recipe).recipe
    written = command.written(preset, recipe, (), question.options)
    return command.values_by_setting(written, recipe)


class _Run:
    def __init__(self, entry: PresetEntry, question: Question) -> None:
        self.name, self.preset, self.question = entry.name, entry.preset, question
        self.accepted = entry.accepted
        self.recipe = question.catalog.engine(self.preset.recipe).recipe
        self.trial = question.trials.get(entry.name)
        self.options = _options(self.preset, question)
        machine = question.machine
        largest = sorted(machine.cards, key=lambda card: -card.memory)
        able = (each for each in largest if runs_on(self.recipe, each.capability, machine.platform))
        self.cards = [*islice(able, self.preset.cards)]  # those with most memory
        self.part = largest_part(self.recipe, self.options, len(self.cards) or 1)
        own = command.values_by_setting(self.preset.serve.arguments, self.recipe)
        new = command.values_by_setting(question.options, self.recipe)
        differ = {name for name, value in new.items() if own.get(name) != value}
        self.changed = question.other_model or bool(RESIZING & differ)
        self.published_card = question.cards.get(self.preset.card)

    @property
    def smaller_cards(self) -> bool:
        own = self.published_card
        if own is None:
            return True
        if self.part is not None:
            return any(card.memory < own.memory for card in self.cards)
        return sum(card.memory for card in self.cards) < own.memory * self.preset.cards

    @property
    def distance(self) -> float:
        """How far its own card's memory is from the machine's: 0 where it is as large, apart from
        what is reserved; the share that is missing; 1 where it is larger, or not known."""
        own = self.published_card.memory if self.published_card else 0
        least = min((card.memory for card in self.cards), default=0)
        if not own or not least or least < own * USABLE:
            return 1
        return 0 if least * USABLE <= own else 1 - own / least

    def least(self, context: int) -> tuple[int, int] | None:
        return shapes.least_memory(self.preset, self.options, context, self.trial)

    def figures(self, context: int, result: Result | None = None) -> list[shapes.MemoryNeed]:
        """The figures of the memory with a context that can be right, the largest first.

        The user's options may change them: then there is none.
        """
        if self.changed:
            return []
        weights, _ = self.least(context) or (0, 0)
        found = shapes.memory_figures(self.preset, context, result, self.trial)
        return [each for each in found if each.by == "trial" or each.size >= weights]

    def answer(self, short_name: str) -> Option | Refusal:
        wanted, contexts = self.question.context, self.contexts()
        wide = [each for each in contexts if each[0] >= wanted]
        why = [*self.unable(), *([] if wide else [self.too_short(contexts[0][0])])]
        fitting, lacks = (None, None) if why else self.with_room(wide)
        if fitting is not None:
            return self.option(short_name, *fitting)
        why += [lacks] if lacks else []
        texts = tuple(text for _, text in why)
        return Refusal(self.name, short_name, self.preset.model.name, texts, why[0][0])

    def with_room(
        self, contexts: Sequence[tuple[int, Result | None]]
    ) -> tuple[tuple[int, Result | None, list[shapes.MemoryNeed]] | None, Reason | None]:
        """The context with room on the cards, with its result and figures; else what lacks.

        With a requested context, the smallest that is enough comes first; else the largest.
        """
        wanted, use, lacks = self.question.context, self.trial, None
        for context, result in reversed(contexts) if wanted else contexts:
            known = self.figures(context, result)
            fault = self.no_room(context, known)
            if not fault:
                return (context, result, known), None
            # Report the fault of the smallest context.
            lacks = lacks if lacks and wanted else fault
        if use is None or use.smaller is None or wanted > use.context:
            return None, lacks
        # Between both trials: the requested context, else the largest multiple of STEP with room.
        least, last = use.smaller.context, use.context // STEP * STEP
        multiples = range(last, least - 1, -STEP)
        tries = (max(wanted, least),) if wanted else multiples
        if context := next(filter(self.has_room, tries), 0):
            return (context, None, self.figures(context)), None
        if wanted:
            lacks = self.no_room(wanted, self.figures(wanted))
            fits = next(filter(self.has_room, multiples), 0)
            if lacks and fits:
                lacks = lacks[0], f"{lacks[1]}; a context of {fits} tokens fits"
        return None, lacks

    def unable(self) -> Iterator[Reason]:
        recipe, machine, cards = self.recipe, self.question.machine, self.cards
        if refused := self.question.refused.get(recipe.name):
            yield Obstacle.REFUSED, refused
        if why := [*no_image(recipe, machine.cards, machine.platform)]:
            yield from ((Obstacle.IMAGE, each) for each in why)
        elif (lack := self.preset.cards - len(cards)) > 0:
            yield Obstacle.CARDS, f"it needs {self.preset.cards} cards: {lack} more"
        split = self.options.get(command.PARALLEL, "")
        if split.isdecimal() and int(split) > self.preset.cards:
            what = f"{command.PARALLEL} {split} takes {split} cards"
            yield Obstacle.CARDS, f"{what}, the preset is for {self.preset.cards}"
        driver = driver_on(recipe, self.question.catalog, cards)
        if gpus.is_older(machine.driver, driver):
            what = f"the driver {machine.driver} is too old: it needs {driver} or newer"
            yield Obstacle.DRIVER, what

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

    def too_short(self, largest: int) -> Reason:
        wanted, published = self.question.context, self.preset.published_context or 0
        known = f"{largest} tokens" if largest else "not known"
        text = f"its context is {known}, {wanted} are asked for"
        if largest and largest < published:
            text += f"; the published {published} did not fit the {self.preset.card}"
        return Obstacle.CONTEXT, text

    def has_room(self, context: int) -> bool:
        known = self.figures(context)
        return bool(known) and not self.no_room(context, known)

    def no_room(
        self, context: int, known: Sequence[shapes.MemoryNeed], *, published: bool = True
    ) -> Reason | None:
        """What the run lacks on its cards; None: nothing is known.

        ``known`` are its figures.  ``published``: cards as small as the cards of the publication
        are enough where nothing else is known of its memory, and smaller ones are not.
        """
        cards = self.cards
        if unknown := [card.name for card in cards if not card.memory]:
            return Obstacle.UNKNOWN, f"the memory of the {unknown[0]} is not known"
        least = None if self.question.other_model else self.least(context)
        if least and (lacks := self.lacks(sum(least), of_share=True)):
            what = "its weights and its cache take" if least[1] else "its weights take"
            return Obstacle.MEMORY, f"{what} {sizes.gib(sum(least))} at least{lacks}"
        if known:
            need = known[0]
            by = SOURCES.get(need.by, "as published")
            whole = need.by in {"source", "unverified"} and sum(need.kinds.values()) == need.size
            lacks = self.lacks(need.on(cards), of_share=whole)
            text = f"it takes {sizes.gib(need.on(cards))} ({by}){lacks}"
            return (Obstacle.MEMORY, text) if lacks else None
        if not published or self.changed or not self.smaller_cards:
            return None
        card = self.published_card
        if card is None:
            text = f"its memory is not known, nor the memory of the {self.preset.card}"
        else:
            ran = sizes.gib(card.memory * self.preset.cards)
            made = "is composed for" if self.preset.composed else "ran with"
            less = ", a little less" if self.has.endswith(ran) else ""
            text = f"its memory is not known; it {made} {ran}, {self.has}{less}"
        return Obstacle.UNKNOWN, text

    @property
    def has(self) -> str:
        cards = self.cards
        if len(cards) == 1:
            return f"this card has {sizes.gib(cards[0].memory)}"
        if self.part is None:
            return f"these cards have {sizes.gib(sum(card.memory for card in cards))}"
        return f"these cards have {' and '.join(sizes.gib(card.memory) for card in cards)}"

    def lacks(self, size: int, *, of_share: bool) -> str:
        share, part = _share_of_cards(self.options) if of_share else 1.0, self.part
        if part is None or len(self.cards) == 1:
            lacking, each = size - share * sum(card.memory for card in self.cards), ""
        else:
            lacking = size * part - share * min(card.memory for card in self.cards)
            each = f", {sizes.gib(round(size * part))} of it on one card"
        if lacking <= 0:
            return ""
        of_them = f", of which it may take {share:.0%}" if share < 1 else ""
        return f"{each}; {self.has}{of_them}: {sizes.gib(ceil(lacking))} too little"

    def option(
        self, short_name: str, context: int, result: Result | None, known: list[shapes.MemoryNeed]
    ) -> Option:
        preset, cards, use, own = self.preset, self.cards, self.trial, self.published_card
        room = sum(card.memory for card in cards)
        full = bool(use and use.filled and context <= use.context and room >= use.memory)
        files = [file.known_size for file in preset.files.values()]
        measured = figure_on(self.question.receipts.get(self.name, ()), cards, context)
        published, computed, not_computed = self.published(result), None, ""
        try:
            published_at = own.bandwidth if own is not None else 0
            computed = shapes.computed_speed(
                preset,
                self.recipe.engine,
                cards[0].bandwidth,
                published_at,
                accepted=self.accepted,
            )
        except shapes.NotComputedError as error:
            not_computed = str(error)
        figure = measured or published or computed
        here = computed if figure and figure.card else None
        standing = Standing.UNKNOWN
        if measured:
            standing = Standing.MEASURED
        elif figure and (context or known):
            standing = Standing.COMPUTED if not published else Standing.PUBLISHED
            standing = Standing.ELSEWHERE if figure.card else standing
        other = None if context in {0, preset.serve.context} else context
        differ = bool(known) and known[0].size > known[-1].size * (1 + DIFFERENCE)
        return Option(
            preset=self.name,
            short_name=short_name,
            model=preset.model.name,
            recipe=preset.recipe,
            recommended=False,  # ``choose`` decides
            certain=self.certain(known),
            quantization=preset.model.quantization or "",
            download=sum(size for size in files if size) if all(files) else None,
            composed=preset.composed,
            needs_file=not preset.downloadable,
            context=context,
            other_context=other,
            known=standing,
            figure=figure,
            computed=here,
            not_computed="" if figure else not_computed,
            memory=known[0].size if known else None,
            memory_by=known[0].by if known else "",
            other_memory=known[-1].size if differ else None,
            least=sum(self.least(context) or ()) or None,
            filled=full or (bool(known) and known[0].by == "filled"),
            room=room,
            driver=driver_on(self.recipe, self.question.catalog, cards),
            capabilities=capabilities(preset),
            caveats=tuple(self.caveats(result or preset.published, here or figure)),
            command=shlex.join([PROGRAM, "run", *run_words(self.name, preset, other)]),
        )

    def published(self, result: Result | None) -> shapes.Figure | None:
        preset, own = self.preset, self.published_card
        result = result or preset.published
        if result is None:
            return None
        here = own is not None and all(card == host_card(own) for card in self.cards)
        return shapes.Figure(
            round(result.tokens_per_second.middle, 2),
            context=preset.context_of(result) or None,
            card="" if here else preset.card,
            cards=preset.cards,
        )

    def certain(self, known: Sequence[shapes.MemoryNeed]) -> bool:
        """Whether it is known that it fits, not by a figure that nobody confirmed, and that the
        driver is new enough."""
        confirmed = any(each.by in {"trial", "filled", "source"} for each in known)
        # An image without CUDA's version may need the newest of all drivers.
        newest = oldest_driver(self.recipe, self.question.catalog)
        newest = newest or max(layout.OLDEST_DRIVERS.values())
        ran = not (self.smaller_cards or self.preset.composed)  # on cards with no more memory
        return (ran or confirmed) and not gpus.is_older(self.question.machine.driver, newest)

    def caveats(self, result: Result | None, figure: shapes.Figure | None) -> Iterator[str]:
        yield from self.preset.notes(result)
        if figure and figure.source == "computed" and shapes.EXPERTS.keys() & self.options.keys():
            yield f"Its speed is computed for a machine's memory with {shapes.HOST // 10**9} GB/s."
        own = self.published_card
        larger = own is not None and all(card.memory * USABLE > own.memory for card in self.cards)
        for each in self.preset.caveat:
            if each.only is None or (each.only == "memory" and not larger):
                yield each.shown


# What is known of presets beside their files: trials, this machine's records, and receipts.
#
# A record and a file of ``trials/`` are read as plain data: only the members that decide here.


class _Record(BaseModel, strict=True):
    platform: str
    created: str
    checks: list[Mapping[str, object]] = Field(validation_alias=AliasPath("verdict", "checks"))
    presets: Mapping[str, PresetUse] = Field(validation_alias=AliasPath("verdict", "presets"))


class _Trials(BaseModel, strict=True):
    created: str
    failed: Mapping[str, int] = {}
    presets: Mapping[str, PresetUse]


@dataclass(frozen=True, slots=True)
class Known:
    """Presets with the records and receipts of a moment."""

    entries: Sequence[PresetEntry]
    question: Question  # for a machine without cards
    invalid: int  # receipts that do not count

    def choice(self, machine: Machine, context: int = 0, text: str = "") -> Choice:
        """The presets that run on a machine with at least so many tokens of context.

        Only those whose name or model has the words of ``text``.
        """
        question = replace(self.question, machine=machine, context=context)
        return choose(matching(self.entries, text), question, self.models)

    @property
    def models(self) -> dict[str, str]:
        """The short name of each preset's model, by the preset's name."""
        return model_names({entry.name: entry.preset.model.name for entry in self.entries})


def known(
    catalog: Catalog,
    entries: Sequence[PresetEntry],
    state: Path,
    *,
    receipts: Mapping[str, Receipt] | None = None,
) -> Known:
    """The facts about presets in the repository and the state directory.

    ``receipts`` are checked already; None: the repository's receipts are checked now.
    """
    measured, invalid = {}, 0
    if receipts or (receipts is None and any((catalog.root / "receipts").glob("*.json"))):
        from builder.presets.receipts import checked, of_presets  # slow to import

        if receipts is None:
            found = checked(catalog, datetime.now(UTC))
            receipts, invalid = found.entries, len(found.invalid)
        measured = of_presets(receipts, catalog, entries)
    others = [name for name in catalog.engines if name.startswith(f"{PROPOSED}-")]
    trials, refused = tried(catalog.root, state, entries, others)
    published = cards.known(catalog.root, {entry.preset.card for entry in entries})
    question = Question(
        Machine(()), catalog, published, trials=trials, receipts=measured, refused=refused
    )
    return Known(entries, question, invalid)


def tried(
    root: Path, state: Path, entries: Sequence[PresetEntry], recipes: Iterable[str] = ()
) -> tuple[dict[str, PresetUse], dict[str, str]]:
    """The trials of presets by name; and by recipe, why its image was refused.

    This machine's record counts before the repository's file, which is for machines that never
    built the image, and both only for a preset that is as it was when it was tried.
    """
    trials: dict[str, PresetUse] = {}
    refused = {}
    for recipe in dict.fromkeys([*recipes, *(entry.preset.recipe for entry in entries)]):
        file = Path(TRIALS) / f"{recipe}.json"
        kept, own = read_trials(root / file, _Trials), _verified(state, recipe)
        if kept and kept.failed and (own is None or own.created < kept.created):
            checks = " and ".join(f"{count} of {kind}" for kind, count in kept.failed.items())
            refused[recipe] = f"its image was refused: checks failed, {checks} ({file})"
        for entry in (each for each in entries if each.preset.recipe == recipe):
            for each in (own, kept):
                use = each.presets.get(entry.name) if each else None
                if use and use.identity == entry.preset.identity:
                    trials.setdefault(entry.name, use)
    return trials, refused


def _verified(state: Path, recipe: str) -> _Record | None:
    found = []
    for file in (state / "records" / recipe).glob("*.json"):
        with suppress(OSError, ValueError, LookupError, TypeError):
            kept = _Record.model_validate_json(file.read_bytes())
            states = {check["state"] for check in kept.checks}
            found += [kept] if states and not states & {"failed", "untried"} else []
    return max(found, key=lambda each: (each.platform == "linux/amd64", each.created), default=None)


def of_farm(root: Path) -> tuple[Presets, Catalog]:
    """The presets of the farm at ``root``, and the recipes that they and its receipts name.

    Beside them, only recipes of llama.cpp with a trial are read, for proposals.
    """
    recipes = {file.stem for file in (root / TRIALS).glob(f"{PROPOSED}-[b0-9]*.json")}
    recipes = {name for name in recipes if (root / "recipes" / f"{name}.toml").exists()}
    for file in (root / "receipts").glob("*.json"):
        with suppress(OSError, ValueError, LookupError, TypeError):  # reported by ``known``
            recipes.add(str(json.loads(file.read_bytes())["image"]["recipe"]))
    return with_recipes(root, recipes)


# The preset that a short name means on a machine: the best that runs there.


def resolved(
    catalog: Catalog,
    target: str,
    state: Path,
    log: Log,
    *,
    card: str = AUTO,
    context: int | None = None,
    cpu: bool = False,
) -> tuple[str, int | None]:
    """The preset that a short name means, and the size of its context; another target as it is.

    ``card`` is a name of ``cards/``; ``auto``: the cards of this machine.  The context fits the
    card.  On the CPU, and on a machine without a card, it is the fastest published run.  Raises
    ``RecipeError`` for an unknown name, ``FitError`` where no such preset runs on the machine.
    """
    engines = {each.recipe.engine for each in catalog.engines.values() if each.recipe}
    files = {file.stem for file in (catalog.root / "recipes").glob("*.toml")}  # read or not
    if is_preset(target) or target in {*files, *engines}:
        return target, context
    entries = named(load(catalog).valid(), target, {*files, *engines})
    here = None
    if cpu:
        why, entries = "it runs on the CPU", _on_cpu(catalog, entries, target)
    else:
        try:
            root = catalog.root
            here = cards.this_machine(root) if card == AUTO else cards.machine_with(root, [card])
        except WorldError:  # the machine's own fault is reported with the others
            why = "this machine has no GPU"
    if here is None:
        best = min(entries, key=_published_place)
        log(f"{target} is {best.name}, its fastest run with known files, since {why}")
        return best.name, context
    answer = known(catalog, entries, state).choice(here, context or 0)
    choose = "`builder choose`" if card == AUTO else f"`builder choose --card {card}`"
    if not answer.fits:
        why = "\n".join(f"{each.preset}: {'; '.join(each.why)}" for each in answer.excluded)
        hint = f"{choose} shows the presets that run there"
        raise FitError(f"no preset of {target} runs here", why, hint)
    first = next(iter(answer.recommended), answer.fits[0])
    log(f"{target} is {first.preset} here: {choose} shows why")
    return first.preset, context or first.other_context


def _published_place(entry: PresetEntry) -> tuple[bool, bool, float, str]:
    """The fastest first; runs of unknown contexts, and models to bring by hand, last."""
    preset, figure = entry.preset, entry.preset.published
    speed = figure.tokens_per_second.middle if figure else 0
    return not preset.downloadable, not preset.serve.context, -speed, entry.name


def _on_cpu(catalog: Catalog, entries: Sequence[PresetEntry], target: str) -> list[PresetEntry]:
    recipes = {each.name: catalog.engine(each.preset.recipe).recipe for each in entries}
    able = [each for each in entries if families.complete(recipes[each.name]).serve is not None]
    if not able:
        images = sorted({recipe.name for recipe in recipes.values()})
        raise FitError(
            f"no preset of {target} runs on the CPU",
            f"the servers of these images need a GPU: {', '.join(images)}",
            "`builder list --presets` shows the presets of other models",
        )
    return able
