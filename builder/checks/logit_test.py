"""The numbers of one model: the answers of a server on a card that computes, against its CPU's.

The models are tiny and random (``made_models``).  The simulated card computes with the kernels of
the image, so a kernel that is compiled wrong, or is wrong, gives other probabilities.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence, Set
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Self, TypeVar

from builder.checks.device import UNUSED, refused
from builder.checks.options import help_options, option_text, option_values
from builder.checks.server import (
    SECONDS,
    Continued,
    NotServingError,
    Server,
    ServeSpec,
    UnansweredError,
    continued,
    described,
    difference,
    launched,
    shared_folder,
)
from builder.checks.simulated import SimulatedServer, Simulation
from builder.checks.subject import Context, InapplicableError
from builder.checks.verdict import Check, CheckState
from builder.core.errors import listed
from builder.engines.servers import API_FLAVORS
from builder.presets import made_models
from builder.presets.cards import Card
from builder.presets.made_models import TinyModel
from simulator import gguf
from simulator.report import RACE, Report
from simulator.work import function_of

# The trials of a server's numbers: models, ways to draft, types of the cache, limits.

TOKENS = 16
PROMPT = "Numbers of a card and of a CPU are equal."
OTHER = "Another text is beside it."
CONTEXT = 1024  # tokens: of both slots together
# How the servers are started so that they answer two at once.
OPTIONS = {"llama-server": ("--parallel", "2", "--no-warmup")}
CACHE = "--cache-type-k"
"""llama.cpp, common/arg.cpp: its --help lists the types."""
USUAL_CACHE = "f16"
CACHE_OPTIONS = f"{CACHE} {{kind}} --cache-type-v {{kind}} --flash-attn on"
# On llama.cpp's CPU (as for TRIALS) the logarithms with a cache of a type differ from the
# logarithms with F16 by at most 0.01 (BF16), 0 (F32), 0.03 (Q8_0), 0.16 (Q5_0, Q5_1), 0.36 (Q4_0,
# Q4_1, IQ4_NL).  Card and CPU round the same numbers to the same type, so they differ by less.
CACHE_LIMITS: Mapping[str, float] = {"f32": 0.05, "bf16": 0.05, "q8_0": 0.1}
CACHE_LIMIT = 0.5
OWN_TYPES = {"f32", "bf16", "q8_0", "q4_0", "q4_1", "iq4_nl", "q5_0", "q5_1"}
"""The types of llama.cpp's cache beside F16 (common/arg.cpp, kv_cache_types)."""
# A type of a fork, and one that the engine's CPU does not have, is compared with F16: the CPU of a
# fork may take another type without a word (BeeLlama 0.1.1 answers turbo2 and turbo4 as Q8_0).  The
# limit is by the bits in the name: turbo3.  The best quantizer of so many bits for a normal
# distribution has errors of 0.34, 0.19 and 0.10 of the deviation (J. Max, Quantizing for Minimum
# Distortion, 1960); noise of that size in keys and values makes 1.7, 0.9 and 0.45.  The kernels of
# BeeLlama 0.1.1 make 1.3, 0.74 and 0.34; of its types with a trellis, turbo2_tcq 0.92 and
# turbo3_tcq 0.57.  An attention that gives zeros makes 3.3, values that are noise make 4.2, keys
# that are noise 2.2.
OTHER_LIMITS: Mapping[str, float] = {"2": 3.0, "3": 1.8, "4": 1.0}
OTHER_LIMIT = 3.0
BITS = re.compile(r"[234](?=_|$)")

SPEC_TYPE = "--spec-type"
OWN_SYNTAX = "SPEC[:k=v"
"""ik_llama.cpp, common/common.cpp: ``--spec-type mtp:n_max=1,p_min=0.0``."""
# Without a least probability every draft is tried.
SHORT_DRAFTS: Mapping[str, str] = {"--spec-draft-n-max": "3", "--draft-p-min": "0"}
LONG = 96  # tokens: a text that comes back to its own tokens, so that drafts are taken from it


