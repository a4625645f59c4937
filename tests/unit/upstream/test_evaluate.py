"""How a bisect evaluates commits with the user's own test; a stand-in takes the engine's place."""

from __future__ import annotations

import contextlib
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from builder.build.build import BuildSession
from builder.cli.session import build_session
from builder.core.errors import RecipeError, UntriedError, WorldError
from builder.sources.history import Commit
from builder.upstream import bisect
from builder.upstream import bisect as evaluate
from builder.upstream.bisect import BisectStep, QuestionError, Trace
from support.bisects import Farm, grown


@pytest.fixture
def swept(monkeypatch: pytest.MonkeyPatch) -> list[Trace]:
    """Stands for the engine: every commit is built and verified; the traces that were swept."""
    gone: list[Trace] = []
    monkeypatch.setattr(BuildSession, "resolve", lambda *_: None)
    monkeypatch.setattr(evaluate, "trace_of", lambda _, commit: Trace(commit, (), ()))
    monkeypatch.setattr(evaluate, "sweep", gone.append)
    monkeypatch.setattr(
        evaluate, "_smoke_tested", lambda _, __, commit, ___: BisectStep(commit, "good", "built")
    )
    monkeypatch.setattr(evaluate, "_image", lambda *_: "eng:bisect")
    return gone


def decide(folder: Path, ends: tuple[str, str], bad: list[str], between: str = "") -> str:
    """A test, named from the folder that it is in; ``between`` is what it does between the ends."""
    folder.mkdir(exist_ok=True)
    script = folder / "decide"
    script.write_text(
        f"#!/bin/sh\n[ $COMMIT = {ends[0]} ] && exit 0\n[ $COMMIT = {ends[1]} ] && exit 1\n"
        f"{between}\ncase '{' '.join(bad)}' in *$COMMIT*) exit 1;; esac\n"
    )
    script.chmod(0o755)
    return "./decide"


@pytest.mark.usefixtures("swept")
def test_a_test_runs_where_it_was_asked_for(farm: Farm, tmp_path: Path) -> None:
    commits = grown(farm.upstream, 9)
    farm.write(commits[0])
    ends, here, other = (commits[0], commits[8]), tmp_path / "here", tmp_path / "other"
    test = decide(here, ends, commits[6:], "exit 134")
    with contextlib.chdir(here), pytest.raises(UntriedError, match="ended with 134"):
        farm.ask(*ends, test=test)
    # It has the same name, and answers another question.
    decide(other, ends, commits[1:])
    here.rename(tmp_path / "away")
    with contextlib.chdir(other):
        with pytest.raises(QuestionError, match="the directory that the test of eng-1 runs in"):
            farm.ask()
        (tmp_path / "away").rename(here)
        decide(here, ends, commits[6:])
        outcome = farm.ask(*ends, test=test)
    assert outcome.first_bad is not None
    assert outcome.first_bad.name == commits[6]
    assert f"the test runs in {here}, where the bisect started" in farm.output


@pytest.mark.usefixtures("swept")
@pytest.mark.parametrize("test", [None, "exit 0"])
def test_no_card_is_simulated_where_the_users_test_decides(
    farm: Farm, monkeypatch: pytest.MonkeyPatch, test: str | None
) -> None:
    sessions: list[BuildSession] = []

    def tested(builds: BuildSession, _: Any, commit: Commit, __: Any) -> BisectStep:
        sessions.append(builds)
        return BisectStep(commit, "good", "built")

    monkeypatch.setattr(evaluate, "_smoke_tested", tested)
    commits = grown(farm.upstream, 2)
    farm.write(commits[0])
    with pytest.raises(QuestionError, match="is good"):  # so are both ends
        farm.ask(*commits, test=test)
    assert {each.simulated for each in sessions} == {test is None}


@pytest.mark.usefixtures("swept")
def test_a_directory_that_goes_while_it_is_needed(farm: Farm, tmp_path: Path) -> None:
    commits = grown(farm.upstream, 4)
    farm.write(commits[0])
    here = tmp_path / "here"
    here.mkdir()
    with contextlib.chdir(here), pytest.raises(UntriedError, match=f"runs in is gone: {here}"):
        farm.ask(commits[0], commits[3], test=f"mv {here} {here}.away")
    assert farm.state is not None
    assert [step.verdict for step in farm.state.steps] == ["good"]


