"""test-backend-ops runs on a simulated card that computes, with the libraries of an image."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import NamedTuple

from builder.checks import cases, program
from builder.checks.cases import Case, CaseResult, Group, Outcome
from builder.checks.simulated import SimulatedServer
from builder.core.errors import UntriedError
from builder.docker import containers
from builder.docker.client import Finished
from builder.docker.containers import mount_options
from builder.presets.cards import Card
from simulator.demangle import function_of
from simulator.report import Report

CARD, CPU = "CUDA0", "CPU"
"""ggml's names of the card (ggml-cuda.cu, GGML_CUDA_NAME) and of its CPU code."""
LISTING, REPEATABLE = "BUILDER_LISTING", "BUILDER_REPEATABLE"
"""The variables with which the program lists chains of operations, too (cases.cpp), and has the
same random numbers in each run (random.h)."""
FINISHED = {0, 1}
"""test-backend-ops ends with 1 where a case differs."""
ABORTED = re.compile(r"\S+\.(?:cuh?|c|cpp|h):\d+: ")
"""The line of ggml_abort: FILE:LINE: MESSAGE (ggml/src/ggml.c)."""
TIMEOUT = 1800.0  # seconds for all cases of one run; the slowest machine counts
MOST = 16 << 20  # bytes of output: trees have up to 20,000 cases
NAMES = 100_000  # characters of names in one argument (execve(2): MAX_ARG_STRLEN is 131,072)
ENDS = 10  # programs that may end in the middle before the others are given up
EXPLAINED = 6  # cases that are run again alone
NAMED = 4  # kernels that a message names


class _Run(NamedTuple):
    done: Finished
    results: Mapping[str, CaseResult]
    """By the names of their cases; of a run on the card."""
    report: Report | None