@dataclass(frozen=True, slots=True)
class Drafting:
    """A way to draft."""

    kind: str
    """A value of ``--spec-type``: engines that do not list it do not draft so."""
    drafter: TinyModel | None = None
    """None: the model's own block, or the text itself."""
    settings: Mapping[str, str] = field(default_factory=lambda: SHORT_DRAFTS)
    """More options; those that an engine does not list are left out."""
    of_text: bool = False
    """Whether drafts are taken from the text, so that no kernel is its own: the CPU's text of
    ``LONG`` tokens is compared."""

    def options(self, listed: Collection[str]) -> list[str]:
        """Arguments of a server whose ``--help`` lists these options.

        In one slot: before its merge, MTP refused more (tools/server/server-context.cpp: "MTP
        currently supports only n_parallel=1").
        """
        given = {SPEC_TYPE: self.kind, "--parallel": "1"}
        given |= {name: value for name, value in self.settings.items() if name in listed}
        return [word for pair in given.items() for word in pair]


def _of_text(kind: str, *names: str) -> Drafting:
    """Drafts of three tokens behind each earlier occurrence of the last token."""
    values = dict(zip(names, ("1", "3", "1"), strict=False))
    settings = {f"--spec-{kind}-{name}": value for name, value in values.items()}
    return Drafting(kind, None, settings, of_text=True)


@dataclass(frozen=True, slots=True)
class ModelTrial:
    """A model, and how far the logarithms of its probabilities may differ."""

    model: TinyModel
    limit: float
    draftings: Sequence[Drafting] = ()


OWN_BLOCK = (Drafting("draft-mtp"), Drafting("mtp"))
OF_TEXT = (
    _of_text("ngram-simple", "size-n", "size-m", "min-hits"),
    _of_text("ngram-map-k", "size-n", "size-m", "min-hits"),
    _of_text("ngram-map-k4v", "size-n", "size-m", "min-hits"),
    _of_text("ngram-mod", "n-match", "n-max", "n-min"),
    _of_text("ngram-cache"),
)
# Both sides round the factors of products to eight bits, each in its own blocks.  llama.cpp's CPU
# (xllamacpp 2026.10, AVX2) gives logarithms that differ from what it gives for the same weights in
# F32 by at most 0.004 (F16), 0.09 (Q8_0), 0.06 (Q4_0), 0.12 (Q4_K), 0.09 (Q6_K), 0.15 (qwen35),
# 0.16 (qwen35moe) and 0.11 (gemma4): a limit is at least twice that.  F16 has more, because a card
# adds halves in another order; Q4_0 has more, because ik_llama.cpp 8337e4c on an H100 is 0.21 from
# its CPU.  A mask that takes two bits of Q4_K's scales makes 4.4.  With these
# seeds the text prefers each token by 0.15 at least.
TRIALS = (
    ModelTrial(TinyModel("llama", "F16", 27), 0.05),
    ModelTrial(
        TinyModel("llama", "Q8_0", 27),
        0.2,
        (
            Drafting("draft-simple", TinyModel("llama", "Q8_0", 27, layers=0)),
            Drafting("draft-eagle3", TinyModel("eagle3", "Q8_0", 27, "llama")),
            *OF_TEXT,
        ),
    ),
    ModelTrial(TinyModel("llama", "Q4_0", 27), 0.3),
    ModelTrial(TinyModel("llama", "Q4_K", 29), 0.3),
    ModelTrial(TinyModel("llama", "Q6_K", 28), 0.2),
    ModelTrial(
        TinyModel("qwen35", "Q4_K", 5),
        0.3,
        (*OWN_BLOCK, Drafting("draft-dspark", TinyModel("dspark", "Q8_0", 5, "qwen35"))),
    ),
    ModelTrial(
        TinyModel("qwen35moe", "Q4_K", 3),
        0.4,
        (*OWN_BLOCK, Drafting("draft-dflash", TinyModel("dflash", "Q8_0", 3, "qwen35moe"))),
    ),
    ModelTrial(
        TinyModel("gemma4", "Q8_0", 28),
        0.3,
        (Drafting("draft-mtp", TinyModel("gemma4-assistant", "Q8_0", 28, "gemma4")),),
    ),
)


