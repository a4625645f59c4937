"""Which commit of an upstream broke an engine: git picks commits, which are built and tested.

What is known is kept after every commit, so a bisect that was stopped at any moment goes on with
the next one.  A commit is built like any recipe; the compiler cache has most of it already.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from builder.bisect import evaluate
from builder.bisect import state as bisect_state
from builder.bisect.ask import ABBREVIATED, Asked, count, roots_between, source_of, state_of
from builder.bisect.evaluate import How, UserTest
from builder.bisect.state import SHORT, End, Evaluation, Question, QuestionError, State, Step
from builder.errors import GoneError, PatchError, UntriedError
from builder.images.session import BuildSession
from builder.recipes.catalog import Entry
from builder.recipes.schema import Recipe
from builder.settings import Settings
from builder.tools.files import named_lock
from builder.tools.git.bisection import Bisection, Commit, described
from builder.upstream.session import SourceSession, open_session


@dataclass(frozen=True, slots=True)
class Options:
    """What does not change the answer, only the way to it."""

    trust_ends: bool = False
    """The ends are not tried first."""
    skip: tuple[str, ...] = ()
    """Commits that are not tried: seven digits of each, or more."""
    keep: bool = False
    """The images stay in the engine."""
    restart: bool = False
    """What is known is forgotten, once more is known of what is asked now."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What is known of a question, and the commits that may be the answer."""

    question: Question
    state: Literal["found", "undecided", "open"]
    steps: tuple[Step, ...]
    candidates: tuple[Commit, ...]
    """Oldest first; the last one is known bad, those before it were skipped.  Empty while open."""
    left: int
    """How many commits are neither known nor skipped."""
    log: str
    """What ``git bisect replay`` takes."""

    @property
    def first_bad(self) -> Commit | None:
        """The answer, where there is one."""
        return self.candidates[-1] if self.state == "found" else None

    @property
    def builds(self) -> int:
        """How many commits were compiled."""
        return sum(step.evaluation.built for step in self.steps)


class _Session:
    """A bisect at work: what is known, and how more comes to be known."""

    def __init__(
        self,
        builds: BuildSession,
        at: SourceSession,
        entry: Entry[Recipe],
        state: State,
        options: Options,
    ) -> None:
        self.builds, self.at, self.entry, self.state = builds, at, entry, state
        self.keep = options.keep
        question = state.question
        test = None
        if question.test is not None:
            test = UserTest(question.test, Path(question.folder))
        self.how = How(test, question.build_fails)

    def knows(self, state: State) -> None:
        """Keep what is known so far."""
        self.state = state
        bisect_state.keep(self.builds.settings.state_dir, state)

    def evaluate(self, commit: str, what: str) -> Step:
        """The step of a commit, from what is known or by trying it; ``what`` announces it."""
        known = self.state.step(commit)
        if known is not None:
            return known
        (about,) = described(self.at.repositories.scratch, [commit])
        self.builds.log(f"{what}: {about.short} ({about.date})")
        step = Step(about, self._tried(commit))
        self.builds.log(f"{commit[:SHORT]} {_is(step)}")
        self.knows(self.state.with_step(step))
        self.sweep()
        return step

    def _tried(self, commit: str) -> Evaluation:
        try:
            candidate = evaluate.candidate(self.builds, self.at, self.entry, commit)
        except (PatchError, GoneError) as error:
            return Evaluation("skip", error.what)
        trace = self.state.trace
        if trace is None or trace.commit != commit:
            self.sweep()
            self.knows(replace(self.state, trace=evaluate.trace(candidate)))
        return evaluate.evaluate(candidate, self.how)

    def sweep(self) -> None:
        """Take the images of the last commit away, where they are not kept."""
        if self.state.trace is not None:
            if not self.keep:
                evaluate.sweep(self.state.trace)
            self.knows(replace(self.state, trace=None))

    def stopped(self) -> None:
        """Something broke off."""
        name = self.entry.name
        if bisect_state.path_of(self.builds.settings.state_dir, name).exists():
            self.builds.log(f"what is known is kept: `builder bisect {name}` goes on from there")

    def concluded(self) -> None:
        """There is nothing left to know: nothing stays."""
        self.sweep()
        bisect_state.forget(self.builds.settings.state_dir, self.entry.name)


