"""Finds the upstream commit that broke an engine: git picks commits, which are built and tested.

The state is written after every commit, so that a bisect that was stopped continues with the next
one.  A commit is built like any recipe; most of it comes from the compiler cache.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from builder.build.session import BuildSession
from builder.core.errors import PatchError, UntriedError
from builder.core.files import named_lock
from builder.core.settings import Settings
from builder.recipes.catalog import Entry
from builder.recipes.schema import Recipe
from builder.sources.bisection import Bisection, Commit, described
from builder.sources.errors import UpstreamLacksError
from builder.upstream import evaluate
from builder.upstream import state as bisect_state
from builder.upstream.evaluate import BisectMethod, UserTest
from builder.upstream.request import (
    ABBREVIATED,
    BisectRequest,
    count,
    merge_bases,
    source_of,
    state_of,
)
from builder.upstream.session import SourceSession, open_session
from builder.upstream.state import (
    SHORT,
    BisectQuestion,
    BisectState,
    BisectStep,
    End,
    Evaluation,
    QuestionError,
)


@dataclass(frozen=True, slots=True)
class BisectOptions:
    """Options that do not change the answer, only how it is found."""

    trust_ends: bool = False
    """Do not evaluate the ends first."""
    skip: tuple[str, ...] = ()
    """Commits to skip: seven digits of each, or more."""


@dataclass(frozen=True, slots=True)
class BisectResult:
    """The result of a bisect, or its progress."""

    question: BisectQuestion
    state: Literal["found", "undecided", "open"]
    steps: tuple[BisectStep, ...]
    candidates: tuple[Commit, ...]
    """Oldest first: skipped commits, then a known bad one.  Empty while open."""
    left: int
    """Number of commits that are neither evaluated nor skipped."""
    log: str
    """A log for ``git bisect replay``."""

    @property
    def first_bad(self) -> Commit | None:
        """The answer; None if there is none yet."""
        return self.candidates[-1] if self.state == "found" else None

    @property
    def builds(self) -> int:
        """Number of commits that were compiled."""
        return sum(step.evaluation.built for step in self.steps)


class _Session:
    def __init__(
        self,
        builds: BuildSession,
        sources: SourceSession,
        entry: Entry[Recipe],
        state: BisectState,
    ) -> None:
        self.builds, self.sources, self.entry, self.state = builds, sources, entry, state
        question = state.question
        test = None
        if question.test is not None:
            test = UserTest(question.test, Path(question.folder))
        self.method = BisectMethod(test, question.build_fails)

    def save(self, state: BisectState) -> None:
        """Replace the state, and write it."""
        self.state = state
        bisect_state.keep(self.builds.settings.state_dir, state)

    def evaluate(self, commit: str, what: str) -> BisectStep:
        """The step of a commit: the known one or a new one, announced as ``what``."""
        known = self.state.step(commit)
        if known is not None:
            return known
        (about,) = described(self.sources.repositories.scratch, [commit])
        self.builds.log(f"{what}: {about.short} ({about.date})")
        step = BisectStep(about, self._evaluation(commit))
        self.builds.log(f"{commit[:SHORT]} {_summary(step)}")
        self.save(self.state.with_step(step))
        self.sweep()
        return step

    def _evaluation(self, commit: str) -> Evaluation:
        try:
            candidate = evaluate.candidate(self.builds, self.sources, self.entry, commit)
        except (PatchError, UpstreamLacksError) as error:
            return Evaluation("skip", error.what)
        trace = self.state.trace
        if trace is None or trace.commit != commit:
            self.sweep()
            self.save(replace(self.state, trace=evaluate.trace(candidate)))
        return evaluate.evaluate(candidate, self.method)

    def sweep(self) -> None:
        """Remove the images of the last commit."""
        if self.state.trace is not None:
            evaluate.sweep(self.state.trace)
            self.save(replace(self.state, trace=None))

    def interrupted(self) -> None:
        """Say how to continue, if there is progress."""
        name = self.entry.name
        if bisect_state.path_of(self.builds.settings.state_dir, name).exists():
            self.builds.log(f"the progress is kept: `builder bisect {name}` continues")

    def discard(self) -> None:
        """Remove the images and the state."""
        self.sweep()
        bisect_state.forget(self.builds.settings.state_dir, self.entry.name)


def _summary(step: BisectStep) -> str:
    verdict = "is skipped" if step.verdict == "skip" else f"is {step.verdict}"
    return f"{verdict}: {step.evaluation.why}"


def bisect(
    builds: BuildSession, name: str, request: BisectRequest, options: BisectOptions
) -> BisectResult:
    """Find the first bad commit; the state is kept until ``finish``.

    Raises ``QuestionError`` if an end is not as good or bad as given, a commit to skip is not
    between the ends, or another bisect of the recipe is unfinished; ``RecipeError`` if the source
    is no git repository; ``BusyError`` if another bisect of the recipe is running; ``WorldError``,
    ``SpaceError``, ``FetchError`` and ``UntriedError`` if a commit cannot be evaluated now.
    """
    entry = builds.catalog.engine(name)
    url = source_of(entry)
    builds.settings.require_directories()
    with (
        _locked(builds.settings, entry.name),
        open_session(builds.catalog, builds.settings, builds.log, offline=False) as sources,
    ):
        state = state_of(builds, sources, entry, url, request)
        sources.repositories.walk(url, state.question.good.commit, state.question.bad.commit)
        bases = merge_bases(sources, state.question)
        between = _bisection(sources, state, bases).candidates()[:-1] if options.skip else []
        skip = [_commit_named(digits, between) for digits in options.skip]
        session = _Session(builds, sources, entry, state)
        try:
            _require_ends(session, bases, trust=options.trust_ends)
            return _search(session, bases, skip)
        except BaseException:
            session.interrupted()
            raise


@contextmanager
def _locked(settings: Settings, name: str) -> Iterator[None]:
    with named_lock(settings.state_dir / "bisect", f"the bisect of {name}"):
        yield


def _require_ends(session: _Session, bases: Sequence[str], *, trust: bool) -> None:
    """Evaluate the ends, or trust them; raise ``QuestionError`` if one is wrong.

    A wrong end is not noticed later: the answer would be wrong, and look right.
    """
    question = session.state.question
    if not trust:
        _require_end(session, question.good, "good", "the good end")
    if bases:
        session.builds.log(
            f"{question.good} is no ancestor of {question.bad}: their merge base must be good too"
        )
    for base in bases:
        step = session.evaluate(base, "the merge base")
        if step.verdict == "bad":
            session.discard()
            raise QuestionError(
                f"the merge base of {question.good} and {question.bad} is bad: {step.commit.short}",
                f"{step.evaluation.why}\nso nothing broke between it and {question.bad}: it was "
                f"fixed on the way to {question.good}",
                "give a good commit that is an ancestor of the bad one",
            )
        if step.verdict == "skip":
            session.builds.log(
                "the answer may be wrong: an earlier commit may be the first bad one"
            )
    if not trust:
        _require_end(session, question.bad, "bad", "the bad end")


def _require_end(session: _Session, end: End, verdict: Literal["good", "bad"], what: str) -> None:
    step = session.evaluate(end.commit, what)
    if step.verdict == verdict:
        return
    session.discard()
    log = [f"the log is {step.evaluation.log}"] if step.evaluation.log else []
    raise QuestionError(
        f"{what}, {end}, {_summary(step)}",
        "\n".join(log),
        "give another end or another --test; --trust-ends skips this check",
    )


def _search(session: _Session, bases: Sequence[str], skip: Sequence[str]) -> BisectResult:
    for commit in skip:
        _skip(session, commit)
    found = _bisection(session.sources, session.state, bases)
    _replay(found, session.state)
    while left := len(found.open()):
        commit = found.next
        step = session.evaluate(commit, f"{count(left)} left, about {left.bit_length()} to try")
        found.mark(step.verdict, commit)
    session.sweep()
    return _outcome(session.sources, session.state, found)


def _bisection(sources: SourceSession, state: BisectState, bases: Sequence[str]) -> Bisection:
    """git's bisect between the ends; merge bases that are good limit it as well."""
    question = state.question
    good = [base for base in bases if (step := state.step(base)) and step.verdict == "good"]
    return Bisection(
        sources.repositories.scratch,
        [question.good.commit, *good],
        question.bad.commit,
        first_parent=question.first_parent,
    )