def cache_types(help_output: str) -> Set[str]:
    """The types of the cache that an engine lists in its ``--help``."""
    text = option_text(help_output, CACHE)
    return option_values(text or "") or frozenset()


def limit_beside_f16(kind: str) -> float:
    """How far logarithms with a type of the cache may be from the logarithms with F16."""
    if kind in OWN_TYPES:
        return CACHE_LIMITS.get(kind, CACHE_LIMIT)
    bits = BITS.search(kind)
    return OTHER_LIMITS[bits[0]] if bits else OTHER_LIMIT


def drafts(help_output: str) -> frozenset[str]:
    """The ways to draft that an engine lists in its ``--help``."""
    text = option_text(help_output, SPEC_TYPE) or ""
    # ik_llama.cpp, common/common.cpp: "types: none, draft, ..."
    values = option_values(text) or option_values(text.replace("types:", "one of:"))
    return (values or frozenset()) - {"none"}


def tried(help_output: str) -> frozenset[str]:
    """The ways of ``drafts`` that take the options of mainline."""
    if OWN_SYNTAX in (option_text(help_output, SPEC_TYPE) or ""):
        return frozenset()
    # In AtomicChat's fork mtp is not the model's own block, but a model that --mtp-head names.
    other = option_text(help_output, "--mtp-head") is not None
    return drafts(help_output) - ({"mtp"} if other else set())


# The answers of one model on the card and on its CPU.

KIND = "numbers"
DRAFTS_BY, UNDRAFTED = "drafts by ", "the text without drafts"
UNCOMPARED = "the server's drafts"
"""The subject of the check that names ways to draft that were not compared."""
THREE = ("card and CPU", "after a reuse of the cache", "beside another prompt")
"""The subjects of the checks of ``three_answers``."""
NAMED = 6  # kernels that a check names
RACE_SECONDS = 120.0
"""For an answer while kernels are searched for races; after one, a server may never answer."""
Found = TypeVar("Found")
UNKNOWN = "unknown model architecture"  # llama.cpp, src/llama-model-loader.cpp and llama-model.cpp


@dataclass(frozen=True, slots=True)
class Numbers:
    """The facts that all trials of an image share."""

    server: SimulatedServer
    card: Card
    ptx: Path
    """A directory with the PTX of the image's machine code: ``DIGEST.ptx``."""
    help: str = ""
    """The engine's: its ways to draft, and its types of the cache."""
    driver_stub: Path | None = None
    """For an engine that does not start on a CPU without the driver's library."""
    outputs: bool = False
    """Whether reports have a checksum of the values that each launch stored."""

    @property
    def reads_models(self) -> bool:
        """Whether the server is given a model; else it has one of its own."""
        return any("{model}" in word for word in self.server.serve.arguments)

    def models(self, work: Path) -> Iterator[ModelNumbers]:
        """The trial of each model; ``work`` is a directory.

        Raises ``InapplicableError`` where the server has no probabilities.
        """
        if API_FLAVORS[self.server.serve.api_flavor].predictions is None:
            raise InapplicableError("its API has no probabilities")
        agreeing: set[str] = set()
        for trial in TRIALS if self.reads_models else TRIALS[:1]:
            folder = shared_folder(work / trial.model.name.replace(" ", "-"))
            yield ModelNumbers(self, trial, folder, agreeing)

    def checks(self, work: Path) -> Iterator[Check]:
        """All checks, and which ways to draft none of them compared.

        Raises like ``models``, and like ``SimulatedServer.on``.
        """
        left = drafts(self.help)
        for check in (check for each in self.models(work) for check in each.checks()):
            if check.state is not CheckState.SKIPPED:
                left -= {check.subject.rpartition(DRAFTS_BY)[2]}
            yield check
        if left:
            found = f"not compared: {', '.join(sorted(left))}"
            yield Check.skipped(KIND, UNCOMPARED, f"{UNDRAFTED}, each way of {SPEC_TYPE}", found)