def _is(step: Step) -> str:
    word = "is skipped" if step.word == "skip" else f"is {step.word}"
    return f"{word}: {step.evaluation.why}"


def bisect(builds: BuildSession, name: str, asked: Asked, options: Options) -> Outcome:
    """Look for the first bad commit; what is known stays until ``finish``.

    Raises ``QuestionError`` where the ends are not what they are said to be, a commit to skip is
    not between them, or another question is not answered yet; ``RecipeError`` for a source that is
    no git repository; ``BusyError`` where another bisect of the recipe goes on; and what says
    nothing of a commit, and stops: ``WorldError``, ``SpaceError``, ``FetchError``,
    ``UntriedError``.
    """
    entry = builds.catalog.engine(name)
    url = source_of(entry)
    builds.settings.require_directories()
    with (
        _alone(builds.settings, entry.name),
        open_session(builds.catalog, builds.settings, builds.log, offline=False) as at,
    ):
        state = state_of(builds, at, entry, url, asked, anew=options.restart)
        at.repositories.walk(url, state.question.good.commit, state.question.bad.commit)
        roots = roots_between(at, state.question)
        between = _begun(at, state, roots).candidates()[:-1] if options.skip else []
        skip = [_named(digits, between) for digits in options.skip]
        session = _Session(builds, at, entry, state, options)
        if options.restart:
            _sweep(builds.settings, entry.name, keep=options.keep)
        try:
            _require_ends(session, roots, trust=options.trust_ends)
            return _search(session, roots, skip)
        except BaseException:
            session.stopped()
            raise


@contextmanager
def _alone(settings: Settings, name: str) -> Iterator[None]:
    with named_lock(settings.state_dir / "bisect", f"the bisect of {name}"):
        yield


def _require_ends(session: _Session, roots: Sequence[str], *, trust: bool) -> None:
    """Try the ends, or trust them; raise ``QuestionError`` where one is not what it must be.

    A wrong end is not noticed on the way: the answer would be wrong, and look right.
    """
    question = session.state.question
    if not trust:
        _need(session, question.good, "good", "the good end")
    if roots:
        told = "where they part must be good as well"
        session.builds.log(f"{question.good} is no ancestor of {question.bad}: {told}")
    for root in roots:
        step = session.evaluate(root, "where they part")
        if step.word == "bad":
            session.concluded()
            raise QuestionError(
                f"{step.commit.short} is bad, where {question.good} and {question.bad} part",
                f"{step.evaluation.why}\nso nothing broke between there and {question.bad}: it was "
                f"mended on the way to {question.good}",
                "choose a good commit that is an ancestor of the bad one",
            )
        if step.word == "skip":
            session.builds.log("so what is found may be wrong: it may have been bad before that")
    if not trust:
        _need(session, question.bad, "bad", "the bad end")


def _need(session: _Session, end: End, word: Literal["good", "bad"], what: str) -> None:
    step = session.evaluate(end.commit, what)
    if step.word == word:
        return
    session.concluded()
    log = [f"the log is {step.evaluation.log}"] if step.evaluation.log else []
    raise QuestionError(
        f"{what}, {end}, {_is(step)}",
        "\n".join(log),
        "choose another one, or another --test; --trust-ends takes the ends as they are said to be",
    )


def _search(session: _Session, roots: Sequence[str], skip: Sequence[str]) -> Outcome:
    for commit in skip:
        _leave_out(session, commit)
    found = _begun(session.at, session.state, roots)
    _replay(found, session.state)
    while left := len(found.open()):
        commit = found.next
        step = session.evaluate(commit, f"{count(left)} left, about {left.bit_length()} to try")
        found.mark(step.word, commit)
    session.sweep()
    return _outcome(session.at, session.state, found)