def _replay(found: Bisection, state: BisectState) -> None:
    ends = {state.question.good.commit, state.question.bad.commit}
    for step in state.steps:
        if step.commit.name not in ends:
            found.mark(step.verdict, step.commit.name)


def _commit_named(digits: str, between: Sequence[str]) -> str:
    named = [each for each in between if each.startswith(digits)]
    if not ABBREVIATED.fullmatch(digits) or len(named) != 1:
        raise QuestionError(
            f"--skip {digits} names no commit between the ends",
            hint="give seven or more digits of a commit",
        )
    return named[0]


def _skip(session: _Session, commit: str) -> None:
    if session.state.step(commit) is None:
        (about,) = described(session.sources.repositories.scratch, [commit])
        step = BisectStep(about, Evaluation("skip", "skipped by --skip"))
        session.save(session.state.with_step(step))


def _outcome(sources: SourceSession, state: BisectState, found: Bisection) -> BisectResult:
    left, commits = len(found.open()), found.candidates()
    progress: Literal["found", "undecided", "open"] = "open"
    candidates: list[Commit] = []
    if not left:
        progress = "found" if len(commits) == 1 else "undecided"
        candidates = described(sources.repositories.scratch, commits)
    return BisectResult(state.question, progress, state.steps, tuple(candidates), left, found.log)


