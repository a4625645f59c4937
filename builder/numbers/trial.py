"""test-backend-ops runs on a simulated card that computes, with the libraries of an image."""

from __future__ import annotations

import posixpath
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import count
from pathlib import Path

from builder.errors import UntriedError
from builder.numbers import cases, program
from builder.numbers.cases import Case, Group
from builder.servers.server import Mounts
from builder.simulator.cards import Card
from builder.simulator.report import Report
from builder.simulator.server import SimulatedServer
from builder.tools.demangle import function_of
from builder.tools.docker import containers
from builder.tools.docker.client import Finished

CARD = "CUDA0"
"""ggml's name of the card (ggml-cuda.cu, GGML_CUDA_NAME)."""
TIMEOUT = 1800.0  # seconds for all cases of one run; the slowest machine counts
MOST = 16 << 20  # bytes of output: trees have up to 20,000 cases
NAMES = 100_000  # characters of names in one argument (execve(2): MAX_ARG_STRLEN is 131,072)
ENDS = 10  # programs that may end in the middle before the others are given up
NOT_COMPUTED = {"cudaErrorNotSupported", "cudaErrorNoKernelImageForDevice"}
"""The errors of a kernel that the card cannot compute (simulator/card/README.md)."""
EXPLAINED = 6  # cases that are run again alone
NAMED = 4  # kernels that a message names


class Outcome(StrEnum):
    """How a case ended."""

    EQUAL = "equal"
    """Within ggml's own limit of what its CPU code computes."""
    DIFFERS = "differs"
    UNSUPPORTED = "unsupported"
    """The engine itself does not compute it on a card."""
    NOT_COMPUTED = "not computed"
    """The simulated card cannot compute a kernel of it, which says nothing about the image."""


@dataclass(frozen=True, slots=True)
class Result:
    """The outcome of a case."""

    case: Case
    outcome: Outcome
    why: str = ""
    """The error beside ggml's limit, the kernels, or what the card reported."""


@dataclass(frozen=True, slots=True)
class Launches:
    """The kernels of all cases together."""

    kernels: frozenset[str] = frozenset()
    """Mangled names."""
    instructions: int = 0
    """Executed, counted for each thread."""

    def with_(self, report: Report) -> Launches:
        """These, and the launches of a report."""
        more = sum(each.instructions for each in report.launches)
        return Launches(self.kernels | report.kernels, self.instructions + more)


