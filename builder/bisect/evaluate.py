"""One commit of a bisect, evaluated: built and smoke-tested, or given to the user's own test."""

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

from builder import pipeline
from builder.bisect.state import SHORT, BuildFails, Evaluation, Trace
from builder.errors import BuilderError, BuildError, GoneError, PatchError, SmokeError, UntriedError
from builder.images.build import BreakdownError
from builder.images.session import BuildSession
from builder.plan.rendered import EngineImage
from builder.recipes.catalog import Entry
from builder.recipes.edit import Target
from builder.recipes.schema import Recipe
from builder.records import record
from builder.tools.docker import engine as docker
from builder.upstream import snapshot
from builder.upstream.patch_state import Finding
from builder.upstream.session import SourceSession
from builder.upstream.snapshot import Frozen

PREFIX = "bisect"
GOOD, SKIP = 0, 125  # git-bisect(1), "Bisect run"
OF_THE_SHELL = {
    126: ["as a shell ends where it may not run a command"],
    127: ["as a shell ends where it finds no such command"],
}
SHOWN = 10  # last lines of what a test printed
GRACE = 10.0  # seconds that a test, and what it started, has to end


@dataclass(frozen=True, slots=True)
class UserTest:
    """A shell command that judges an image, run in ``folder``."""

    command: str
    folder: Path


@dataclass(frozen=True, slots=True)
class How:
    """How commits are evaluated; without a test by the smoke test of their images."""

    test: UserTest | None
    build_fails: BuildFails


@dataclass(frozen=True, slots=True)
class Candidate:
    """A commit in the place of a recipe's pin, ready to be built."""

    builds: BuildSession
    frozen: Frozen
    image: EngineImage

    @property
    def commit(self) -> str:
        """The commit."""
        return self.frozen.target.commit


def candidate(
    builds: BuildSession, at: SourceSession, entry: Entry[Recipe], commit: str
) -> Candidate:
    """A recipe at a commit whose history is there, without the patches that it has already.

    Raises ``PatchError`` where another one does not fit, ``GoneError`` where a part of the
    commit's tree is gone, ``FetchError`` where it cannot be had now.
    """
    number = int(at.repositories.scratch.text("rev-list", "--count", commit))
    target = Target(commit, commit, "commit")
    version = f"{PREFIX}-{commit[:SHORT]}"
    frozen = snapshot.at_commit(builds.catalog, entry, target, number, version)
    frozen, unfit = snapshot.fitted(frozen, at)
    if unfit:
        raise PatchError(_line(unfit[0]))
    at_commit = replace(builds, catalog=frozen.catalog)
    return Candidate(at_commit, frozen, at_commit.resolve(frozen.name))


def _line(found: Finding) -> str:
    first = [detail.splitlines()[0] for detail in found.details[:1]]
    return "; ".join([f"{found.patch} does not fit ({found.state})", *first])


def trace(subject: Candidate) -> Trace:
    """What the engine has, before it is built, of what the build will bring or replace."""
    image = subject.image
    version = f"{image.repository}:{image.plan.recipe.version}"
    patterns = (version, f"{image.repository}:*-{image.short_key}")
    return Trace(subject.commit, patterns, tuple(_names(patterns)))


def _names(patterns: tuple[str, ...]) -> list[str]:
    return [name for pattern in patterns for name in docker.image_names(pattern)]


def sweep(left: Trace) -> None:
    """Take away the names that were not there before; an image goes with its last name."""
    for name in _names(left.patterns):
        if name not in left.there:
            docker.untag(name)


def evaluate(subject: Candidate, how: How) -> Evaluation:
    """Build a commit, smoke-test it, and evaluate it.

    What cannot be built is skipped, or bad where ``how`` says so.  Raises ``WorldError``,
    ``SpaceError``, ``FetchError`` and ``BusyError``, which say nothing of the commit, nor does
    ``UntriedError``: the build broke down, or the test broke off.
    """
    started, log_before = time.monotonic(), _log_of(subject)
    found = _smoke_tested(subject, how)
    image = _image(subject) if how.test is not None and found.word != "skip" else ""
    if how.test is not None and image:
        found = _tested(subject, how.test, image)
    return replace(
        found,
        built=_log_of(subject) != log_before,
        seconds=round(time.monotonic() - started, 1),
        log=found.log or _log_of(subject),
    )