def _begun(at: SourceSession, state: State, roots: Sequence[str]) -> Bisection:
    """git's bisect, told of the ends."""
    question = state.question
    good = [root for root in roots if (step := state.step(root)) and step.word == "good"]
    return Bisection(
        at.repositories.scratch,
        [question.good.commit, *good],
        question.bad.commit,
        first_parent=question.first_parent,
    )


def _replay(found: Bisection, state: State) -> None:
    """Tell git all that is known between the ends."""
    ends = {state.question.good.commit, state.question.bad.commit}
    for step in state.steps:
        if step.commit.name not in ends:
            found.mark(step.word, step.commit.name)


def _named(digits: str, between: Sequence[str]) -> str:
    """The one commit that begins with these digits."""
    named = [each for each in between if each.startswith(digits)]
    if not ABBREVIATED.fullmatch(digits) or len(named) != 1:
        raise QuestionError(
            f"--skip {digits} is none of the commits between the ends",
            hint="give seven digits of one, or more",
        )
    return named[0]


def _leave_out(session: _Session, commit: str) -> None:
    """Take a commit for one that was skipped."""
    if session.state.step(commit) is None:
        (about,) = described(session.at.repositories.scratch, [commit])
        step = Step(about, Evaluation("skip", "left out by --skip"))
        session.knows(session.state.with_step(step))


def _outcome(at: SourceSession, state: State, found: Bisection) -> Outcome:
    left, commits = len(found.open()), found.candidates()
    word: Literal["found", "undecided", "open"] = "open"
    candidates: list[Commit] = []
    if not left:
        word = "found" if len(commits) == 1 else "undecided"
        candidates = described(at.repositories.scratch, commits)
    return Outcome(state.question, word, state.steps, tuple(candidates), left, found.log)


def known(builds: BuildSession, name: str) -> Outcome:
    """What is known of the bisect of a recipe; nothing is tried, and one may be at work.

    Raises ``QuestionError`` where none is under way, ``FetchError`` where the history is gone.
    """
    entry = builds.catalog.engine(name)
    url = source_of(entry)
    state = bisect_state.read(builds.settings.state_dir, entry.name)
    if state is None:
        raise QuestionError(f"no bisect of {entry.name} is under way")
    question = state.question
    with open_session(builds.catalog, builds.settings, builds.log, offline=False) as at:
        at.repositories.walk(url, question.good.commit, question.bad.commit)
        found = _begun(at, state, roots_between(at, question))
        _replay(found, state)
        return _outcome(at, state, found)


def finish(builds: BuildSession, outcome: Outcome) -> None:
    """Forget a question that is answered as far as it can be.

    Raises ``UntriedError`` where only skipped commits are left.
    """
    name = outcome.question.recipe
    with _alone(builds.settings, name):
        bisect_state.forget(builds.settings.state_dir, name)
    if outcome.state == "undecided":
        raise UntriedError(
            f"any of {len(outcome.candidates)} commits may be the first bad one: "
            "all but the last were skipped",
            "\n".join(commit.short for commit in outcome.candidates),
            "the reason of each stands above",
        )


def reset(builds: BuildSession, name: str, *, keep: bool) -> None:
    """Forget what is known of the bisect of a recipe, and take its images away.

    Of a bisect that is under way the recipe may be gone.
    Raises ``BusyError`` while it goes on, ``RecipeError`` where there is neither.
    """
    if name not in bisect_state.under_way(builds.settings.state_dir):
        name = builds.catalog.engine(name).name
    with _alone(builds.settings, name):
        _sweep(builds.settings, name, keep=keep)
        bisect_state.forget(builds.settings.state_dir, name)


def _sweep(settings: Settings, name: str, *, keep: bool) -> None:
    """Take away the images of a bisect that is not at work; what was evaluated stays."""
    try:
        state = bisect_state.read(settings.state_dir, name)
    except QuestionError:
        return  # nobody knows any more what it had in the engine
    if state is not None and state.trace is not None:
        if not keep:
            evaluate.sweep(state.trace)
        bisect_state.keep(settings.state_dir, replace(state, trace=None))