class Trial:
    """Runs test-backend-ops in containers of an image.

    ``binary`` comes from ``program.compiled``, ``ptx`` is a directory with the PTX of the image's
    machine code, ``work`` a directory for temporary files.
    """

    def __init__(
        self, server: SimulatedServer, card: Card, binary: Path, ptx: Path, work: Path
    ) -> None:
        self.launches = Launches()
        self._server, self._card, self._ptx, self._work = server, card, ptx, work
        self._binary = binary
        first = next(iter(program.libraries(server.contents).values()))
        # Beside the libraries: the program looks for them, and for those that they load, there.
        self._path = posixpath.join(posixpath.dirname(first), program.PROGRAM)
        self._runs, self._explanations = count(), count()

    def results(self) -> Iterator[tuple[Group, list[Result]]]:
        """The outcome of the chosen cases, group by group.

        Raises ``UntriedError`` where the program does not run, ``TimedOutError``.
        """
        listed = self._listed()
        chosen = {each.title: each.chosen(listed) for each in cases.groups() if not each.whole}
        names = {case.name for found in chosen.values() for case in found}
        ordered = [case for case in listed if case.name in names]
        compared = {each.case.name: each for each in self._compare(ordered)}
        for group in cases.groups():
            if group.whole:
                yield group, list(self._compare_whole(group))
            else:
                yield group, [compared[case.name] for case in chosen[group.title]]

    def _listed(self) -> list[Case]:
        """The cases of the tree, of all operations that are compared, but of no fused ones."""
        operations = dict.fromkeys(each.operation for each in cases.groups() if not each.whole)
        asked = ["support", "-b", CARD, "-o", ",".join(operations), "--output", "csv"]
        done, _ = self._run(asked, computes=False)
        found = {row.case.name: row.case for row in cases.rows(done.output, CARD)}
        if done.status != 0 or not found:
            raise UntriedError(f"{program.PROGRAM} lists no cases", done.output[-1000:].strip())
        return list(found.values())

    def _compare(self, chosen: Sequence[Case]) -> Iterator[Result]:
        """The outcome of cases, which are in the tree's order.

        A case in which the program ends is named, and those behind it are tried in another run.
        """
        waiting = [case for case in chosen if case.supported]
        yield from (Result(each, Outcome.UNSUPPORTED) for each in chosen if not each.supported)
        ended = 0
        while waiting and ended < ENDS:
            part = _together(waiting)
            names = ",".join(case.name for case in part)
            done, report = self._run(["test", "-b", CARD, "-o", names, "--output", "csv"])
            found = {row.case.name: row for row in cases.rows(done.output, CARD)}
            tried = [case for case in part if case.name in found]
            for case in tried:
                row = found[case.name]
                if not row.case.supported:
                    yield Result(case, Outcome.UNSUPPORTED)
                elif row.failed:
                    yield self._explained(case, row.failed)
                else:
                    yield Result(case, Outcome.EQUAL)
            left = [case for case in part if case.name not in found]
            waiting = [*left, *waiting[len(part) :]]
            if left:
                ended += 1
                yield _ended(waiting.pop(0), done, report)
        for case in waiting:
            yield Result(case, Outcome.NOT_COMPUTED, f"{ENDS} cases ended the program before it")

    def _compare_whole(self, group: Group) -> Iterator[Result]:
        """The outcome of the cases of fused operations; nothing where the tree has none."""
        asked = ["test", "-b", CARD, "-o", group.operation, "-p", group.pattern]
        done, report = self._run([*asked, "--output", "csv"])
        rows = {row.case.name: row for row in cases.rows(done.output, CARD)}
        for row in rows.values():
            if not row.case.supported:
                yield Result(row.case, Outcome.UNSUPPORTED)
            else:
                yield Result(row.case, Outcome.DIFFERS if row.failed else Outcome.EQUAL, row.failed)
        if done.status not in {0, 1}:
            yield _ended(Case(group.operation, "a case after these"), done, report)

    def _explained(self, case: Case, why: str) -> Result:
        """A case that differs; of the first ones, with the kernels that computed it."""
        if next(self._explanations) >= EXPLAINED:
            return Result(case, Outcome.DIFFERS, why)
        asked = ["test", "-b", CARD, "-o", case.name, "--output", "csv"]
        _, report = self._run(asked)
        kernels = sorted(map(function_of, report.kernels)) if report else []
        by = f"; computed by {', '.join(kernels[:NAMED])}" if kernels else ""
        return Result(case, Outcome.DIFFERS, f"{why}{by}")

    def _run(
        self, arguments: Sequence[str], *, computes: bool = True
    ) -> tuple[Finished, Report | None]:
        work = self._work / f"run-{next(self._runs)}"
        ptx = self._ptx if computes else None
        with self._server.on([self._card], None, work, ptx) as simulation:
            done = containers.run(
                self._server.reference,
                arguments,
                entrypoint=self._path,
                timeout=TIMEOUT,
                extra=[*_options(simulation.mounts), f"--volume={self._binary}:{self._path}:ro"],
                once=True,
                most=MOST,
            )
            report = simulation.settled()
        if report is not None and computes:
            self.launches = self.launches.with_(report)
        return done, report


def _together(waiting: Sequence[Case]) -> list[Case]:
    """As many cases as one argument may name."""
    part: list[Case] = []
    size = 0
    for case in waiting:
        size += len(case.name) + 1
        if part and size > NAMES:
            break
        part.append(case)
    return part


def _ended(case: Case, done: Finished, report: Report | None) -> Result:
    """The outcome of the case in which the program ended."""
    faults = report.violations if report else ()
    why = "; ".join(f"{function_of(each.kernel)}: {each.why}" for each in faults[:NAMED])
    if not why:
        lines = [line for line in done.output.splitlines() if line.strip() and '"' not in line]
        why = f"the program ended with {done.status}: {' '.join(lines[-3:])}"
    not_computed = faults and all(each.error in NOT_COMPUTED for each in faults)
    return Result(case, Outcome.NOT_COMPUTED if not_computed else Outcome.DIFFERS, why)


def _options(mounts: Mounts) -> list[str]:
    """The options of ``docker run`` for what is mounted."""
    volumes = [f"--volume={file}:{path}:ro" for path, file in mounts.volumes.items()]
    return [*volumes, *(f"--env={name}={value}" for name, value in mounts.env.items())]
