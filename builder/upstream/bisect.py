"""Finds the upstream commit that broke an engine: git picks commits, which are built and tested.

The state is written after every commit, so that a bisect that was stopped continues with the next
one.  A commit is built like any recipe; most of it comes from the compiler cache.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

from pydantic import ConfigDict, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass as pydantic_dataclass

from builder.build import build as pipeline
from builder.build import record
from builder.build.session import BuildSession
from builder.build.stages import BreakdownError
from builder.core.errors import (
    BuilderError,
    BuildError,
    FetchError,
    PatchError,
    RecipeError,
    SmokeError,
    UntriedError,
    UsageError,
)
from builder.core.files import named_lock, write_json
from builder.core.json_model import first_error
from builder.core.platforms import Platform
from builder.core.settings import Settings
from builder.docker import engine as docker
from builder.engines import families
from builder.plan.inputs import resolve_patches
from builder.plan.plan import Plan
from builder.plan.resolver import one_of
from builder.recipes.catalog import Catalog, Entry
from builder.recipes.edit import NamedCommit
from builder.recipes.fields import checked_ref
from builder.recipes.schema import GitSource, Recipe
from builder.sources.git import UpstreamLacksError
from builder.sources.history import Bisection, Commit, Word, described
from builder.upstream import snapshot, track
from builder.upstream.patches import PatchFinding
from builder.upstream.session import SourceSession, open_session
from builder.upstream.snapshot import FrozenRecipe

# The state of a bisect: its question and the commits evaluated so far, one file for each recipe.
#
# git's own state is not kept.  A bisect that goes on gives git every evaluated commit again, so
# that no state of git's can be half written, and the mirrors may be deleted in between.

SHORT = 9  # digits of a commit in messages
STRICT = ConfigDict(strict=True, extra="forbid")
BuildFails = Literal["skip", "bad"]


class QuestionError(UsageError):
    """The question of a bisect cannot be answered as it was given."""


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
class Evaluation:
    """The verdict on a commit, and the reason in one line."""

    verdict: Word
    why: str
    built: bool = False
    """Whether this commit was compiled."""
    seconds: float = 0.0
    log: str = ""


@pydantic_dataclass(frozen=True, slots=True, config=STRICT)
class BisectStep:
    """A commit that was evaluated."""

    commit: Commit
    evaluation: Evaluation

    @property
    def verdict(self) -> Word:
        """Good, bad or skip."""
        return self.evaluation.verdict


@pydantic_dataclass(frozen=True, slots=True, config=STRICT)
class Trace:
    """The image names that the build of a commit may leave in the engine."""

    commit: str
    patterns: tuple[str, ...]
    """Patterns of the names."""
    there: tuple[str, ...]
    """Names that existed before; they are not removed."""


@pydantic_dataclass(frozen=True, slots=True, config=STRICT)
class BisectState:
    """A question, the commits evaluated so far, and the trace of the current one."""

    question: BisectQuestion
    steps: tuple[BisectStep, ...] = ()
    trace: Trace | None = None

    def step(self, commit: str) -> BisectStep | None:
        """The step of a commit; None if it is not evaluated yet."""
        return next((step for step in self.steps if step.commit.name == commit), None)

    def with_step(self, step: BisectStep) -> BisectState:
        """The state with one more step."""
        return replace(self, steps=(*self.steps, step))


STATE = TypeAdapter(BisectState)


def path_of(state_dir: Path, recipe: str) -> Path:
    """The file of a recipe's state."""
    return state_dir / "bisect" / f"{recipe}.json"


def under_way(state_dir: Path) -> set[str]:
    """The recipes that have a state file, readable or not."""
    return {file.stem for file in path_of(state_dir, "*").parent.glob("*.json")}


def write_state(state_dir: Path, state: BisectState) -> None:
    """Write a state; raises ``OSError`` if that fails."""
    write_json(path_of(state_dir, state.question.recipe), STATE.dump_python(state, mode="json"))


def keep(state_dir: Path, state: BisectState) -> None:
    """Write a state, or delete the file if there is no progress to keep."""
    if state.steps or state.trace is not None:
        write_state(state_dir, state)
    else:
        forget(state_dir, state.question.recipe)