@dataclass(frozen=True, slots=True)
class ModelNumbers:
    """The checks of one model."""

    numbers: Numbers
    trial: ModelTrial
    work: Path
    agreeing: set[str]
    """Kernels of models whose numbers agree with the CPU's."""

    def answered(self) -> tuple[Continued, Report | None] | str:
        """The continued prompt on the card, with the report; or why there is none."""
        made_models.write_tiny(self.trial.model, self._model)
        found = self._asked(_alone, card="alone")
        return found.why if isinstance(found, _Failed) else found

    def checks(self) -> Iterator[Check]:
        """All checks of the model, and with the first one of each type of the cache.

        An architecture that the engine does not know is skipped.
        """
        expected, name = "the numbers of its CPU", self._name
        made_models.write_tiny(self.trial.model, self._model)
        on_cpu = self._asked(_alone)
        if not isinstance(on_cpu, _Failed):
            yield from self._on_card(on_cpu[0])
            caches = cache_types(self.numbers.help) if self.trial is TRIALS[0] else set()
            for kind in sorted(caches - {USUAL_CACHE}):
                yield self._of_cache(kind, on_cpu[0])
        elif on_cpu.unknown:
            yield Check.skipped(KIND, name, expected, _unknown(self.trial.model))
        else:
            yield Check.skipped(KIND, name, expected, f"on its CPU: {on_cpu.why}")
            # Forks count the tensors of a file, and know none of a block's: BeeLlama 0.1.1.
            if made_models.has_block(self.trial.model):
                part = self._variant("without-block", replace(self.trial.model, block=False))
                drafts = [each for each in part.trial.draftings if each.drafter is not None]
                yield from replace(part, trial=replace(part.trial, draftings=drafts)).checks()

    @property
    def _name(self) -> str:
        return self.trial.model.name

    @property
    def _model(self) -> Path:
        return self.work / "model.gguf"

    def _on_card(self, on_cpu: Continued) -> Iterator[Check]:
        found = self._asked(_three, card="alone")
        if isinstance(found, _Failed):
            yield self._unanswered("its answers", found)
            return
        (alone, again, beside), report = found
        yield check_kernels(f"{self._name}: kernels", report)
        same = self._compared(THREE[0], on_cpu, alone, report)
        if not same.passed and self.numbers.reads_models:
            same = replace(same, found=f"{same.found}; {self._first_wrong_layer()}")
        if same.passed and report is not None:
            self.agreeing.update(report.kernels)
        reuse = ""
        if alone.read is not None and again.read is not None:
            cached = alone.read - again.read
            reuse = f"; {cached} of {alone.read} tokens of the prompt were in the cache"
        compared = [
            same,
            self._compared(THREE[1], alone, again, report, reuse),
            self._compared(THREE[2], alone, beside, report),
        ]
        for number, each in enumerate(compared):
            if not each.passed:
                compared[number] = replace(each, found=f"{each.found}; {self._race()}")
                break
        yield from compared
        yield from self._drafts(alone)

    def _drafts(self, alone: Continued) -> Iterator[Check]:
        known, plain = tried(self.numbers.help), None
        for drafting in (each for each in self.trial.draftings if each.kind in known):
            if not drafting.of_text:
                yield self._drafted(drafting, alone)
                continue
            plain = plain or self._asked(_long)
            if isinstance(plain, _Failed):
                yield self._unanswered("a long text on its CPU", plain)
                return
            yield self._drafted(drafting, plain[0])

    def _of_cache(self, kind: str, usual: Continued) -> Check:
        """A type of the cache, against the CPU; a fork's own type, or a type that the engine's CPU
        lacks, against the usual type."""
        options = CACHE_OPTIONS.format(kind=kind).split()
        subject, wanted, more = f"cache of {kind}", usual, f"; compared with {USUAL_CACHE}"
        limit = limit_beside_f16(kind)
        on_cpu = self._asked(_alone, options) if kind in OWN_TYPES else None
        if isinstance(on_cpu, tuple):
            wanted, limit, more = on_cpu[0], CACHE_LIMITS.get(kind, CACHE_LIMIT), ""
        found = self._asked(_alone, options, card=subject.replace(" ", "-"))
        if isinstance(found, _Failed):
            return self._unanswered(subject, found)
        return self._compared(subject, wanted, *found, more, limit=limit)

    def _race(self) -> str:
        ask = partial(_alone, seconds=RACE_SECONDS)
        answer = self._asked(ask, card="races", races=True)
        if isinstance(answer, _Failed):
            found, report = f"races were looked for until: {answer.why}", answer.report
        else:
            found, report = "no race was found for the prompt alone", answer[1]
        faults = refused(report) if report else []
        return next((each for each in faults if RACE in each), found)

    def _first_wrong_layer(self) -> str:
        """Which layer makes the numbers differ: the same model, whose first layers alone add to
        their input."""
        layers = made_models.tiny_layers(self.trial.model)
        for count in range(layers):
            part = self._variant(f"{count}-layers", replace(self.trial.model, layers=count))
            made_models.write_tiny(part.trial.model, part._model)
            sides = []
            for card in ("", "alone"):
                found = part._asked(_alone, card=card)
                if isinstance(found, _Failed):
                    return f"with {count} of {layers} layers: {found.why}"
                sides.append(found[0])
            if not difference(*sides).within(self.trial.limit):
                return f"from layer {count} of {layers} on" if count else "also without its layers"
        return f"from layer {layers} of {layers} on"

    def _variant(self, name: str, model: TinyModel) -> Self:
        folder = shared_folder(self.work / name)
        return replace(self, trial=replace(self.trial, model=model), work=folder)

    def _drafted(self, drafting: Drafting, alone: Continued) -> Check:
        kind, drafter, draft = drafting.kind, drafting.drafter, None
        subject = f"{DRAFTS_BY}{kind}"
        if drafter is not None:
            draft = self.work / f"{kind}.gguf"
            made_models.write_tiny(drafter, draft)
        options = drafting.options(help_options(self.numbers.help))
        ask, card = (_long, "") if drafting.of_text else (_alone, kind)
        found = self._asked(ask, options, draft, card=card)
        if isinstance(found, _Failed):
            if drafter is None or not found.unknown:
                return self._unanswered(subject, found)
            return Check.skipped(KIND, f"{self._name}: {subject}", UNDRAFTED, _unknown(drafter))
        if not found[0].drafted:
            return Check.skipped(KIND, f"{self._name}: {subject}", UNDRAFTED, "nothing was drafted")
        accepted = f"; {found[0].accepted or 0} of {found[0].drafted} drafts accepted"
        return self._compared(subject, alone, *found, accepted, drafted=True)

    def _compared(
        self,
        subject: str,
        wanted: Continued,
        found: Continued,
        report: Report | None,
        more: str = "",
        *,
        drafted: bool = False,
        limit: float | None = None,
    ) -> Check:
        limit = self.trial.limit if limit is None else limit
        subject = f"{self._name}: {subject}"
        check = check_continued(subject, wanted, found, limit, more, drafted=drafted)
        if check.passed or report is None:
            return check
        return replace(check, found=f"{check.found}; {_suspects(report.kernels - self.agreeing)}")

    def _unanswered(self, subject: str, failed: _Failed) -> Check:
        """The faults of its kernels are named as the cause."""
        report = failed.report
        faults = refused(report)[:NAMED] if report else []
        text = "; ".join([*faults, failed.why])
        expected = f"{TOKENS} tokens with probabilities"
        if report is not None and report.lacks_only:
            return Check.skipped(KIND, f"{self._name}: {subject}", expected, text)
        return Check.of(KIND, f"{self._name}: {subject}", expected, text, False)

    def _asked(
        self,
        ask: Callable[[Server], Found],
        options: Sequence[str] = (),
        draft: Path | None = None,
        *,
        card: str = "",
        races: bool = False,
    ) -> tuple[Found, Report | None] | _Failed:
        """What the server answers on the simulated card, whose files are in a directory of this
        name, and the report; without a name on its CPU."""
        numbers, image = self.numbers, self.numbers.server
        with ExitStack() as stack:
            simulation: Simulation | None = None
            if card:
                with self._model.open("rb") as stream:
                    header = gguf.read(stream)
                of = [numbers.card], header, self.work / card, numbers.ptx
                on = image.on(*of, races=races, outputs=numbers.outputs)
                simulation = stack.enter_context(on)
            spec = ServeSpec(
                self._model,
                CONTEXT,
                draft,
                [*OPTIONS.get(image.serve.api_flavor, ()), *options],
                simulator=simulation.mounts if simulation else None,
                driver_stub=None if simulation else numbers.driver_stub,
                limited=False,  # the memory of the card is the simulator's
            )
            started = launched(image.reference, image.serve, image.port, spec)
            server = stack.enter_context(started)
            try:
                server.wait(image.serve.seconds)
                answer = ask(server)
            except (NotServingError, UnansweredError) as error:
                refuses = isinstance(error, NotServingError)
                unknown = refuses and UNKNOWN in server.container.end_of_log()
                report = simulation.settled() if simulation else None
                return _Failed(server.explained(error), report, unknown)
            return answer, simulation.settled() if simulation else None


