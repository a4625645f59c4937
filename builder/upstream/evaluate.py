"""Evaluates one commit of a bisect: builds and smoke-tests it, or runs the user's own test."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from builder.build import build as pipeline
from builder.build import record
from builder.build.session import BuildSession
from builder.build.stages import BreakdownError
from builder.core.errors import BuilderError, BuildError, PatchError, SmokeError, UntriedError
from builder.docker import engine as docker
from builder.plan.plan import Plan
from builder.recipes.catalog import Entry
from builder.recipes.edit import NamedCommit
from builder.recipes.schema import Recipe
from builder.sources.errors import UpstreamLacksError
from builder.upstream import snapshot
from builder.upstream.patch_state import PatchFinding
from builder.upstream.session import SourceSession
from builder.upstream.snapshot import FrozenRecipe
from builder.upstream.state import SHORT, BuildFails, Evaluation, Trace

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


def candidate(
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


def trace(subject: CommitBuild) -> Trace:
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