class NumbersTrial:
    """Runs test-backend-ops in containers of an image.

    ``binary`` comes from ``program.compiled``, ``ptx`` is a directory with the PTX of the image's
    machine code, ``work`` a directory for temporary files.
    """

    def __init__(
        self, server: SimulatedServer, card: Card, binary: Path, ptx: Path, work: Path
    ) -> None:
        self.kernels: set[str] = set()
        """The kernels of all cases together, by their mangled names."""
        self.launched = self.computed = 0
        """Launches; and launches that were computed to their end, or to a fault."""
        self.instructions = 0
        """Executed, counted for each thread."""
        self.lacking: list[str] = []
        """The cases that could not be added to the tree's, each with the reason."""
        self._server, self._card, self._ptx, self._work = server, card, ptx, work
        self._binary = binary
        first = next(iter(program.libraries(server.contents).values()))
        # Beside the libraries: the program looks for them, and for those that they load, there.
        self._path = posixpath.join(posixpath.dirname(first), program.PROGRAM)
        self._runs, self._explanations = count(), count()

    def results(self) -> Iterator[tuple[Group, list[CaseResult]]]:
        """The outcome of the chosen cases, group by group.

        Raises ``UntriedError`` where the program does not run, ``TimedOutError``.
        """
        listed, chains = self._listed()
        chosen = {each.title: each.chosen([*listed, *chains]) for each in cases.groups()}
        titles = {case.name: title for title, found in chosen.items() for case in found}
        compared: dict[str, CaseResult] = {}
        for part in (listed, chains):  # a run computes its cases in the tree's order
            found = list(self._compare([case for case in part if case.name in titles]))
            equal = [each.case for each in found if each.outcome is Outcome.EQUAL]
            last = {titles[case.name]: case for case in equal}
            found += self._racing([case for case in equal if case in last.values()])
            compared |= {each.case.name: each for each in found}
        for group in cases.groups():
            yield group, [compared[case.name] for case in chosen[group.title]]

    def outputs(self, case: Case) -> Report | None:
        """The card's report on a case alone, with a checksum of the values that each launch stored.

        Random numbers are the same in each run, where the tree draws them as ggml does.
        """
        return self._run("test", case.name, outputs=True).report

    def _listed(self) -> tuple[list[Case], list[Case]]:
        operations = dict.fromkeys(name for each in cases.groups() for name in each.operations)
        run = self._run("support", ",".join(operations))
        if run.done.status != 0 or not run.results:
            printed = run.done.output[-1000:].strip()
            ended = f"{program.PROGRAM} ended with {run.done.status} and lists no cases"
            raise UntriedError(ended, printed)
        self.lacking = cases.lacking(run.done.output)
        return [each.case for each in run.results.values()], cases.chains(run.done.output)

    def _compare(self, chosen: Sequence[Case], *, races: bool = False) -> Iterator[CaseResult]:
        """The outcome of cases, which are in the tree's order.

        A case in which the program ends is named, and those behind it are tried in another run.
        """
        waiting = [case for case in chosen if case.supported]
        yield from (CaseResult(each, Outcome.UNSUPPORTED) for each in chosen if not each.supported)
        ended = 0
        while waiting and ended < ENDS:
            part = _together(waiting)
            run = self._run("test", ",".join(case.name for case in part), races=races)
            if run.report is not None and not races:
                self.kernels |= run.report.kernels
                self.launched += run.report.launched
                self.computed += run.report.computed
                self.instructions += sum(each.instructions for each in run.report.launches)
            for case in part:
                if case.name in run.results:
                    found = run.results[case.name]
                    yield found if races else self._explained(found)
            left = [case for case in part if case.name not in run.results]
            waiting = [*left, *waiting[len(part) :]]
            if left:
                found = self._ended(waiting.pop(0), run)
                ended += found.outcome is not Outcome.NO_REFERENCE
                yield found
        for case in waiting:
            yield CaseResult(
                case, Outcome.NOT_COMPUTED, f"{ENDS} cases ended the program before it"
            )

    def _racing(self, chosen: Sequence[Case]) -> Iterator[CaseResult]:
        # Numbers show a race only where the warp that should come first does not.
        for each in self._compare(chosen, races=True):
            if each.outcome is Outcome.DIFFERS:
                yield each

    def _ended(self, case: Case, run: _Run) -> CaseResult:
        found = _stopped(case, run)
        if found.outcome is Outcome.NOT_COMPUTED or (run.report and run.report.violations):
            return found
        on_cpu = self._run("test", case.name, backend=CPU)
        if on_cpu.done.status in FINISHED:
            return found
        why = f"ggml's CPU code ends the program with {on_cpu.done.status}"
        return CaseResult(case, Outcome.NO_REFERENCE, why)

    def _explained(self, found: CaseResult) -> CaseResult:
        if found.outcome is not Outcome.DIFFERS or next(self._explanations) >= EXPLAINED:
            return found
        report = self._run("test", found.case.name, races=True).report
        if report is None:
            return found
        names = ", ".join(sorted(map(function_of, report.kernels))[:NAMED])
        return replace(found, why=f"{found.why}; {_faults(report) or f'computed by {names}'}")

    def _run(
        self,
        mode: str,
        selected: str,
        *,
        backend: str = CARD,
        races: bool = False,
        outputs: bool = False,
    ) -> _Run:
        """``support`` lists the selected cases, ``test`` computes them."""
        work = self._work / f"run-{next(self._runs)}"
        ptx = self._ptx if mode == "test" and backend == CARD else None
        mount = f"--volume={self._binary}:{self._path}:ro"
        on = self._server.on([self._card], None, work, ptx, races=races, outputs=outputs)
        asked = {LISTING: mode == "support", REPEATABLE: outputs}
        with on as simulation:
            mounts = simulation.mounts
            env = {**mounts.env, **{name: "1" for name, wanted in asked.items() if wanted}}
            done = containers.run(
                self._server.reference,
                [mode, "-b", backend, "-o", selected, "--output", "csv"],
                entrypoint=self._path,
                timeout=TIMEOUT,
                extra=[*mount_options(mounts.volumes, env), mount],
                once=True,
                most=MOST,
            )
            report = simulation.settled()
        found = cases.results(done, CARD) if backend == CARD else ()
        return _Run(done, {each.case.name: each for each in found}, report)


def _together(waiting: Sequence[Case]) -> list[Case]:
    part: list[Case] = []
    size = 0
    for case in waiting:
        size += len(case.name) + 1
        if part and size > NAMES:
            break
        part.append(case)
    return part


def _stopped(case: Case, run: _Run) -> CaseResult:
    done, report = run.done, run.report
    why = _faults(report) if report else ""
    if not why:
        lines = [line for line in done.output.splitlines() if line.strip() and '"' not in line]
        aborted = [line for line in lines if ABORTED.match(line)]  # a backtrace comes after it
        why = f"the program ended with {done.status}: {' '.join(aborted[-1:] or lines[-3:])}"
    lacks_only = report is not None and report.lacks_only
    return CaseResult(case, Outcome.NOT_COMPUTED if lacks_only else Outcome.DIFFERS, why)


def _faults(report: Report) -> str:
    faults = report.violations[:NAMED]
    return "; ".join(f"{function_of(each.kernel)}: {each.why}" for each in faults)