def read_state(state_dir: Path, recipe: str) -> BisectState | None:
    """The state of a recipe's bisect, or None if there is none.

    Raises ``QuestionError`` if it cannot be read.
    """
    file = path_of(state_dir, recipe)
    try:
        return STATE.validate_json(file.read_bytes())
    except FileNotFoundError:
        return None
    except ValidationError as error:
        raise _damaged(file, recipe, first_error(error)) from error
    except OSError as error:
        raise _damaged(file, recipe, error.strerror or str(error)) from error


def _damaged(file: Path, recipe: str, reason: str) -> QuestionError:
    return QuestionError(
        f"the state of the bisect of {recipe} cannot be read",
        f"{file}: {reason}",
        f"`builder bisect {recipe} --reset` discards it",
    )


def forget(state_dir: Path, recipe: str) -> None:
    """Delete a state, readable or not; absence is no error."""
    path_of(state_dir, recipe).unlink(missing_ok=True)


def inputs_of(catalog: Catalog, entry: Entry[Recipe], platform: Platform | None) -> str:
    """sha256 of a recipe, its bases and its patches, and of the platform if one is named:
    evaluations hold for these inputs.

    Raises ``RecipeError`` if one of them cannot be read.
    """
    texts = [entry.text, *(catalog.base(n).text for n in catalog.chain(entry.recipe.base))]
    patches = [patch.inputs() for patch in resolve_patches(entry, catalog.root)]
    inputs = json.dumps([texts, patches, *([platform] if platform else [])], sort_keys=True)
    return hashlib.sha256(inputs.encode()).hexdigest()


# Evaluates one commit of a bisect: builds and smoke-tests it, or runs the user's own test.

PREFIX = "bisect"
GOOD, SKIP = 0, 125  # git-bisect(1), "Bisect run"
SHELL_ERRORS = {
    126: ["126: command not executable"],
    127: ["127: command not found"],
}
SHOWN = 10  # last lines of a test's output
GRACE = 10.0  # seconds between SIGTERM and SIGKILL


@dataclass(frozen=True, slots=True)
class UserTest:
    """A shell command that decides on an image, run in ``folder``."""

    command: str
    folder: Path


@dataclass(frozen=True, slots=True)
class BisectMethod:
    """How commits are evaluated; without ``test`` by the smoke test of their images."""

    test: UserTest | None
    build_fails: BuildFails


@dataclass(frozen=True, slots=True)
class CommitBuild:
    """A recipe that is pinned to a commit, ready to be built."""

    builds: BuildSession
    frozen: FrozenRecipe
    plan: Plan

    @property
    def commit(self) -> str:
        """All 40 digits."""
        return self.frozen.target.commit


def candidate_of(
    builds: BuildSession, sources: SourceSession, entry: Entry[Recipe], commit: str
) -> CommitBuild:
    """A recipe at a commit whose history is mirrored, without patches that it already contains.

    Raises ``PatchError`` if another patch does not fit, ``UpstreamLacksError`` if a part of the
    commit's tree is gone, ``FetchError`` if it cannot be fetched now.
    """
    scratch = sources.repositories.scratch
    target = NamedCommit(commit, commit, "commit")
    version = f"{PREFIX}-{commit[:SHORT]}"

    def count() -> int:
        return int(scratch.text("rev-list", "--count", commit))

    frozen = snapshot.at_commit(builds.catalog, entry, target, count, version)
    frozen, unfit = snapshot.fitted(frozen, sources)
    if unfit:
        raise PatchError(_line(unfit[0]))
    at_commit = replace(builds, catalog=frozen.catalog)
    return CommitBuild(at_commit, frozen, at_commit.resolve(frozen.name))


def _line(found: PatchFinding) -> str:
    first = [detail.splitlines()[0] for detail in found.details[:1]]
    return "; ".join([f"{found.patch} does not fit ({found.state})", *first])


def trace_of(subject: CommitBuild) -> Trace:
    """The image names that a build will create or move, and the names that exist before it."""
    plan = subject.plan
    version = f"{plan.repository}:{plan.recipe.version}{plan.tag_suffix}"
    patterns = (version, f"{plan.repository}:*-{plan.short_key}")
    return Trace(subject.commit, patterns, tuple(_names(patterns)))