@pytest.mark.usefixtures("swept")
@pytest.mark.parametrize(
    ("between", "why"),
    [
        ("exit 126", "the test ended with 126"),
        ("./none", "127: command not found"),
        ("./data", "126: command not executable"),
        ("exit 128", "the test ended with 128"),
        ("kill -9 $$", "the test ended with 137"),
    ],
)
def test_a_test_that_ends_abnormally_gives_no_verdict(
    farm: Farm, tmp_path: Path, between: str, why: str
) -> None:
    commits = grown(farm.upstream, 5)
    farm.write(commits[0])
    (tmp_path / "data").touch()
    ends = (commits[0], commits[4])
    test = decide(tmp_path, ends, [], f"{between} || exit $?")
    with contextlib.chdir(tmp_path), pytest.raises(UntriedError, match=why) as error:
        farm.ask(*ends, test=test)
    assert "no verdict" in error.value.what
    assert farm.state is not None
    assert [step.verdict for step in farm.state.steps] == ["good", "bad"]
    with contextlib.chdir(tmp_path):
        decide(tmp_path, ends, [], "exit 124")
        outcome = farm.ask()
    assert outcome.first_bad is not None
    assert outcome.first_bad.name == commits[1]


@pytest.mark.usefixtures("swept")
def test_a_bisect_without_progress_leaves_no_state(
    farm: Farm, monkeypatch: pytest.MonkeyPatch
) -> None:
    commits = grown(farm.upstream, 4)
    farm.write(commits[0])
    with pytest.raises(UntriedError):
        farm.ask(commits[0], commits[3], test="exit 134")
    assert farm.state is not None
    assert farm.state.steps == ()
    monkeypatch.setattr(BuildSession, "resolve", nobody)
    with pytest.raises(WorldError):
        farm.ask()
    assert farm.state is not None
    assert farm.state.steps == ()


def nobody(*_: Any) -> None:
    raise WorldError("Docker does not answer")


def test_a_wrong_commit_to_skip_is_refused_before_any_build(farm: Farm) -> None:
    commits = grown(farm.upstream, 4)
    farm.write(commits[0])
    for wrong in (commits[3], commits[0], "0" * 9):
        with pytest.raises(QuestionError, match="names no commit between the ends"):
            farm.ask(commits[0], commits[3], skip=(commits[1], wrong))
        assert not farm.kept.exists()


def test_a_bisect_is_forgotten_also_where_its_recipe_is_gone(
    farm: Farm, swept: list[Trace]
) -> None:
    commits = grown(farm.upstream, 5)
    farm.write(commits[0])
    with pytest.raises(UntriedError):
        farm.ask(commits[0], commits[4], test="exit 134", trust_ends=True)
    state = farm.state
    assert state is not None
    assert state.trace is not None
    (farm.catalog / "recipes" / "eng-1.toml").unlink()
    for name in ("eng-2", "../bisect/eng-1"):
        with pytest.raises(RecipeError, match="no recipe is named"):
            bisect.reset(build_session(root=farm.catalog), name)
    swept.clear()
    bisect.reset(build_session(root=farm.catalog), "eng-1")
    assert swept == [state.trace]
    assert not farm.kept.exists()


def stopped(command: str, folder: Path) -> None:
    """Start a test in a group of its own, and stop it when it says that it is ready."""
    process = subprocess.Popen(["sh", "-c", command], cwd=folder, start_new_session=True)
    with process:
        while not (folder / "ready").exists():
            time.sleep(0.02)
        evaluate._stop(process)


def test_the_processes_of_a_test_are_stopped_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(evaluate, "GRACE", 2.0)
    stopped(
        "sh -c 'trap \"\" TERM; echo $$ >deaf; >ready; sleep 60; sleep 60' & sleep 60", tmp_path
    )
    status = Path("/proc") / (tmp_path / "deaf").read_text().strip() / "status"
    until = time.monotonic() + 10
    while status.exists() and "zombie" not in status.read_text():
        assert time.monotonic() < until, "it lives on"
        time.sleep(0.02)
    # What heeds the signal has its time, also where the shell that leads has none.
    (tmp_path / "ready").unlink()
    tidy = "trap 'sleep 0.5; >tidied; exit' TERM; >ready; while :; do sleep 0.05; done"
    (tmp_path / "tidy").write_text(tidy)
    stopped("sh tidy & sleep 60", tmp_path)
    assert (tmp_path / "tidied").exists()
