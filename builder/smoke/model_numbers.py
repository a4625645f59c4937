"""The numbers of one model: the answers of a server on a card that computes, against its CPU's.

The models are tiny and random (``models.tiny``).  The simulated card computes with the kernels of
the image, so a kernel that is compiled wrong, or is wrong, gives other probabilities.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

from builder.models import gguf, tiny
from builder.models.tiny import TinyModel
from builder.servers.api_flavor import API_FLAVORS
from builder.servers.client import UnansweredError
from builder.servers.predictions import Continued, continued, described, difference
from builder.servers.server import (
    ENDING,
    Mounts,
    NotServingError,
    Server,
    ServeSpec,
    launched,
)
from builder.simulator.cards import Card
from builder.simulator.report import Report
from builder.simulator.run import Simulation
from builder.simulator.server import SimulatedServer
from builder.smoke.context import InapplicableError
from builder.smoke.device_trial import refused
from builder.smoke.server_trials import (
    CACHE_LIMIT,
    CACHE_LIMITS,
    CACHE_OPTIONS,
    CONTEXT,
    OPTIONS,
    OTHER,
    OWN_TYPES,
    PROMPT,
    TOKENS,
    TRIALS,
    USUAL_CACHE,
    Drafting,
    ModelTrial,
    limit_beside_f16,
)
from builder.smoke.verdict import Check
from builder.tools.demangle import function_of

KIND = "numbers"
NAMED = 6  # kernels that a check names
RACE_SECONDS = 120.0
"""For an answer while kernels are searched for races; after one, a server may never answer."""
RACE = "race: "  # ptx.h, Fault::Kind::race
UNKNOWN = "unknown model architecture"  # llama.cpp, src/llama-model-loader.cpp and llama-model.cpp


@dataclass(frozen=True, slots=True)
class Numbers:
    """The facts that all trials of an image share."""

    server: SimulatedServer
    card: Card
    ptx: Path
    """A directory with the PTX of the image's machine code: ``DIGEST.ptx``."""
    drafts: Collection[str] = ()
    """The values of ``--spec-type`` that the engine lists."""
    caches: Sequence[str] = ()
    """The types of the cache that are tried beside the usual one."""
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
            folder = work / trial.model.name.replace(" ", "-")
            folder.mkdir()
            folder.chmod(0o755)  # the image's own user reads the models
            yield ModelNumbers(self, trial, folder, agreeing)

    def checks(self, work: Path) -> Iterator[Check]:
        """All checks.  Raises like ``models``, and like ``SimulatedServer.on``."""
        for each in self.models(work):
            yield from each.checks()


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
        tiny.write(self.trial.model, self._model)
        with self._simulated("alone") as (server, simulation):
            try:
                server.wait(self.numbers.server.serve.seconds)
                return continued(server, PROMPT, TOKENS), simulation.settled()
            except (NotServingError, UnansweredError) as error:
                return str(error)

    def checks(self) -> Iterator[Check]:
        """All checks of the model, and with the first one of each type of the cache.

        An architecture that the engine does not know is skipped.
        """
        expected = "the numbers of its CPU"
        tiny.write(self.trial.model, self._model)
        try:
            on_cpu = self._on_cpu()
        except _UnknownError as error:
            yield Check.skipped(KIND, self._name, expected, error)
        except (NotServingError, UnansweredError) as error:
            yield Check.skipped(KIND, self._name, expected, f"on its CPU: {error}")
            # Forks count the tensors of a file, and know none of a block's: BeeLlama 0.1.1.
            if tiny.has_block(self.trial.model):
                yield from self._without_block().checks()
        else:
            yield from self._on_card(on_cpu)
            if self.trial is TRIALS[0]:
                for kind in self.numbers.caches:
                    yield self._of_cache(kind, on_cpu)

    @property
    def _name(self) -> str:
        return self.trial.model.name

    @property
    def _model(self) -> Path:
        return self.work / "model.gguf"

    def _on_cpu(self, options: Sequence[str] = ()) -> Continued:
        spec = self._spec(options, driver_stub=self.numbers.driver_stub)
        with self._launched(spec) as server:
            try:
                server.wait(self.numbers.server.serve.seconds)
            except NotServingError as error:
                if UNKNOWN in server.container.end_of_log():
                    known = f"the engine does not know the architecture of {self.trial.model.shape}"
                    raise _UnknownError(known) from error
                raise
            return continued(server, PROMPT, TOKENS)

    def _on_card(self, on_cpu: Continued) -> Iterator[Check]:
        """Alone, beside another prompt, after a reuse of the cache, and with drafts."""
        alone: Continued | None = None
        with self._simulated("alone") as (server, simulation):
            try:
                server.wait(self.numbers.server.serve.seconds)
                alone = continued(server, PROMPT, TOKENS)
                again = continued(server, PROMPT, TOKENS, cached=True)
                beside = _beside(server)
            except (NotServingError, UnansweredError) as error:
                yield self._unanswered("its answers", server, simulation, error)
                return
            report = simulation.settled()
        yield check_kernels(f"{self._name}: kernels", report)
        same = self._compared("card and CPU", on_cpu, alone, report)
        if not same.passed and self.numbers.reads_models:
            same = replace(same, found=f"{same.found}; {self._first_wrong_layer()}")
        if same.passed and report is not None:
            self.agreeing.update(report.kernels)
        reuse = _reuse(alone, again)
        compared = [
            same,
            self._compared("after a reuse of the cache", alone, again, report, reuse),
            self._compared("beside another prompt", alone, beside, report),
        ]
        wrong = [number for number, check in enumerate(compared) if not check.passed]
        if wrong:
            first = compared[wrong[0]]
            compared[wrong[0]] = replace(first, found=f"{first.found}; {self._race()}")
        yield from compared
        for drafting in self.trial.draftings:
            if drafting.kind in self.numbers.drafts:
                yield self._drafted(drafting, alone)

    def _of_cache(self, kind: str, usual: Continued) -> Check:
        """A type of the cache, against the CPU; a fork's own type, or a type that the engine's CPU
        lacks, against the usual type."""
        options = CACHE_OPTIONS.format(kind=kind).split()
        subject, wanted, more = f"cache of {kind}", usual, f"; compared with {USUAL_CACHE}"
        limit = limit_beside_f16(kind)
        if kind in OWN_TYPES:
            with suppress(NotServingError, UnansweredError):
                wanted, limit, more = self._on_cpu(options), CACHE_LIMITS.get(kind, CACHE_LIMIT), ""
        with self._simulated(subject.replace(" ", "-"), options) as (server, simulation):
            try:
                server.wait(self.numbers.server.serve.seconds)
                found = continued(server, PROMPT, TOKENS)
            except (NotServingError, UnansweredError) as error:
                return self._unanswered(subject, server, simulation, error)
            report = simulation.settled()
        return self._compared(subject, wanted, found, report, more, limit=limit)

    def _race(self) -> str:
        """The first race of the kernels that answer the prompt alone."""
        found = "no race was found for the prompt alone"
        with self._simulated("races", races=True) as (server, simulation):
            try:
                server.wait(self.numbers.server.serve.seconds)
                continued(server, PROMPT, TOKENS, seconds=RACE_SECONDS)
            except (NotServingError, UnansweredError) as error:
                found = f"races were looked for until: {error}"
            report = simulation.settled()
        return next((each for each in refused(report) if RACE in each), found) if report else found

    def _first_wrong_layer(self) -> str:
        """Which layer makes the numbers differ: the same model, whose first layers alone add to
        their input."""
        layers = tiny.layers(self.trial.model)
        for count in range(layers):
            part = self._with_layers(count)
            try:
                on_cpu = part._on_cpu()
                with part._simulated("alone") as (server, _):
                    server.wait(self.numbers.server.serve.seconds)
                    on_card = continued(server, PROMPT, TOKENS)
            except (NotServingError, UnansweredError) as error:
                return f"with {count} of {layers} layers: {error}"
            if not difference(on_cpu, on_card).within(self.trial.limit):
                return f"from layer {count} of {layers} on" if count else "also without its layers"
        return f"from layer {layers} of {layers} on"

    def _with_layers(self, count: int) -> Self:
        """The same trial with a model whose first ``count`` layers alone change their input."""
        part = self._variant(f"{count}-layers", replace(self.trial.model, layers=count))
        tiny.write(part.trial.model, part._model)
        return part

    def _without_block(self) -> Self:
        """This, with a model that does not draft for itself."""
        part = self._variant("without-block", replace(self.trial.model, block=False))
        with_drafter = [each for each in self.trial.draftings if each.drafter is not None]
        return replace(part, trial=replace(part.trial, draftings=with_drafter))

    def _variant(self, name: str, model: TinyModel) -> Self:
        folder = self.work / name
        folder.mkdir()
        folder.chmod(0o755)  # the image's own user reads the model
        return replace(self, trial=replace(self.trial, model=model), work=folder)

    def _drafted(self, drafting: Drafting, alone: Continued) -> Check:
        subject, expected, draft = f"drafts by {drafting.kind}", "the text without drafts", None
        if drafting.drafter is not None:
            draft = self.work / f"{drafting.kind}.gguf"
            tiny.write(drafting.drafter, draft)
        with self._simulated(drafting.kind, drafting.options, draft) as (server, simulation):
            try:
                server.wait(self.numbers.server.serve.seconds)
                found = continued(server, PROMPT, TOKENS)
            except (NotServingError, UnansweredError) as error:
                if drafting.drafter is not None and UNKNOWN in server.container.end_of_log():
                    why = f"the engine does not know the architecture of {drafting.drafter.shape}"
                    return Check.skipped(KIND, f"{self._name}: {subject}", expected, why)
                return self._unanswered(subject, server, simulation, error)
            report = simulation.settled()
        if not found.drafted:
            return Check.skipped(KIND, f"{self._name}: {subject}", expected, "nothing was drafted")
        accepted = f"; {found.accepted or 0} of {found.drafted} drafts accepted"
        return self._compared(subject, alone, found, report, accepted, drafted=True)

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
        compared = difference(wanted, found)
        # llama.cpp has no probabilities of tokens that were drafted.
        known = drafted or len(compared.distances) == min(compared.equal + 1, TOKENS)
        agrees = known and compared.within(limit)
        text = f"{described(compared, TOKENS, limit)}{more}"
        if not agrees and report is not None:
            text += f"; {_suspects(report.kernels - self.agreeing)}"
        expected = f"the same text, logarithms of probabilities within {limit:g}"
        return Check.of(KIND, f"{self._name}: {subject}", expected, text, agrees)

    def _unanswered(
        self, subject: str, server: Server, simulation: Simulation, error: Exception
    ) -> Check:
        """A server that ended or refused; the faults of its kernels are named as the cause."""
        found = str(error)
        try:
            server.require_running(ENDING)
        except NotServingError as ended:
            found = f"{found}; the server {ended}"
        report = simulation.settled()
        faults = refused(report)[:NAMED] if report else []
        text = "; ".join([*faults, found])
        expected = f"{TOKENS} tokens with probabilities"
        if report is not None and report.lacks_only:
            return Check.skipped(KIND, f"{self._name}: {subject}", expected, text)
        return Check.of(KIND, f"{self._name}: {subject}", expected, text, False)

    @contextmanager
    def _simulated(
        self,
        folder: str,
        options: Sequence[str] = (),
        draft: Path | None = None,
        *,
        races: bool = False,
    ) -> Iterator[tuple[Server, Simulation]]:
        numbers = self.numbers
        with self._model.open("rb") as stream:
            header = gguf.read(stream)
        on = numbers.server.on(
            [numbers.card],
            header,
            self.work / folder,
            ptx=numbers.ptx,
            races=races,
            outputs=numbers.outputs,
        )
        with on as simulation:
            spec = self._spec(options, draft, simulator=simulation.mounts)
            with self._launched(spec) as server:
                yield server, simulation

    def _spec(
        self,
        options: Sequence[str] = (),
        draft: Path | None = None,
        *,
        simulator: Mounts | None = None,
        driver_stub: Path | None = None,
    ) -> ServeSpec:
        extra = [*OPTIONS.get(self.numbers.server.serve.api_flavor, ()), *options]
        return ServeSpec(
            self._model,
            CONTEXT,
            draft,
            extra,
            simulator=simulator,
            driver_stub=driver_stub,
            limited=False,  # the memory of the card is the simulator's
        )

    def _launched(self, spec: ServeSpec) -> AbstractContextManager[Server]:
        server = self.numbers.server
        return launched(server.reference, server.serve, server.port, spec)


