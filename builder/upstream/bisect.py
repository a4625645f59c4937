"""Finds the upstream commit that broke an engine: git picks commits, which are built and tested.

The state is written after every commit, so that a bisect that was stopped continues with the next
one.  git's own state is not kept: git is given every evaluated commit again, and the mirrors may be
deleted in between.  A commit is built like any recipe; most of it comes from the compiler cache.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from pydantic import ConfigDict, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass as pydantic_dataclass

from builder.build import build as pipeline
from builder.build import record
from builder.build.build import BreakdownError, BuildSession
from builder.core import errors
from builder.core.files import named_lock, write_json
from builder.core.json_model import first_error
from builder.core.platforms import Platform
from builder.core.settings import Settings
from builder.docker import engine as docker
from builder.engines import families
from builder.plan.inputs import one_of, resolve_patches
from builder.plan.plan import Plan
from builder.recipes.catalog import Catalog, Entry
from builder.recipes.edit import NamedCommit
from builder.recipes.fields import checked_ref
from builder.recipes.schema import GitSource, Recipe
from builder.sources.git import UpstreamLacksError
from builder.sources.history import Bisection, Commit, Word, described
from builder.upstream import track
from builder.upstream.patches import SourceSession, open_session
from builder.upstream.update import FrozenRecipe, at_commit, fitted

SHORT = 9  # digits of a commit in messages
STRICT = ConfigDict(strict=True, extra="forbid")
BuildFails = Literal["skip", "bad"]
ABBREVIATED = re.compile(r"[0-9a-f]{7,40}")
GOOD, SKIP = 0, 125  # git-bisect(1), "Bisect run"
SHELL_ERRORS = {126: ["126: command not executable"], 127: ["127: command not found"]}
SHOWN = 10  # last lines of a test's output
GRACE = 10.0  # seconds between SIGTERM and SIGKILL


class QuestionError(errors.UsageError):
    """The question of a bisect cannot be answered as it was given."""


# The state of a bisect: its question and the commits evaluated so far, one file for each recipe.


@pydantic_dataclass(frozen=True, slots=True, config=STRICT)
class End:
    """One end of the range: the name that was given, and its commit at that time."""

    name: str
    commit: str

    def __str__(self) -> str:
        short = self.commit[:SHORT]
        return short if self.name == self.commit else f"{self.name} ({short})"


@pydantic_dataclass(frozen=True, slots=True, config=STRICT)
class BisectQuestion:
    """Everything that the answer depends on."""

    recipe: str
    good: End
    bad: End
    test: str | None
    """A shell command that decides; None: the smoke test does."""
    folder: str
    """The directory that the test runs in; empty without a test."""
    build_fails: BuildFails
    """The verdict on a commit that does not compile."""
    first_parent: bool
    inputs: str
    """sha256 of the other inputs of the builds, from ``inputs_of``."""


@pydantic_dataclass(frozen=True, slots=True, config=STRICT)
class BisectStep:
    """A commit that was evaluated, and the reason of its verdict in one line."""

    commit: Commit
    verdict: Word
    why: str
    built: bool = False
    """Whether this commit was compiled."""
    seconds: float = 0.0
    log: str = ""

    @property
    def summary(self) -> str:
        """``is bad: REASON``."""
        return f"is {'skipped' if self.verdict == 'skip' else self.verdict}: {self.why}"


@pydantic_dataclass(frozen=True, slots=True, config=STRICT)
class Trace:
    """Patterns of the image names that the build of a commit may leave in the engine, and the names
    that were there before it."""

    commit: str
    patterns: tuple[str, ...]
    there: tuple[str, ...]


@pydantic_dataclass(frozen=True, slots=True, config=STRICT)
class BisectState:
    """A question, the commits evaluated so far, and the trace of the current one."""

    question: BisectQuestion
    steps: tuple[BisectStep, ...] = ()
    trace: Trace | None = None


STATE = TypeAdapter(BisectState)


def path_of(state_dir: Path, recipe: str) -> Path:
    """The file of a recipe's state."""
    return state_dir / "bisect" / f"{recipe}.json"


def write_state(state_dir: Path, state: BisectState) -> None:
    """Write a state, or delete its file where there is no progress to keep."""
    file = path_of(state_dir, state.question.recipe)
    if state.steps or state.trace is not None:
        write_json(file, STATE.dump_python(state, mode="json"))
    else:
        file.unlink(missing_ok=True)


