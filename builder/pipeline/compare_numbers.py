"""What the kernels of two images compute: the same cases on both, and where they part."""

from __future__ import annotations

from dataclasses import dataclass

from builder.errors import UntriedError
from builder.numbers.trial import Result
from builder.pipeline.check import Candidate, subject_of
from builder.pipeline.lookup import built_image
from builder.pipeline.session import BuildSession
from builder.smoke import check, numbers
from builder.smoke.context import Context, InapplicableError
from builder.tools.docker import containers
from builder.tools.files import workspace


@dataclass(frozen=True, slots=True)
class Parted:
    """A case whose outcome is not the same; None: the tree does not have it."""

    name: str
    before: Result | None
    after: Result | None


@dataclass(frozen=True, slots=True)
class NumbersComparison:
    """The cases of two images."""

    same: int
    """How many have the same outcome."""
    parted: tuple[Parted, ...]
    """Those that have not, by name."""


def compare_numbers(session: BuildSession, before: str, after: str) -> NumbersComparison:
    """Compare what the kernels of the images of two recipes compute.

    Raises ``WorldError`` where the engine does not have an image, ``UntriedError`` where one has
    nothing to compare, and like ``numbers.trial``.
    """
    old, new = _results(session, before), _results(session, after)
    parted = [
        Parted(name, old.get(name), new.get(name))
        for name in sorted({*old, *new})
        if _outcome(old.get(name)) != _outcome(new.get(name))
    ]
    return NumbersComparison(len({*old, *new}) - len(parted), tuple(parted))


def _outcome(result: Result | None) -> str:
    return result.outcome if result else ""


def _results(session: BuildSession, name: str) -> dict[str, Result]:
    """The outcome of each case of the image of a recipe, by the case's name."""
    session.settings.require_directories()
    plan = session.resolve(name)
    reference, found = built_image(plan)
    candidate = Candidate(reference, found.digest, found.labels)
    with workspace(session.settings.cache_dir) as work, containers.removed_together():
        subject = subject_of(plan, session, candidate)
        context = Context(subject, check.read(subject, work), work)
        session.log(f"computing the cases of {plan.title}")
        try:
            groups = list(numbers.trial(context).results())
        except InapplicableError as error:
            raise UntriedError(f"{plan.title} has no numbers to compare", str(error)) from error
    return {each.case.name: each for _, results in groups for each in results}