def _names(patterns: tuple[str, ...]) -> list[str]:
    return [name for pattern in patterns for name in docker.image_names(pattern)]


def sweep(left: Trace) -> None:
    """Remove the names that did not exist before; an image goes with its last name."""
    for name in _names(left.patterns):
        if name not in left.there:
            docker.untag(name)


def evaluate(subject: CommitBuild, method: BisectMethod) -> Evaluation:
    """Build a commit, smoke-test it, and evaluate it.

    With ``test``, its engine is not started on simulated cards or a GPU.  A commit that cannot be
    built is skipped, or bad if ``method`` says so.  Raises ``WorldError``, ``SpaceError``,
    ``FetchError`` and ``BusyError``, which say nothing about the commit, and ``UntriedError`` if
    the build ran out of memory or network, or the test ended abnormally.
    """
    started, log_before = time.monotonic(), _log_of(subject)
    if method.test is not None:  # of a real engine, simulated cards would take most of the time
        subject = replace(subject, builds=replace(subject.builds, gpu_test=None, simulated=False))
    found = _smoke_tested(subject, method)
    image = _image(subject) if method.test is not None and found.verdict != "skip" else ""
    if method.test is not None and image:
        found = _user_tested(subject, method.test, image)
    return replace(
        found,
        built=_log_of(subject) != log_before,
        seconds=round(time.monotonic() - started, 1),
        log=found.log or _log_of(subject),
    )


def _smoke_tested(subject: CommitBuild, method: BisectMethod) -> Evaluation:
    try:
        pipeline.build(subject.plan, subject.builds)
    except SmokeError as error:
        return Evaluation("bad", _first(error))
    except BreakdownError as error:
        raise UntriedError(
            f"the build of {subject.commit[:SHORT]} broke down: no verdict on the commit",
            error.why,
            f"{error.hint}; the same command continues, and skips the commit with --skip "
            f"{subject.commit[:SHORT]}",
        ) from error
    except BuildError as error:
        return Evaluation(method.build_fails, f"cannot be built: {_reason(error)}")
    except (PatchError, UpstreamLacksError) as error:
        return Evaluation("skip", error.what)
    except UntriedError as error:
        # The user's test needs only the image.
        testable = method.test is not None and _image(subject)
        return Evaluation("good" if testable else "skip", f"cannot be tried: {_first(error)}")
    return Evaluation("good", "built and verified")


def _first(error: BuilderError) -> str:
    return (error.why or error.what).splitlines()[0]


def _reason(error: BuilderError) -> str:
    """The first line with an error message, not the line that names the failed command."""
    lines = error.why.splitlines()
    return next((line for line in lines if "error" in line.lower()), _first(error))


def _image(subject: CommitBuild) -> str:
    """The reference of the image, whatever its verdict; empty if there is none."""
    plan = subject.plan
    kept = record.read(subject.builds.settings.state_dir, plan.name, plan.key)
    if kept is None:
        return ""
    found = docker.image(kept.references[0])
    return kept.references[0] if found and found.digest == kept.digest else ""


def _log_of(subject: CommitBuild) -> str:
    folder = subject.builds.settings.state_dir / "logs"
    return max(map(str, folder.glob(f"{subject.frozen.name}-*.log")), default="")