def read_state(state_dir: Path, recipe: str) -> BisectState | None:
    """The state of a recipe's bisect, or None if there is none."""
    file = path_of(state_dir, recipe)
    try:
        return STATE.validate_json(file.read_bytes())
    except FileNotFoundError:
        return None
    except (ValidationError, OSError) as error:
        reason = str(error) if isinstance(error, OSError) else first_error(error)
        raise QuestionError(
            f"the state of the bisect of {recipe} cannot be read",
            f"{file}: {reason}",
            f"`builder bisect {recipe} --reset` discards it",
        ) from error


def _known_state(state_dir: Path, recipe: str, hint: str = "") -> BisectState:
    state = read_state(state_dir, recipe)
    if state is None:
        raise QuestionError(f"there is no unfinished bisect of {recipe}", hint=hint)
    return state


def inputs_of(catalog: Catalog, entry: Entry[Recipe], platform: Platform | None) -> str:
    """sha256 of a recipe, its bases and its patches, and of the platform if one is named:
    evaluations hold for these inputs."""
    texts = [entry.whole, *(catalog.base(n).text for n in catalog.chain(entry.recipe.base))]
    patches = [patch.inputs() for patch in resolve_patches(entry, catalog.root)]
    inputs = json.dumps([texts, patches, *([platform] if platform else [])], sort_keys=True)
    return hashlib.sha256(inputs.encode()).hexdigest()


# A request becomes a state: a new question, or an unfinished one.


@dataclass(frozen=True, slots=True)
class BisectRequest:
    """The options of a user; without ends, the previous question continues."""

    good: str | None = None
    bad: str | None = None
    test: str | None = None
    build_fails: BuildFails = "skip"
    first_parent: bool = False


def count(commits: int) -> str:
    """``1 commit`` or ``2 commits``."""
    return "1 commit" if commits == 1 else f"{commits} commits"


def _source_of(entry: Entry[Recipe]) -> str:
    source = entry.recipe.source
    if not isinstance(source, GitSource):
        raise errors.RecipeError(
            f"the source of {entry.name} is not a git repository",
            hint="only [source] git can be bisected; try releases one by one",
        )
    if families.ENGINES[entry.recipe.family].package_paths:
        raise errors.RecipeError(
            f"the engine of {entry.name} comes from its base, {entry.recipe.base}",
            hint="only an engine that is built from its source can be bisected",
        )
    return source.git


def _state_of(
    builds: BuildSession,
    sources: SourceSession,
    entry: Entry[Recipe],
    url: str,
    request: BisectRequest,
) -> BisectState:
    """The state that a request begins with; nothing is written."""
    one_of(entry.recipe, builds.platform)
    inputs = inputs_of(builds.catalog, entry, builds.platform)
    if request.good is not None and request.bad is not None:
        state = read_state(builds.settings.state_dir, entry.name)
    else:
        hint = "start one: --good A --bad B"
        state = _known_state(builds.settings.state_dir, entry.name, hint)
    if state is not None:
        old = state.question
        _require_same(sources, url, request, old)
        if old.inputs != inputs:
            raise QuestionError(
                f"{old.recipe}, its base or a patch has changed since its bisect started",
                "its commits were evaluated with the earlier recipe",
                "undo the change, or discard the progress with --reset",
            )
        evaluated = f"{count(len(state.steps))} evaluated"
        builds.log(f"continuing between {old.good} and {old.bad}: {evaluated}")
    else:
        good, bad = (_end(sources, url, name or "") for name in (request.good, request.bad))
        folder = str(Path.cwd()) if request.test is not None else ""
        way = (request.test, folder, request.build_fails, request.first_parent)
        state = BisectState(BisectQuestion(entry.name, good, bad, *way, inputs))
    question = state.question
    if question.test is not None and not Path(question.folder).is_dir():
        raise QuestionError(
            f"the directory that the test of {question.recipe} runs in is gone",
            question.folder,
            "restore it, or discard the progress with --reset",
        )
    if question.test is not None and Path(question.folder) != Path.cwd():
        builds.log(f"the test runs in {question.folder}, where the bisect started")
    return state