@dataclass(frozen=True, slots=True)
class _Failed:
    """A server that does not serve a model, or does not answer."""

    why: str
    report: Report | None
    unknown: bool
    """It does not know the architecture of the model."""


def _unknown(model: TinyModel) -> str:
    return f"the engine does not know the architecture of {model.shape}"


def _long(server: Server) -> Continued:
    return continued(server, PROMPT, LONG)


def _alone(server: Server, seconds: float = SECONDS) -> Continued:
    return continued(server, PROMPT, TOKENS, seconds=seconds)


def _three(server: Server) -> Sequence[Continued]:
    return three_answers(partial(continued, server), partial(continued, server, cached=True))


Ask = Callable[[str, int], Continued]
"""A prompt is continued by so many tokens."""


def three_answers(ask: Ask, ask_cached: Ask) -> Sequence[Continued]:
    """The prompt, continued alone, again with the cache, and while another one is."""
    alone, again = ask(PROMPT, TOKENS), ask_cached(PROMPT, TOKENS)
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(ask, PROMPT, TOKENS)
        pool.submit(ask, OTHER, TOKENS).result()
        return alone, again, first.result()


def check_continued(
    subject: str,
    wanted: Continued,
    found: Continued,
    limit: float,
    more: str = "",
    *,
    drafted: bool = False,
) -> Check:
    """Whether two texts are equal, and the logarithms of their probabilities within a limit.

    ``drafted``: llama.cpp has no probabilities of tokens that were drafted.
    """
    compared, tokens = difference(wanted, found), len(wanted.tokens)
    known = drafted or len(compared.distances) == min(compared.equal + 1, tokens)
    text = f"{described(compared, tokens, limit)}{more}"
    expected = f"the same text, logarithms of probabilities within {limit:g}"
    return Check.of(KIND, subject, expected, text, known and compared.within(limit))


