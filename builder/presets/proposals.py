"""Runs that are proposed for a model of which no preset fits a card: computed, not published.

A smaller file that the model's repository lists (``shapes/``), else one whose experts stay in the
machine's memory in part.  Both are for llama.cpp with one slot and a cache of 16 bits.
"""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from builder.core import sizes
from builder.core.errors import PROGRAM
from builder.docker import gpus
from builder.presets import shapes
from builder.presets.cards import HostCard, plain_name
from builder.presets.choose import PROPOSED, STEP, Choice, Known, driver_on, model_place, no_image
from builder.presets.schema import TRIALS, MainModel, Preset, ServeOptions
from builder.presets.shapes import Figure, ListedFile, NotComputedError, Shape, computed_speed
from builder.recipes.catalog import BrokenEntry
from builder.recipes.schema import Recipe

SLOT = ("--parallel", "1")
OFFLOAD = "--n-cpu-moe"
CONTEXT = 16384  # tokens that a proposal has, if a file leaves room for them; else ``STEP``
OFFLOADED = 32768  # tokens of a run with experts in the machine's memory, where none are asked for
ONE_BIT = re.compile(r"[IT]Q1")  # no file is proposed that is worse
FINEST = 4.5  # bits a parameter of a file whose experts are in the machine's memory, at most

# The memory of llama-server, in bytes, by the shape: an estimate from above.  `fit` found 3 to
# 18 % less with five proposals (tests/unit/presets/test_proposals.py).

BATCH = 512  # tokens that are computed at once (llama.cpp, ``common/common.h``: n_ubatch)
ROWS = 0.75
"""The bits of the embedding, which stays in the machine's memory, over a file's mean: at least."""
RESERVE = 320 << 20
"""Activations of a batch, what allocations round up, and a margin for the estimate."""
CUDA_CONTEXT = 512 << 20  # of a card without a file


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """A run that nobody published; sizes are bytes.  Names as of ``choose.Option``."""

    preset: str = ""  # it is none
    short_name: str
    model: str
    recipe: str
    quantization: str
    download: int
    context: int
    figure: Figure | None  # computed
    not_computed: str
    memory: int  # computed
    least: int  # the same
    room: int
    offloaded: int  # layers whose experts stay in the machine's memory
    host_memory: int | None  # for these experts
    driver: str
    get: str  # the command that downloads the file
    command: str

    @property
    def own(self) -> Figure | None:
        """The speed on the machine's own card; None: not known."""
        return self.figure


@dataclass(frozen=True, slots=True)
class Unserved:
    """A model without a run on a machine, why, and the command that tries a file of it."""

    short_name: str
    model: str
    why: str
    command: str


def proposals(
    known: Known, answer: Choice, models: Path, card: str = ""
) -> tuple[tuple[Proposal, ...], tuple[Unserved, ...]]:
    """A run for each model without a recommended preset, and the models that have none.

    ``models`` is the models directory, ``card`` the name of the card's file; empty: as its own.
    """
    served = {each.short_name for each in answer.recommended}
    names: dict[str, str] = {}
    models_of = [(each.short_name, each.model) for each in answer.fits]
    models_of += [(each.short_name, each.model) for each in answer.excluded]
    for short, name in models_of:
        if short not in served:
            names[short] = min(names.get(short, name), name, key=len)
    results = [
        _Model(known, answer, models, card, *each).answer() for each in sorted(names.items())
    ]
    found = [each for each in results if isinstance(each, Proposal)]
    found.sort(
        key=lambda each: model_place(each.model, each.own.tokens_per_second if each.own else 0)
    )
    return tuple(found), tuple(each for each in results if isinstance(each, Unserved))


def memory(shape: Shape, size: int, context: int, offloaded: int = 0) -> int:
    """The memory that llama-server takes on a card, without the CUDA context.

    ``size`` is the file's, ``offloaded`` the number of layers whose experts are elsewhere.
    """
    vocabulary = shape.tokenizer.size if shape.tokenizer else 0
    weights = size - _rows(shape) * ROWS * size / _parameters(shape)
    cache = shapes.cache_bytes(shape, 16, 16, context)
    cache += BATCH * shapes.cache_bytes(shape, 16, 16, 1)  # beyond a window, and padding
    cache += sum(_states(shape))
    compute = BATCH * (4 * vocabulary + 2 * context)  # logits, and the mask of attention
    if offloaded:  # a batch computes their experts on the card, layer by layer
        weights -= (offloaded - 1) * _experts(shape, size)
    return math.ceil(weights + cache + compute) + RESERVE


def _parameters(shape: Shape) -> int:
    return sum(math.prod(each) for each in shape.tensors.values())


def _rows(shape: Shape) -> int:
    """The elements of the tensors that stay in the machine's memory."""
    own = "output.weight" in shape.tensors  # else the embedding is the output, too
    names = shapes.ROWS if own else shapes.ROWS[1:]
    return sum(math.prod(shape.tensors[name]) for name in names if name in shape.tensors)


def _states(shape: Shape) -> Iterator[int]:
    state = shapes.number(shape, "ssm.state_size", 0) * shapes.number(shape, "ssm.inner_size", 0)
    for name, dimensions in shape.tensors.items():
        if name.endswith("ssm_conv1d.weight"):
            yield 4 * (state + (dimensions[0] - 1) * dimensions[1])


def _experts(shape: Shape, size: int) -> float:
    experts = shapes.weight_bytes(shape, size, checkpoint=False)["experts"]
    return experts / shapes.expert_layers(shape)