def _user_tested(subject: CommitBuild, test: UserTest, image: str) -> Evaluation:
    """The verdict of the user's test on an image: 0 is good, 125 skip, 1 to 124 bad.

    git-bisect(1), "Bisect run", takes 126 and 127 as bad, unless the good end has them too, and
    stops at higher codes.  Ours stops at 126 and 127 as well: they are the shell's codes for a
    command that is not executable or not found, and ``docker run`` passes them on.
    """
    if not test.folder.is_dir():
        raise UntriedError(
            f"the directory that the test runs in is gone: {test.folder}",
            hint="restore it: the same command continues",
        )
    name = f"test-{subject.frozen.name}-{datetime.now(UTC):%Y%m%dT%H%M%S}.log"
    log = subject.builds.settings.state_dir / "logs" / name
    log.parent.mkdir(parents=True, exist_ok=True)
    subject.builds.log(f"testing {image}, with the output in {log}")
    status = _ran(test, {"IMAGE": image, "COMMIT": subject.commit}, log)
    lines = log.read_text("utf-8", errors="replace").splitlines()
    for line in lines[-SHOWN:]:
        subject.builds.log(f"  {line}")
    if status == GOOD:
        return Evaluation("good", "the test ended with 0", log=str(log))
    if status == SKIP:
        return Evaluation("skip", "the test ended with 125", log=str(log))
    if 0 < status < SKIP:
        why = next(filter(None, reversed(lines)), "")
        return Evaluation("bad", ": ".join(filter(None, (_ended(status), why))), log=str(log))
    raise UntriedError(
        f"{_ended(status)} on {subject.commit[:SHORT]}: no verdict",
        "\n".join([*lines[-SHOWN:], *SHELL_ERRORS.get(status, ())]),
        "the progress is kept: the same command continues; --reset discards it",
    )


def _ended(status: int) -> str:
    if status < 0:
        return f"the test was ended by signal {-status}"
    return f"the test ended with {status}"