def _smoke_tested(subject: Candidate, how: How) -> Evaluation:
    """The result of the build and the smoke test."""
    try:
        pipeline.build(subject.image, subject.builds.options, subject.builds.reporter)
    except SmokeError as error:
        return Evaluation("bad", _first(error))
    except BreakdownError as error:
        raise UntriedError(
            f"the build of {subject.commit[:SHORT]} broke down, which says nothing of the commit",
            error.why,
            f"{error.hint}; the same command goes on from there, and with --skip "
            f"{subject.commit[:SHORT]} without it",
        ) from error
    except BuildError as error:
        return Evaluation(how.build_fails, f"cannot be built: {_telling(error)}")
    except (PatchError, GoneError) as error:
        return Evaluation("skip", error.what)
    except UntriedError as error:
        # A test needs no more than the image.
        testable = how.test is not None and _image(subject)
        return Evaluation("good" if testable else "skip", f"cannot be tried: {_first(error)}")
    return Evaluation("good", "built and verified")


def _first(error: BuilderError) -> str:
    return (error.why or error.what).splitlines()[0]


def _telling(error: BuilderError) -> str:
    """The line that says why, not the one that says which command failed."""
    lines = error.why.splitlines()
    return next((line for line in lines if "error" in line.lower()), _first(error))


def _image(subject: Candidate) -> str:
    """The name of the image, good or not; empty where there is none."""
    image = subject.image
    kept = record.read(subject.builds.settings.state_dir, image.plan.name, image.key)
    if kept is None:
        return ""
    found = docker.image(kept.references[0])
    return kept.references[0] if found and found.digest == kept.digest else ""


def _log_of(subject: Candidate) -> str:
    """The newest log of the build."""
    folder = subject.builds.settings.state_dir / "logs"
    return max(map(str, folder.glob(f"{subject.frozen.name}-*.log")), default="")


def _tested(subject: Candidate, test: UserTest, image: str) -> Evaluation:
    """What the user's test says of an image: good with 0, skip with 125, bad with 1 to 124.

    git-bisect(1), "Bisect run", takes 126 and 127 for bad, where the good end does not have them
    too, and gives up over what is more.  Ours gives up over both: they are the shell's, for a
    command that it may not run or does not find, and ``docker run`` gives them on.
    """
    if not test.folder.is_dir():
        raise UntriedError(
            f"the directory that the test runs in is gone: {test.folder}",
            hint="put it back: the same command goes on from there",
        )
    name = f"test-{subject.frozen.name}-{datetime.now(UTC):%Y%m%dT%H%M%S}.log"
    log = subject.builds.settings.state_dir / "logs" / name
    log.parent.mkdir(parents=True, exist_ok=True)
    subject.builds.log(f"testing {image}; what it prints goes to {log}")
    status = _ran(test, {"IMAGE": image, "COMMIT": subject.commit}, log)
    lines = log.read_text("utf-8", errors="replace").splitlines()
    for line in lines[-SHOWN:]:
        subject.builds.log(f"  {line}")
    if status == GOOD:
        return Evaluation("good", "the test ended with 0", log=str(log))
    if status == SKIP:
        return Evaluation("skip", "the test ended with 125: it cannot tell", log=str(log))
    if 0 < status < SKIP:
        why = next(filter(None, reversed(lines)), "")
        return Evaluation("bad", ": ".join(filter(None, (_ended(status), why))), log=str(log))
    raise UntriedError(
        f"{_ended(status)} on {subject.commit[:SHORT]}: that is no verdict",
        "\n".join([*lines[-SHOWN:], *OF_THE_SHELL.get(status, ())]),
        "the commits evaluated so far are kept: the same command goes on from there, and --restart "
        "--test COMMAND begins anew with another test",
    )


def _ended(status: int) -> str:
    if status < 0:
        return f"the test was ended by signal {-status}"
    return f"the test ended with {status}"


def _ran(test: UserTest, variables: Mapping[str, str], log: Path) -> int:
    """Run a test with its output in a file: what it leaves running cannot keep us waiting.

    Where we are stopped, it is stopped with all that it started.
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
    """End a group of processes: what has not heeded SIGTERM after a while is killed.

    The shell that leads it is often the first to go.
    """
    until = time.monotonic() + GRACE
    with suppress(ProcessLookupError):
        try:
            os.killpg(process.pid, signal.SIGTERM)
            while time.monotonic() < until:
                process.poll()  # who has ended stays in its group until somebody has asked
                os.killpg(process.pid, 0)
                time.sleep(0.05)
        finally:
            os.killpg(process.pid, signal.SIGKILL)