@dataclass(frozen=True, slots=True)
class _Model:
    known: Known
    choice: Choice
    models: Path
    card_name: str
    short_name: str
    name: str

    @property
    def card(self) -> HostCard:
        return max(self.choice.machine.cards, key=lambda card: card.memory)

    def answer(self) -> Proposal | Unserved:
        recipe = self.recipe()
        if recipe is None:
            no = "no image of llama.cpp is for this card and driver"
            return self.unserved(f"{self.refused()}; {no}", None)
        listed = shapes.listed_files(self.short_name)
        files = [each for each in listed if not ONE_BIT.search(each.quantization or "")]
        if not files:
            return self.unserved(f"{self.refused()}; no smaller file of it is listed", recipe)
        shape, asked = shapes.shape_of(self.short_name), self.choice.context
        trained = shapes.number(shape, "context_length", asked)
        if asked > trained:
            return self.unserved(f"it was trained for {trained} tokens, not for {asked}", recipe)
        for least in (CONTEXT, STEP):
            for file in files:
                if tokens := self.largest_context(shape, file, least):
                    return self.proposal(recipe, shape, file, tokens)
        if shapes.expert_layers(shape):
            fine = FINEST * _parameters(shape) / 8
            file = next((each for each in files if each.bytes <= fine), files[-1])
            tokens = asked or OFFLOADED
            for count in range(1, shapes.expert_layers(shape) + 1):
                if self.fits(shape, file, tokens, count):
                    return self.proposal(recipe, shape, file, tokens, count)
        least = asked or STEP
        takes = sizes.gib(self.needs(shape, files[-1], least))
        has = f"this card has {sizes.gib(self.card.memory)}"
        smallest = f"its smallest listed file, {files[-1].quantization}, takes ~{takes}"
        return self.unserved(f"{smallest} with {least} tokens, {has}", recipe)

    def recipe(self) -> Recipe | None:
        question, machine = self.known.question, self.choice.machine
        able = []
        for entry in question.catalog.engines.values():
            if isinstance(entry, BrokenEntry) or entry.recipe.engine != PROPOSED:
                continue
            recipe, tried = entry.recipe, question.catalog.root / TRIALS / f"{entry.name}.json"
            old = gpus.is_older(machine.driver, driver_on(recipe, question.catalog, [self.card]))
            unfit = [*no_image(recipe, [self.card], machine.platform)]
            if tried.exists() and not (old or unfit or recipe.name in question.refused):
                able.append(recipe)
        # b10018 came before 0.5.0: with its first version, llama.cpp ended the numbers of builds.
        return max(
            able,
            key=lambda each: (each.version[0] != "b", sizes.version_order(each.version)),
            default=None,
        )

    def needs(self, shape: Shape, file: ListedFile, tokens: int, offloaded: int = 0) -> int:
        context = self.card.context or CUDA_CONTEXT
        return memory(shape, file.bytes, tokens, offloaded) + context

    def fits(self, shape: Shape, file: ListedFile, tokens: int, offloaded: int = 0) -> bool:
        return self.needs(shape, file, tokens, offloaded) <= self.card.memory

    def largest_context(self, shape: Shape, file: ListedFile, least: int) -> int:
        """The largest multiple of ``STEP`` with room, or what is asked for; 0: none."""
        if self.choice.context:
            return self.choice.context if self.fits(shape, file, self.choice.context) else 0
        most = shapes.number(shape, "context_length", 0)
        tries = range(most // STEP * STEP, least - 1, -STEP)
        return next((each for each in tries if self.fits(shape, file, each)), 0)

    def proposal(
        self, recipe: Recipe, shape: Shape, file: ListedFile, tokens: int, offloaded: int = 0
    ) -> Proposal:
        there = self.models / str(file.repository) / str(file.file)
        words = ["run", recipe.name, "--model", str(there), "--context", str(tokens)]
        words += ["--card", self.card_name] if len(self.choice.machine.cards) > 1 else []
        options = [*SLOT, *([OFFLOAD, str(offloaded)] if offloaded else [])]
        words += ["--", *options]
        figure, why = self.speed(recipe, file, options)
        needs = self.needs(shape, file, tokens, offloaded)
        host = math.ceil(offloaded * _experts(shape, file.bytes)) if offloaded else None
        return Proposal(
            short_name=self.short_name,
            model=self.name,
            recipe=recipe.name,
            quantization=file.quantization or "",
            download=file.bytes,
            context=tokens,
            figure=figure,
            not_computed=why,
            memory=needs,
            least=needs,
            room=self.card.memory,
            offloaded=offloaded,
            host_memory=host,
            driver=driver_on(recipe, self.known.question.catalog, [self.card]),
            get=file.download(str(self.models), [str(file.file)]),
            command=shlex.join([PROGRAM, *words]),
        )

    def speed(
        self, recipe: Recipe, file: ListedFile, options: list[str]
    ) -> tuple[Figure | None, str]:
        model = MainModel(**(file.model_dump(exclude={"source"}) | {"name": self.name}))
        serve = ServeOptions(arguments=options)
        run = Preset(recipe=recipe.name, summary=self.name, card="any", model=model, serve=serve)
        try:
            return computed_speed(run, recipe.engine, self.card.bandwidth, 0), ""
        except NotComputedError as error:
            return None, str(error)

    def refused(self) -> str:
        for fit in self.choice.fits:
            if fit.short_name == self.short_name:
                lacks = "it needs a file of yours" if fit.needs_file else "nobody knows if it fits"
                return f"{lacks}: `{fit.command}`"
        own = [each for each in self.choice.excluded if each.short_name == self.short_name]
        return min((each.why[0] for each in own), key=len)

    def unserved(self, why: str, recipe: Recipe | None) -> Unserved:
        words = ["--model", "REPO:FILE", "--card", self.card_name or plain_name(self.card.name)]
        command = shlex.join([PROGRAM, "fit", recipe.name, *words]) if recipe else ""
        return Unserved(self.short_name, self.name, why, command)