def _ran(test: UserTest, variables: Mapping[str, str], log: Path) -> int:
    """Run a test with its output in a file, so that processes it leaves behind do not block us.

    If we are stopped, the test is stopped with all its processes.
    """
    with (
        log.open("wb") as output,
        subprocess.Popen(
            ["sh", "-c", test.command],
            cwd=test.folder,
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


# Turns a request to bisect into a state: a new question, or an unfinished one.

ABBREVIATED = re.compile(r"[0-9a-f]{7,40}")


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


def source_of(entry: Entry[Recipe]) -> str:
    """The URL of the git repository that a recipe is built from.

    Raises ``RecipeError`` if there is none.
    """
    source = entry.recipe.source
    if not isinstance(source, GitSource):
        raise RecipeError(
            f"the source of {entry.name} is not a git repository",
            hint="only [source] git can be bisected; try releases one by one",
        )
    if families.ENGINES[entry.recipe.family].package_paths:
        raise RecipeError(
            f"the engine of {entry.name} comes from its base, {entry.recipe.base}",
            hint="only an engine that is built from its source can be bisected",
        )
    return source.git


def state_of(
    builds: BuildSession,
    sources: SourceSession,
    entry: Entry[Recipe],
    url: str,
    request: BisectRequest,
) -> BisectState:
    """The state that a request begins with; nothing is written.

    An unfinished bisect continues.  Raises ``QuestionError`` if a different bisect is unfinished,
    the recipe has changed since, or the directory of the test is gone; ``RecipeError`` where the
    recipe has several images and none is named; ``FetchError`` for an end that does not exist.
    """
    known = read_state(builds.settings.state_dir, entry.name)
    one_of(entry.recipe, builds.platform)
    inputs = inputs_of(builds.catalog, entry, builds.platform)
    if known is None:
        state = BisectState(_question(sources, entry, url, request, inputs))
    else:
        state = _continued(builds, sources, url, request, known, inputs)
    _require_folder(builds, state.question)
    return state


def _question(
    sources: SourceSession, entry: Entry[Recipe], url: str, request: BisectRequest, inputs: str
) -> BisectQuestion:
    if request.good is None or request.bad is None:
        raise QuestionError(
            f"there is no unfinished bisect of {entry.name}", hint="start one: --good A --bad B"
        )
    good, bad = (_end(sources, url, name) for name in (request.good, request.bad))
    folder = str(Path.cwd()) if request.test is not None else ""
    way = (request.test, folder, request.build_fails, request.first_parent)
    return BisectQuestion(entry.name, good, bad, *way, inputs)


def _require_folder(builds: BuildSession, question: BisectQuestion) -> None:
    """Raise ``QuestionError`` if the test's directory is gone; relative paths in it start there."""
    if question.test is None:
        return
    if not Path(question.folder).is_dir():
        raise QuestionError(
            f"the directory that the test of {question.recipe} runs in is gone",
            question.folder,
            "restore it, or discard the progress with --reset",
        )
    if Path(question.folder) != Path.cwd():
        builds.log(f"the test runs in {question.folder}, where the bisect started")


def _continued(
    builds: BuildSession,
    sources: SourceSession,
    url: str,
    request: BisectRequest,
    known: BisectState,
    inputs: str,
) -> BisectState:
    old = known.question
    _require_same(sources, url, request, old)
    if old.inputs != inputs:
        raise QuestionError(
            f"{old.recipe}, its base or a patch has changed since its bisect started",
            "its commits were evaluated with the earlier recipe",
            "undo the change, or discard the progress with --reset",
        )
    builds.log(f"continuing between {old.good} and {old.bad}: {count(len(known.steps))} evaluated")
    return known


def _require_same(
    sources: SourceSession, url: str, request: BisectRequest, old: BisectQuestion
) -> None:
    """Raise ``QuestionError`` unless a request repeats the old question, or gives no options."""
    ends = ((request.good, old.good), (request.bad, old.bad))
    bare = request == BisectRequest()
    same = all(name is None or _is_end(sources, url, name, end) for name, end in ends)
    same &= request.test == old.test and request.build_fails == old.build_fails
    if bare or (same and request.first_parent == old.first_parent):
        return
    test = f"by --test {old.test!r}" if old.test is not None else "by the smoke test"
    more = [f"--build-fails {old.build_fails}"] if old.build_fails != "skip" else []
    more += ["--first-parent"] if old.first_parent else []
    raise QuestionError(
        f"another bisect of {old.recipe} is unfinished",
        ", ".join([f"it is between {old.good} and {old.bad}", test, *more]),
        f"continue it with `builder bisect {old.recipe}`, or discard it with --reset",
    )


def _is_end(sources: SourceSession, url: str, name: str, end: End) -> bool:
    """Whether a name means an end; a branch does, even if it has moved since."""
    return name in {end.name, end.commit} or _end(sources, url, name).commit == end.commit


def _end(sources: SourceSession, url: str, name: str) -> End:
    try:
        return End(name, track.resolve(url, checked_ref(name), sources.repositories).commit)
    except FetchError as error:
        if ABBREVIATED.fullmatch(name):
            raise type(error)(error.what, error.why, "give all 40 digits of a commit") from error
        raise


def merge_bases(sources: SourceSession, question: BisectQuestion) -> list[str]:
    """The merge bases of the ends, unless the good end is the only one: they must be good too.

    Raises ``QuestionError`` if there is nothing between the ends.
    """
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


# The search.


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
        keep(self.builds.settings.state_dir, state)

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
            candidate = candidate_of(self.builds, self.sources, self.entry, commit)
        except (PatchError, UpstreamLacksError) as error:
            return Evaluation("skip", error.what)
        trace = self.state.trace
        if trace is None or trace.commit != commit:
            self.sweep()
            self.save(replace(self.state, trace=trace_of(candidate)))
        return evaluate(candidate, self.method)

    def sweep(self) -> None:
        """Remove the images of the last commit."""
        if self.state.trace is not None:
            sweep(self.state.trace)
            self.save(replace(self.state, trace=None))

    def interrupted(self) -> None:
        """Say how to continue, if there is progress."""
        name = self.entry.name
        if path_of(self.builds.settings.state_dir, name).exists():
            self.builds.log(f"the progress is kept: `builder bisect {name}` continues")

    def discard(self) -> None:
        """Remove the images and the state."""
        self.sweep()
        forget(self.builds.settings.state_dir, self.entry.name)


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
    state = read_state(builds.settings.state_dir, entry.name)
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
        forget(builds.settings.state_dir, name)
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
    if name not in under_way(builds.settings.state_dir):
        name = builds.catalog.engine(name).name
    with _locked(builds.settings, name):
        _sweep(builds.settings, name)
        forget(builds.settings.state_dir, name)


def _sweep(settings: Settings, name: str) -> None:
    try:
        state = read_state(settings.state_dir, name)
    except QuestionError:
        return  # an unreadable state names no images of the engine
    if state is not None and state.trace is not None:
        sweep(state.trace)
        keep(settings.state_dir, replace(state, trace=None))
