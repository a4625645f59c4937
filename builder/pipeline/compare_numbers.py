"""The results of the kernels of two images: the same cases on both, and their differences."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

from builder.errors import UntriedError
from builder.images.build import built_image
from builder.numbers.cases import Case
from builder.numbers.trial import CaseResult, NumbersTrial, Outcome
from builder.pipeline.check import subject_of
from builder.pipeline.session import BuildSession
from builder.simulator.outputs import first_difference
from builder.smoke import check, numbers
from builder.smoke.context import Context, InapplicableError
from builder.tools.docker import containers
from builder.tools.files import workspace

TRACED = 6  # cases that are run again, launch by launch
COMPUTED = {Outcome.EQUAL, Outcome.DIFFERS}


@dataclass(frozen=True, slots=True)
class Parted:
    """A case whose outcome is not the same; None: the tree does not have it."""

    name: str
    before: CaseResult | None
    after: CaseResult | None
    launch: str = ""
    """The first launch that is not the same, of the first cases that both compute."""

    @property
    def outcomes(self) -> list[Outcome]:
        """The outcomes of the images that have it."""
        return [each.outcome for each in (self.before, self.after) if each is not None]

    @property
    def same(self) -> bool:
        """Whether the outcome is the same."""
        return len(self.outcomes) == 2 and len({*self.outcomes}) == 1

    @property
    def computed(self) -> bool:
        """Whether both images compute it."""
        return len(self.outcomes) == 2 and {*self.outcomes} <= COMPUTED


@dataclass(frozen=True, slots=True)
class NumbersComparison:
    """The cases of two images."""

    same: int
    """How many have the same outcome."""
    parted: tuple[Parted, ...]
    """The others, by name."""


def compare_numbers(session: BuildSession, before: str, after: str) -> NumbersComparison:
    """Compare the results of the kernels of two recipes' images.

    Raises ``WorldError`` where the engine does not have an image, ``UntriedError`` where one has
    nothing to compare, and like ``numbers.trial``.
    """
    with _trial(session, before) as old, _trial(session, after) as new:
        mine, other = _results(old), _results(new)
        names = sorted({*mine, *other})
        found = [Parted(name, mine.get(name), other.get(name)) for name in names]
        parted = [each for each in found if not each.same]
        traced = [mine[each.name].case for each in parted if each.computed][:TRACED]
        launches = {case.name: _first_launch(old, new, case) for case in traced}
    parted = [replace(each, launch=launches.get(each.name, "")) for each in parted]
    return NumbersComparison(len(names) - len(parted), tuple(parted))


def _results(trial: NumbersTrial) -> dict[str, CaseResult]:
    """The outcome of each case, by the case's name."""
    return {each.case.name: each for _, results in trial.results() for each in results}


def _first_launch(old: NumbersTrial, new: NumbersTrial, case: Case) -> str:
    """The first launch of a case that is not the same on two images."""
    once, again, other = old.outputs(case), old.outputs(case), new.outputs(case)
    if once is None or again is None or other is None:
        return ""
    if first_difference(once, again):
        return "not known: the case has other numbers in each run"
    return first_difference(once, other)


@contextmanager
def _trial(session: BuildSession, name: str) -> Iterator[NumbersTrial]:
    """What computes the cases of the image of a recipe."""
    session.settings.require_directories()
    plan = session.resolve(name)
    with workspace(session.settings.cache_dir) as work, containers.removed_together():
        subject = subject_of(plan, built_image(plan), session)
        context = Context(subject, check.read(subject, work), work)
        session.log(f"computing the cases of {plan.title}")
        try:
            yield numbers.trial(context)
        except InapplicableError as error:
            raise UntriedError(f"{plan.title} has no numbers to compare", str(error)) from error