def _require_same(
    sources: SourceSession, url: str, request: BisectRequest, old: BisectQuestion
) -> None:
    """Raise ``QuestionError`` unless a request repeats the old question, or gives no options.

    A branch means the old end, even if it has moved since.
    """
    ways = [(each.test, each.build_fails, each.first_parent) for each in (request, old)]
    if request == BisectRequest() or (
        ways[0] == ways[1]
        and all(
            name in {None, end.name, end.commit} or _end(sources, url, name).commit == end.commit
            for name, end in ((request.good, old.good), (request.bad, old.bad))
        )
    ):
        return
    test = f"by --test {old.test!r}" if old.test is not None else "by the smoke test"
    more = [f"--build-fails {old.build_fails}"] if old.build_fails != "skip" else []
    more += ["--first-parent"] if old.first_parent else []
    raise QuestionError(
        f"another bisect of {old.recipe} is unfinished",
        ", ".join([f"it is between {old.good} and {old.bad}", test, *more]),
        f"continue it with `builder bisect {old.recipe}`, or discard it with --reset",
    )


def _end(sources: SourceSession, url: str, name: str) -> End:
    try:
        return End(name, track.resolve(url, checked_ref(name), sources.repositories).commit)
    except errors.FetchError as error:
        if ABBREVIATED.fullmatch(name):
            raise type(error)(error.what, error.why, "give all 40 digits of a commit") from error
        raise


def _merge_bases(sources: SourceSession, question: BisectQuestion) -> list[str]:
    good, bad = question.good, question.bad
    if good.commit == bad.commit:
        raise QuestionError(f"{good} and {bad} are the same commit")
    roots = sources.repositories.scratch.merge_bases(good.commit, bad.commit)
    if not roots:
        raise QuestionError(f"{good} and {bad} have no common history")
    if bad.commit in roots:
        raise QuestionError(
            f"the bad end, {bad}, is older than the good one, {good}",
            "a bisect finds the first bad commit after a good one",
            "to find the commit that fixed something, give a broken commit as --good, and a --test "
            "that fails where it is fixed",
        )
    return [] if good.commit in roots else roots


# One commit: it is built and smoke-tested, or the user's own test runs on its image.


def trace_of(plan: Plan, commit: str) -> Trace:
    """The image names that a build will create or move, and the names that exist before it."""
    version = f"{plan.repository}:{plan.recipe.version}{plan.tag_suffix}"
    patterns = (version, f"{plan.repository}:*-{plan.short_key}")
    return Trace(commit, patterns, tuple(_names(patterns)))


def _names(patterns: tuple[str, ...]) -> list[str]:
    return [name for pattern in patterns for name in docker.image_names(pattern)]


def sweep(left: Trace) -> None:
    """Remove the names that did not exist before; an image goes with its last name."""
    for name in _names(left.patterns):
        if name not in left.there:
            docker.untag(name)


def _smoke_tested(
    builds: BuildSession, plan: Plan, commit: Commit, question: BisectQuestion
) -> BisectStep:
    """Build a commit and check its image; one that cannot be built is skipped, or bad."""
    try:
        pipeline.build(plan, builds)
    except errors.SmokeError as error:
        return BisectStep(commit, "bad", _first(error))
    except BreakdownError as error:
        short = commit.name[:SHORT]
        raise errors.UntriedError(
            f"the build of {short} broke down: no verdict on the commit",
            error.why,
            f"{error.hint}; the same command continues, and skips the commit with --skip {short}",
        ) from error
    except errors.BuildError as error:
        lines = error.why.splitlines()  # one names the failed command
        reason = next((line for line in lines if "error" in line.lower()), _first(error))
        return BisectStep(commit, question.build_fails, f"cannot be built: {reason}")
    except (errors.PatchError, UpstreamLacksError) as error:
        return BisectStep(commit, "skip", error.what)
    except errors.UntriedError as error:
        # The user's test needs only the image.
        testable = question.test is not None and _image(builds, plan)
        why = f"cannot be tried: {_first(error)}"
        return BisectStep(commit, "good" if testable else "skip", why)
    return BisectStep(commit, "good", "built and verified")


def _first(error: errors.BuilderError) -> str:
    return (error.why or error.what).splitlines()[0]


def _image(builds: BuildSession, plan: Plan) -> str:
    """The reference of the image, whatever its verdict; empty if there is none."""
    kept = record.read(builds.settings.state_dir, plan.name, plan.key)
    found = docker.image(kept.references[0]) if kept else None
    return kept.references[0] if kept and found and found.digest == kept.digest else ""


def _newest_log(settings: Settings, name: str) -> str:
    return max(map(str, (settings.state_dir / "logs").glob(f"{name}-*.log")), default="")