def numbers_of(context: Context, *, outputs: bool = False) -> Numbers:
    """The trials of an image's server; ``outputs`` is as in ``Numbers``.

    Raises ``InapplicableError`` where there is nothing to try, ``BuilderError``.
    """
    server, test = context.server, context.numbers_test  # where there is none, nothing is started
    text = context.help(context.recipe.image.entrypoint)
    return Numbers(server, context.card, test.ptx, text, context.stub, outputs)


def check_kernels(subject: str, report: Report | None) -> Check:
    """Whether each launch was computed, and without a fault."""
    expected = "all launches computed, without a fault"
    if report is None:
        return Check.of(KIND, subject, expected, UNUSED, False)
    instructions = sum(each.instructions for each in report.launches)
    found = f"{report.computed} of {report.launched} launches of {len(report.kernels)} kernels"
    found += f", {instructions:,} instructions"
    if report.violations:
        found = f"{found}; {'; '.join(refused(report)[:NAMED])}"
    if report.lacks_only:
        return Check.skipped(KIND, subject, expected, found)
    passed = 0 < report.computed == report.launched and not report.violations
    return Check.of(KIND, subject, expected, found, passed)


def _suspects(kernels: Collection[str]) -> str:
    if not kernels:
        return "a model that agrees launches the same kernels"
    names = sorted({function_of(kernel) for kernel in kernels})
    return f"launched by no model that agrees: {listed(names, NAMED, ', ')}"
