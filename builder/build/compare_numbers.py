"""The results of two images: the same cases and prompts on both, and where they part."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from builder.build.lookup import Images
from builder.build.numbers import test_of
from builder.build.session import BuildSession
from builder.build.verify import subject_of
from builder.checks import check, numbers
from builder.checks.cases import Case, CaseResult, Outcome
from builder.checks.logit_test import Numbers, numbers_of
from builder.checks.predictions import described, difference
from builder.checks.server import shared_folder
from builder.checks.server_trials import TOKENS
from builder.checks.subject import Context, InapplicableError
from builder.core.errors import UntriedError
from builder.core.files import workspace
from builder.core.log import Log
from builder.docker import containers
from simulator.outputs import parting

TRACED = 6  # cases that are run again, launch by launch
COMPUTED = {Outcome.EQUAL, Outcome.DIFFERS}


@dataclass(frozen=True, slots=True)
class Parted:
    """A case, or a model of the servers, with its outcomes; None: the tree does not have it."""

    name: str
    before: CaseResult | None
    after: CaseResult | None
    launch: str = ""
    """The first launch that is not the same, of the first cases that both compute."""


@dataclass(frozen=True, slots=True)
class NumbersComparison:
    """The cases of two images."""

    same: int
    """How many have the same outcome."""
    parted: tuple[Parted, ...]
    """The others: first the cases by name, then the models."""


def compare_numbers(session: BuildSession, before: str, after: str) -> NumbersComparison:
    """Compare the results of the kernels and servers of two recipes' images.

    Raises ``WorldError`` where the engine does not have an image, ``UntriedError`` where there is
    nothing to compare, and like ``numbers.trial``.
    """
    found: list[Parted] = []
    lacking: list[str] = []
    with _read(session, before) as old, _read(session, after) as new:
        for compare in (_compare_cases, _compare_servers):
            try:
                found += compare(old, new, session.log)
            except (InapplicableError, UntriedError) as error:
                lacking.append(str(error))
                session.log(f"not compared: {error}")
    if len(lacking) == 2:
        raise UntriedError("the images have no numbers to compare", "; ".join(lacking))
    parted = tuple(each for each in found if not _same(each.before, each.after))
    return NumbersComparison(len(found) - len(parted), parted)


def _same(before: CaseResult | None, after: CaseResult | None) -> bool:
    return before is not None and after is not None and before.outcome == after.outcome


def _compare_cases(old: Context, new: Context, log: Log) -> list[Parted]:
    trials = numbers.trial(old), numbers.trial(new)
    log("computing the cases of both images")
    first, second = (
        {each.case.name: each for _, results in trial.results() for each in results}
        for trial in trials
    )
    found = []
    traced = 0
    for name in sorted({*first, *second}):
        before, after, launch = first.get(name), second.get(name), ""
        computed = before and after and {before.outcome, after.outcome} <= COMPUTED
        if before and computed and not _same(before, after) and traced < TRACED:
            traced += 1
            again = trials[0].outputs(before.case), trials[0].outputs(before.case)
            launch = parting(*again, trials[1].outputs(before.case))
        found.append(Parted(name, before, after, launch))
    return found


def _compare_servers(old: Context, new: Context, log: Log) -> list[Parted]:
    sides = [numbers_of(each, outputs=True) for each in (old, new)]
    log("computing the answers of both servers")
    work = shared_folder(old.work / "servers")
    found = [*servers_compared(sides[0], sides[1], work)]
    silent = [
        each
        for each in found
        if {side.outcome for side in (each.before, each.after) if side} == {Outcome.NOT_COMPUTED}
    ]
    for each in silent:
        model = each.name.removeprefix("server(").removesuffix(")")
        log(f"{model} is not compared: neither server answers with it")
    return [each for each in found if each not in silent]


def servers_compared(before: Numbers, after: Numbers, work: Path) -> Iterator[Parted]:
    """Compare the servers of two images, model by model: the second's answer with the first's.

    Both have ``outputs``; ``work`` is a directory that the images' own users may enter.  Raises
    ``InapplicableError`` where a server has no probabilities, and like ``SimulatedServer.on``.
    """
    folders = [shared_folder(work / name) for name in ("before", "after", "again")]
    sides = zip((before, after, before), folders, strict=True)
    models = [side.models(folder) for side, folder in sides]
    for one, other, again in zip(*models, strict=False):
        name, limit, launch = one.trial.model.name, one.trial.limit, ""
        case = Case("server", name)
        results = [CaseResult(case, Outcome.EQUAL)] * 2
        answers = [one.answered(), other.answered()]
        for side, answer in enumerate(answers):
            if isinstance(answer, str):
                results[side] = CaseResult(case, Outcome.NOT_COMPUTED, answer)
        first, second = answers
        if not isinstance(first, str) and not isinstance(second, str):
            found = difference(first[0], second[0])
            if not found.within(limit):
                why = described(found, TOKENS, limit)
                results[1] = CaseResult(case, Outcome.DIFFERS, why)
                repeated = again.answered()
                report = None if isinstance(repeated, str) else repeated[1]
                launch = parting(first[1], report, second[1])
        yield Parted(case.name, results[0], results[1], launch)


@contextmanager
def _read(session: BuildSession, name: str) -> Iterator[Context]:
    session.settings.require_directories()
    plan = session.resolve(name)
    with workspace(session.settings.cache_dir) as work, containers.removed_together():
        image = Images(session).require(plan)
        subject = subject_of(plan, image, session)
        context = Context(subject, check.read(subject, work), work)
        context.numbers = test_of(plan, image, context, session)
        yield context