def status(builds: BuildSession, name: str) -> BisectResult:
    """The progress of a recipe's bisect, which may be running; no commit is evaluated.

    Raises ``QuestionError`` if there is none, ``FetchError`` if the history cannot be fetched.
    """
    entry = builds.catalog.engine(name)
    url = source_of(entry)
    state = bisect_state.read(builds.settings.state_dir, entry.name)
    if state is None:
        raise QuestionError(f"there is no unfinished bisect of {entry.name}")
    question = state.question
    with open_session(builds.catalog, builds.settings, builds.log, offline=False) as sources:
        sources.repositories.walk(url, question.good.commit, question.bad.commit)
        found = _bisection(sources, state, merge_bases(sources, question))
        _replay(found, state)
        return _outcome(sources, state, found)


def finish(builds: BuildSession, outcome: BisectResult) -> None:
    """Delete the state of a bisect that has ended.

    Raises ``UntriedError`` if only skipped commits are left.
    """
    name = outcome.question.recipe
    with _locked(builds.settings, name):
        bisect_state.forget(builds.settings.state_dir, name)
    if outcome.state == "undecided":
        raise UntriedError(
            f"any of {len(outcome.candidates)} commits may be the first bad one: "
            "all but the last were skipped",
            "\n".join(commit.short for commit in outcome.candidates),
            "the table above has the reason for each",
        )


def reset(builds: BuildSession, name: str) -> None:
    """Delete the state of a recipe's bisect, and its images; the recipe may be gone.

    Raises ``BusyError`` while it runs, ``RecipeError`` if there is neither a state nor a recipe.
    """
    if name not in bisect_state.under_way(builds.settings.state_dir):
        name = builds.catalog.engine(name).name
    with _locked(builds.settings, name):
        _sweep(builds.settings, name)
        bisect_state.forget(builds.settings.state_dir, name)


def _sweep(settings: Settings, name: str) -> None:
    try:
        state = bisect_state.read(settings.state_dir, name)
    except QuestionError:
        return  # an unreadable state names no images of the engine
    if state is not None and state.trace is not None:
        evaluate.sweep(state.trace)
        bisect_state.keep(settings.state_dir, replace(state, trace=None))