def _user_tested(
    builds: BuildSession, name: str, commit: Commit, question: BisectQuestion, image: str
) -> BisectStep:
    """The verdict of the user's test on an image: 0 is good, 125 skip, 1 to 124 bad.

    git-bisect(1), "Bisect run", takes 126 and 127 as bad, unless the good end has them too, and
    stops at higher codes.  Ours stops at 126 and 127 as well: they are the shell's codes for a
    command that is not executable or not found, and ``docker run`` passes them on.
    """
    if not Path(question.folder).is_dir():
        raise errors.UntriedError(
            f"the directory that the test runs in is gone: {question.folder}",
            hint="restore it: the same command continues",
        )
    file = f"test-{name}-{datetime.now(UTC):%Y%m%dT%H%M%S}.log"
    log = builds.settings.state_dir / "logs" / file
    log.parent.mkdir(parents=True, exist_ok=True)
    builds.log(f"testing {image}, with the output in {log}")
    status = _ran(question, {"IMAGE": image, "COMMIT": commit.name}, log)
    lines = log.read_text("utf-8", errors="replace").splitlines()
    for line in lines[-SHOWN:]:
        builds.log(f"  {line}")
    ended = f"was ended by signal {-status}" if status < 0 else f"ended with {status}"
    if status in {GOOD, SKIP}:
        verdict: Word = "good" if status == GOOD else "skip"
        return BisectStep(commit, verdict, f"the test {ended}", log=str(log))
    if 0 < status < SKIP:
        last = next(filter(None, reversed(lines)), "")
        why = ": ".join(filter(None, (f"the test {ended}", last)))
        return BisectStep(commit, "bad", why, log=str(log))
    raise errors.UntriedError(
        f"the test {ended} on {commit.name[:SHORT]}: no verdict",
        "\n".join([*lines[-SHOWN:], *SHELL_ERRORS.get(status, ())]),
        "the progress is kept: the same command continues; --reset discards it",
    )


def _ran(question: BisectQuestion, variables: dict[str, str], log: Path) -> int:
    """Run a test with its output in a file, so that processes it leaves behind do not block us.

    If we are stopped, the test is stopped with all its processes.
    """
    with (
        log.open("wb") as output,
        subprocess.Popen(
            ["sh", "-c", question.test or ""],
            cwd=question.folder,
            env=os.environ | variables,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        ) as process,
    ):
        try:
            return process.wait()
        except BaseException:
            _stop(process)
            raise


def _stop(process: subprocess.Popen[bytes]) -> None:
    """Stop a process group: SIGTERM first, then SIGKILL after ``GRACE`` seconds.

    The group may outlive the shell that leads it.
    """
    until = time.monotonic() + GRACE
    with suppress(ProcessLookupError):
        try:
            os.killpg(process.pid, signal.SIGTERM)
            while time.monotonic() < until:
                process.poll()  # reaps the leader: a zombie stays in its group
                os.killpg(process.pid, 0)
                time.sleep(0.05)
        finally:
            os.killpg(process.pid, signal.SIGKILL)


# The search.


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
        return sum(step.built for step in self.steps)