class _UnknownError(NotServingError):
    """The engine does not know an architecture."""


def _beside(server: Server) -> Continued:
    """The prompt, continued while another one is."""
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(continued, server, PROMPT, TOKENS)
        other = pool.submit(continued, server, OTHER, TOKENS)
        other.result()
        return first.result()


def _reuse(alone: Continued, again: Continued) -> str:
    """How much of the prompt was not computed again, where the server states it."""
    if alone.read is None or again.read is None:
        return ""
    return f"; {alone.read - again.read} of {alone.read} tokens of the prompt were in the cache"


def check_kernels(subject: str, report: Report | None) -> Check:
    """Whether each launch was computed, and without a fault."""
    expected = "all launches computed, without a fault"
    if report is None:
        return Check.of(KIND, subject, expected, "it called no function of CUDA", False)
    computed = sum(each.computed for each in report.launches)
    instructions = sum(each.instructions for each in report.launches)
    found = (
        f"{computed} of {report.launched} launches of {len(report.kernels)} kernels, "
        f"{instructions:,} instructions"
    )
    if report.violations:
        found = f"{found}; {'; '.join(refused(report)[:NAMED])}"
    if report.lacks_only:
        return Check.skipped(KIND, subject, expected, found)
    passed = 0 < computed == report.launched and not report.violations
    return Check.of(KIND, subject, expected, found, passed)


def _suspects(kernels: Collection[str]) -> str:
    if not kernels:
        return "a model that agrees launches the same kernels"
    names = sorted({function_of(kernel) for kernel in kernels})
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return f"launched by no model that agrees: {', '.join(names[:NAMED])}{more}"