class _Session:
    def __init__(
        self, builds: BuildSession, sources: SourceSession, entry: Entry[Recipe], state: BisectState
    ) -> None:
        self.builds, self.sources, self.entry, self.state = builds, sources, entry, state
        self.scratch, self.question = sources.repositories.scratch, state.question
        ends = self.question.good.commit, self.question.bad.commit
        sources.repositories.walk(_source_of(entry), *ends)
        self.bases = _merge_bases(sources, self.question)

    def save(self, **changes: Any) -> None:
        self.state = replace(self.state, **changes)
        write_state(self.builds.settings.state_dir, self.state)

    def known(self, commit: str) -> BisectStep | None:
        return next((step for step in self.state.steps if step.commit.name == commit), None)

    def sweep(self) -> None:
        if self.state.trace is not None:
            sweep(self.state.trace)
            self.save(trace=None)

    def evaluate(self, commit: str, what: str) -> BisectStep:
        """The step of a commit: the known one or a new one, announced as ``what``."""
        if (known := self.known(commit)) is not None:
            return known
        (about,) = described(self.scratch, [commit])
        self.builds.log(f"{what}: {about.short} ({about.date})")
        step = self._step(about)
        self.builds.log(f"{commit[:SHORT]} {step.summary}")
        self.save(steps=(*self.state.steps, step))
        self.sweep()
        return step

    def _step(self, about: Commit) -> BisectStep:
        """Build a commit, and test it: an engine that the user's own test decides on is not started
        on simulated cards or a GPU, which would take most of the time."""
        question = self.question
        try:
            frozen = self._frozen(about.name)
            builds = replace(self.builds, catalog=frozen.catalog)
            plan = builds.resolve(frozen.name)
        except (errors.PatchError, UpstreamLacksError) as error:
            return BisectStep(about, "skip", error.what)
        if self.state.trace is None or self.state.trace.commit != about.name:
            self.sweep()
            self.save(trace=trace_of(plan, about.name))
        if question.test is not None:
            builds = replace(builds, gpu_test=None, simulated=False)
        started, before = time.monotonic(), _newest_log(builds.settings, frozen.name)
        step = _smoke_tested(builds, plan, about, question)
        image = _image(builds, plan) if question.test is not None else ""
        if image and step.verdict != "skip":
            step = _user_tested(builds, frozen.name, about, question, image)
        log = _newest_log(builds.settings, frozen.name)
        seconds = round(time.monotonic() - started, 1)
        return replace(step, built=log != before, seconds=seconds, log=step.log or log)

    def _frozen(self, commit: str) -> FrozenRecipe:
        target, version = NamedCommit(commit, commit, "commit"), f"bisect-{commit[:SHORT]}"

        def count() -> int:
            return int(self.scratch.text("rev-list", "--count", commit))

        frozen = at_commit(self.builds.catalog, self.entry, target, count, version)
        frozen, unfit = fitted(frozen, self.sources)
        for found in unfit[:1]:
            first = [detail.splitlines()[0] for detail in found.details[:1]]
            what = f"{found.patch} does not fit ({found.state})"
            raise errors.PatchError("; ".join([what, *first]))
        return frozen

    def require_ends(self, *, trust: bool) -> None:
        """Evaluate the ends, or trust them; raise ``QuestionError`` if one is wrong.

        A wrong end is not noticed later: the answer would be wrong, and look right.
        """
        good, bad = self.question.good, self.question.bad
        if not trust:
            self._require_end(good, "good")
        if self.bases:
            self.builds.log(f"{good} is no ancestor of {bad}: their merge base must be good too")
        for base in self.bases:
            step = self.evaluate(base, "the merge base")
            if step.verdict == "bad":
                self._discard()
                raise QuestionError(
                    f"the merge base of {good} and {bad} is bad: {step.commit.short}",
                    f"{step.why}\nso nothing broke between it and {bad}: "
                    f"it was fixed on the way to {good}",
                    "give a good commit that is an ancestor of the bad one",
                )
            if step.verdict == "skip":
                warning = "the answer may be wrong: an earlier commit may be the first bad one"
                self.builds.log(warning)
        if not trust:
            self._require_end(bad, "bad")

    def _require_end(self, end: End, verdict: Word) -> None:
        step = self.evaluate(end.commit, f"the {verdict} end")
        if step.verdict != verdict:
            self._discard()
            raise QuestionError(
                f"the {verdict} end, {end}, {step.summary}",
                f"the log is {step.log}" if step.log else "",
                "give another end or another --test; --trust-ends skips this check",
            )

    def _discard(self) -> None:
        self.sweep()
        path_of(self.builds.settings.state_dir, self.entry.name).unlink(missing_ok=True)

    def bisection(self) -> Bisection:
        """git's bisect between the ends; merge bases that are good limit it as well."""
        question, found = self.question, {each.commit.name: each for each in self.state.steps}
        bases = [base for base in self.bases if base in found and found[base].verdict == "good"]
        good, bad = [question.good.commit, *bases], question.bad.commit
        return Bisection(self.scratch, good, bad, first_parent=question.first_parent)

    def replayed(self) -> Bisection:
        found = self.bisection()
        for step in self.state.steps:
            if step.commit.name not in {self.question.good.commit, self.question.bad.commit}:
                found.mark(step.verdict, step.commit.name)
        return found

    def skip(self, commit: str) -> None:
        if self.known(commit) is None:
            (about,) = described(self.scratch, [commit])
            step = BisectStep(about, "skip", "skipped by --skip")
            self.save(steps=(*self.state.steps, step))

    def outcome(self, found: Bisection) -> BisectResult:
        question, steps = self.question, self.state.steps
        if left := len(found.open()):
            return BisectResult(question, "open", steps, (), left, found.log)
        candidates = tuple(described(self.scratch, found.candidates()))
        progress: Literal["found", "undecided"] = "found" if len(candidates) == 1 else "undecided"
        return BisectResult(question, progress, steps, candidates, 0, found.log)


def bisect(
    builds: BuildSession,
    name: str,
    request: BisectRequest,
    *,
    trust_ends: bool = False,
    skip: Sequence[str] = (),
) -> BisectResult:
    """Find the first bad commit; the state is kept until ``finish``.

    ``trust_ends``: do not evaluate the ends first.  ``skip``: commits to skip, by seven digits or
    more.

    Raises ``QuestionError`` if an end is not as good or bad as given, a commit to skip is not
    between the ends, or another bisect of the recipe is unfinished; ``RecipeError`` if the source
    is no git repository; ``BusyError`` if another bisect of the recipe is running; ``WorldError``,
    ``SpaceError``, ``FetchError`` and ``UntriedError`` if a commit cannot be evaluated now.
    """
    entry = builds.catalog.engine(name)
    url = _source_of(entry)
    builds.settings.require_directories()
    with (
        _locked(builds.settings, entry.name),
        open_session(builds.catalog, builds.settings, builds.log, offline=False) as sources,
    ):
        state = _state_of(builds, sources, entry, url, request)
        session = _Session(builds, sources, entry, state)
        between = session.bisection().candidates()[:-1] if skip else []
        skipped = [_commit_named(digits, between) for digits in skip]
        try:
            session.require_ends(trust=trust_ends)
            for commit in skipped:
                session.skip(commit)
            found = session.replayed()
            while left := len(found.open()):
                commit = found.next
                what = f"{count(left)} left, about {left.bit_length()} to try"
                found.mark(session.evaluate(commit, what).verdict, commit)
            session.sweep()
            return session.outcome(found)
        except BaseException:
            if path_of(builds.settings.state_dir, entry.name).exists():
                builds.log(f"the progress is kept: `builder bisect {entry.name}` continues")
            raise


def _locked(settings: Settings, name: str) -> AbstractContextManager[None]:
    return named_lock(settings.state_dir / "bisect", f"the bisect of {name}")


def _commit_named(digits: str, between: Sequence[str]) -> str:
    named = [each for each in between if each.startswith(digits)]
    if not ABBREVIATED.fullmatch(digits) or len(named) != 1:
        raise QuestionError(
            f"--skip {digits} names no commit between the ends",
            hint="give seven or more digits of a commit",
        )
    return named[0]


def status(builds: BuildSession, name: str) -> BisectResult:
    """The progress of a recipe's bisect, which may be running; no commit is evaluated.

    Raises ``QuestionError`` if there is none, ``FetchError`` if the history cannot be fetched.
    """
    entry = builds.catalog.engine(name)
    _source_of(entry)
    state = _known_state(builds.settings.state_dir, entry.name)
    with open_session(builds.catalog, builds.settings, builds.log, offline=False) as sources:
        session = _Session(builds, sources, entry, state)
        return session.outcome(session.replayed())


def finish(builds: BuildSession, outcome: BisectResult) -> None:
    """Delete the state of a bisect that has ended.

    Raises ``UntriedError`` if only skipped commits are left.
    """
    name = outcome.question.recipe
    with _locked(builds.settings, name):
        path_of(builds.settings.state_dir, name).unlink(missing_ok=True)
    if outcome.state == "undecided":
        raise errors.UntriedError(
            f"any of {len(outcome.candidates)} commits may be the first bad one: "
            "all but the last were skipped",
            "\n".join(commit.short for commit in outcome.candidates),
            "the table above has the reason for each",
        )


def reset(builds: BuildSession, name: str) -> None:
    """Delete the state of a recipe's bisect, and its images; the recipe may be gone.

    Raises ``BusyError`` while it runs, ``RecipeError`` if there is neither a state nor a recipe.
    """
    state_dir = builds.settings.state_dir
    if name not in {file.stem for file in (state_dir / "bisect").glob("*.json")}:
        name = builds.catalog.engine(name).name
    with _locked(builds.settings, name):
        with suppress(QuestionError):  # an unreadable state names no images of the engine
            state = read_state(state_dir, name)
            if state is not None and state.trace is not None:
                sweep(state.trace)
        path_of(state_dir, name).unlink(missing_ok=True)
