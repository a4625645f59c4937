"""Bisecting without an engine: git's part on real repositories, the state, and what is refused."""

from __future__ import annotations

import contextlib
import json
import subprocess
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from builder.bisect import evaluate
from builder.bisect import run as bisect_run
from builder.bisect import state as bisect_state
from builder.bisect.ask import Asked
from builder.bisect.run import Options, Outcome
from builder.bisect.state import End, Evaluation, Question, QuestionError, State, Step, Trace
from builder.cli.console import BuildProgress
from builder.cli.options import build_session
from builder.errors import (
    BuilderError,
    BusyError,
    FetchError,
    GoneError,
    RecipeError,
    UntriedError,
    WorldError,
)
from builder.images.build import BuildLog
from builder.images.session import BuildSession
from builder.tools.files import named_lock
from builder.tools.git.bisection import Bisection, Commit, described, roots_of
from builder.tools.git.repositories import Repositories
from support.commands import Builder
from support.overlaid import write_catalog
from support.upstreams import Upstream, numbered

RECIPE = """\
engine  = "eng"
version = "1"
summary = "an engine"
license = "MIT"
family  = "llama-cpp"
base    = "cuda-13.0"
{source}
[cuda]
arch = ["120"]

[llama]
build_number = 1
build_commit = "0123456"

[[cmake]]
targets = ["llama-server"]
{patches}
[image]
repository = "eng"
tags       = ["1"]

[[probe]]
option = "--x"
"""


@pytest.fixture
def upstream(tmp_path: Path) -> Upstream:
    return Upstream(tmp_path / "eng")


def grown(upstream: Upstream, count: int) -> list[str]:
    """Commits that each change a file."""
    return [upstream.commit(f"change {n}", **{"a.c": f"{n}\n"}) for n in range(1, count + 1)]


@pytest.fixture
def mirrored(upstream: Upstream, tmp_path: Path) -> Callable[..., Repositories]:
    """Mirrors that have the history of some commits, and no contents."""

    def mirror(*commits: str) -> Repositories:
        (tmp_path / "work").mkdir()
        found = Repositories(tmp_path / "cache", tmp_path / "work", lambda _: None)
        found.walk(upstream.url, *commits)
        blobs = upstream.git("rev-list", "--objects", "--filter=object:type=blob", commits[0])
        contents = {line.split()[0] for line in blobs.splitlines() if " a.c" in line}
        assert contents
        assert set(found.scratch.lacks(contents)) == contents
        return found

    return mirror


# git's part


def test_every_first_bad_commit_is_found_without_contents(
    upstream: Upstream, mirrored: Callable[..., Repositories]
) -> None:
    commits = grown(upstream, 11)
    scratch = mirrored(commits[0], commits[-1]).scratch
    for first_bad in range(1, 11):
        found = Bisection(scratch, [commits[0]], commits[-1])
        asked = []
        while found.open():
            asked.append(found.next)
            found.mark("good" if commits.index(found.next) < first_bad else "bad", found.next)
        assert found.candidates() == [commits[first_bad]]
        assert len(asked) == len(set(asked)) <= 4
        assert all(commit in found.log for commit in asked)


def test_skipped_commits_are_gone_around_or_stay_candidates(
    upstream: Upstream, mirrored: Callable[..., Repositories]
) -> None:
    commits = grown(upstream, 12)
    scratch = mirrored(commits[0], commits[-1]).scratch
    cannot = {commits[5], commits[6]}

    def looked_for(first_bad: int) -> list[str]:
        found = Bisection(scratch, [commits[0]], commits[-1])
        while found.open():
            number = commits.index(found.next)
            word = "good" if number < first_bad else "bad"
            found.mark("skip" if found.next in cannot else word, found.next)
        return found.candidates()

    assert looked_for(9) == [commits[9]]
    assert looked_for(3) == [commits[3]]
    # Whether one of the two is the first bad one, or the good one behind them, nobody can tell.
    assert looked_for(6) == looked_for(7) == commits[5:8]


def test_the_first_parent_alone_is_followed(
    upstream: Upstream, mirrored: Callable[..., Repositories]
) -> None:
    good = upstream.commit("one", **{"a.c": "1\n"})
    upstream.git("checkout", "--quiet", "-b", "side")
    inside = [upstream.commit(f"side {n}", **{"b.c": f"{n}\n"}) for n in range(4)]
    upstream.git("checkout", "--quiet", "main")
    upstream.commit("two", **{"a.c": "2\n"})
    upstream.git("merge", "--quiet", "--no-ff", "--message", "merge side", "side")
    merge, bad = upstream.head(), upstream.commit("three", **{"a.c": "3\n"})
    scratch = mirrored(good, bad).scratch
    whole = Bisection(scratch, [good], bad)
    assert set(inside) < set(whole.candidates())
    found = Bisection(scratch, [good], bad, first_parent=True)
    while found.open():
        assert found.next not in inside
        found.mark("bad" if found.next == merge else "good", found.next)
    assert found.candidates() == [merge]


def test_where_two_histories_part(
    upstream: Upstream, mirrored: Callable[..., Repositories]
) -> None:
    base = upstream.commit("one", **{"a.c": "1\n"})
    upstream.git("checkout", "--quiet", "-b", "release")
    good = upstream.commit("release", **{"b.c": "1\n"})
    upstream.git("checkout", "--quiet", "main")
    later = grown(upstream, 6)
    bad = later[-1]
    upstream.git("checkout", "--quiet", "--orphan", "other")
    other = upstream.record("nothing in common")
    scratch = mirrored(bad, good, other).scratch
    assert roots_of(scratch, good, bad) == [base]
    assert roots_of(scratch, base, bad) == [base]
    assert roots_of(scratch, other, bad) == []
    found = Bisection(scratch, [good, base], bad)
    while found.open():
        found.mark("bad" if later.index(found.next) >= 2 else "good", found.next)
    assert found.candidates() == [later[2]]


def test_a_commit_tells_nothing_that_a_terminal_obeys(
    upstream: Upstream, mirrored: Callable[..., Repositories]
) -> None:
    first = upstream.commit("one", **{"a.c": "1\n"})
    second = upstream.commit("clear \x1b[2J \N{GREEK SMALL LETTER MU}", **{"a.c": "2\n"})
    scratch = mirrored(first, second).scratch
    assert described(scratch, [second, first]) == [
        Commit(second, "2023-11-14", "T", "clear ?[2J \N{GREEK SMALL LETTER MU}"),
        Commit(first, "2023-11-14", "T", "one"),
    ]


# What is kept

QUESTION = Question(
    "eng-1", End("v1", "a" * 40), End("main", "b" * 40), "./x", "/d", "bad", True, "s"
)
STEP = Step(Commit("c" * 40, "2026-01-02", "T", "x"), Evaluation("skip", "why", True, 1.5, "/log"))
TRACE = Trace("d" * 40, ("eng:bisect-1",), ("eng:other",))


def test_a_state_comes_back_as_it_went(tmp_path: Path) -> None:
    assert bisect_state.read(tmp_path, "eng-1") is None
    state = State(QUESTION, (STEP,), TRACE)
    bisect_state.write(tmp_path, state)
    assert bisect_state.read(tmp_path, "eng-1") == state
    bisect_state.write(tmp_path, State(QUESTION))
    assert bisect_state.read(tmp_path, "eng-1") == State(QUESTION)
    assert [file.name for file in (tmp_path / "bisect").iterdir()] == ["eng-1.json"]
    bisect_state.forget(tmp_path, "eng-1")
    assert bisect_state.read(tmp_path, "eng-1") is None


@pytest.mark.parametrize("damage", ["", "{", "[]", "null", '{"question": {}}'])
def test_a_damaged_state_is_told(tmp_path: Path, damage: str) -> None:
    bisect_state.write(tmp_path, State(QUESTION))
    bisect_state.path_of(tmp_path, "eng-1").write_text(damage)
    with pytest.raises(QuestionError, match="cannot be read"):
        bisect_state.read(tmp_path, "eng-1")


# The command


class Farm:
    """A catalog with one engine, and the command on it; no engine answers."""

    def __init__(self, catalog: Path, upstream: Upstream, builder: Builder) -> None:
        self.catalog = catalog
        self.upstream = upstream
        self.builder = builder
        self.kept = catalog.parent / "state" / "bisect" / "eng-1.json"
        self.said: list[str] = []

    def write(self, pin: str, patches: str = "", source: str = "") -> None:
        source = source or f'[source]\ngit = "{self.upstream.url}"\ncommit = "{pin}"\n'
        text = RECIPE.format(source=source, patches=patches)
        (self.catalog / "recipes" / "eng-1.toml").write_text(text)

    def ask(self, good: str | None = None, bad: str | None = None, **more: Any) -> Outcome:
        """Bisect in this process."""
        asked = Asked(good, bad, **{name: more.pop(name) for name in WAY & more.keys()})
        self.said.clear()
        builds = build_session(self.catalog, progress=Told(self.said))
        return bisect_run.bisect(builds, "eng", asked, Options(**more))

    @property
    def state(self) -> State | None:
        return bisect_state.read(self.kept.parents[1], "eng-1")

    @property
    def told(self) -> str:
        return "\n".join(self.said)

    def run(self, *arguments: str, status: int = 0) -> subprocess.CompletedProcess[str]:
        """Bisect as a user does."""
        done = self.builder("bisect", "eng", *arguments, "--catalog", self.catalog)
        assert done.returncode == status, done.stderr + done.stdout
        assert "Traceback" not in done.stderr
        return done


class Told(BuildProgress):
    """A reporter that keeps the lines."""

    def __init__(self, lines: list[str]) -> None:
        super().__init__()
        self.log = lines.append  # type: ignore[method-assign]


WAY = {"test", "build_fails", "first_parent"}


@pytest.fixture
def farm(
    catalog: Path,
    upstream: Upstream,
    tmp_path: Path,
    builder: Builder,
    monkeypatch: pytest.MonkeyPatch,
) -> Farm:
    monkeypatch.setenv("BUILDER_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/nobody.sock")
    return Farm(catalog, upstream, builder)


def test_ends_between_which_there_is_nothing(farm: Farm) -> None:
    commits = grown(farm.upstream, 3)
    farm.write(commits[0])
    farm.upstream.git("tag", "v1", commits[0])
    farm.upstream.git("checkout", "--quiet", "--orphan", "other")
    farm.upstream.record("nothing in common")

    def refused(good: str, bad: str, kind: type[BuilderError] = QuestionError) -> str:
        with pytest.raises(kind) as error:
            farm.ask(good, bad)
        assert not farm.kept.exists()
        return str(error.value)

    assert f"v1 ({commits[0][:9]}) and {commits[0][:9]} are the same" in refused("v1", commits[0])
    said = refused("main", "v1")
    assert f"the bad end, v1 ({commits[0][:9]}), is older than the good one, main" in said
    assert "have no common history" in refused("v1", "other")
    assert "no known commit nowhere" in refused("v1", "nowhere", FetchError)
    assert "of a commit give all 40 digits" in refused("0" * 9, "v1", FetchError)
    assert "as git-check-ref-format allows it" in refused("--upload-pack=x", "v1", RecipeError)
    assert f"of {farm.upstream.url}" in refused("v1", "0" * 40, GoneError)
    done = farm.run("--good", "v1", "--bad", "v1", status=2)
    assert f"builder: v1 ({commits[0][:9]}) and v1 ({commits[0][:9]}) are the same" in done.stderr


def test_what_cannot_be_bisected(farm: Farm) -> None:
    done = farm.run("--good", "a", "--bad", "b", status=3)
    assert "no recipe is named eng" in done.stderr
    farm.write("", source='[source]\npath = "engine"\n')
    with pytest.raises(RecipeError, match="the source of eng-1 is no git repository"):
        farm.ask("a", "b")
    farm.write(grown(farm.upstream, 1)[0])
    source = f'[source]\ngit = "{farm.upstream.url}"\ncommit = "{farm.upstream.head()}"\n'
    write_catalog(farm.catalog, "", "published/engine:1", source=source)
    with pytest.raises(RecipeError, match="is in its base, stand-in, at every commit"):
        bisect_run.bisect(build_session(farm.catalog), "overlaid", Asked("a", "b"), Options())
    for ends in ([], ["main"]):
        with pytest.raises(QuestionError, match="no bisect of eng-1 is under way"):
            farm.ask(*ends)
    done = farm.run("--status", status=2)
    assert "no bisect of eng-1 is under way" in done.stderr


def test_neighbours_need_no_build_where_the_ends_are_trusted(farm: Farm) -> None:
    commits = grown(farm.upstream, 2)
    farm.write(commits[0])
    done = farm.run("--good", commits[0], "--bad", "main", "--trust-ends", "--json")
    found = json.loads(done.stdout)
    assert (found["state"], found["builds"], found["steps"]) == ("found", 0, [])
    about = {"date": "2023-11-14", "author": "T", "subject": "change 2"}
    assert found["first_bad"] == {"name": commits[1], **about}
    assert found["bad"] == {"name": "main", "commit": commits[1]}
    assert not farm.kept.exists()


def test_where_only_skipped_commits_are_left_all_of_them_are_named(farm: Farm) -> None:
    commits = grown(farm.upstream, 4)
    farm.write(commits[0])
    for wrong in (commits[3], commits[0], commits[1][:6], "0" * 9):
        with pytest.raises(QuestionError, match="is none of the commits between the ends"):
            farm.ask(commits[0], commits[3], trust_ends=True, skip=(wrong,))
    ends = ["--good", commits[0], "--bad", commits[3], "--trust-ends"]
    done = farm.run(*ends, "--skip", commits[1][:7], "--skip", commits[2], "--json", status=8)
    found = json.loads(done.stdout)
    assert (found["state"], found["first_bad"]) == ("undecided", None)
    assert [commit["name"] for commit in found["candidates"]] == commits[1:]
    assert [step["why"] for step in found["steps"]] == ["left out by --skip"] * 2
    assert "any of 3 commits may be the first bad one" in done.stderr
    assert f"{commits[2][:9]} change 3" in done.stderr
    assert not farm.kept.exists()


def test_a_patch_that_does_not_fit_skips_the_commit(farm: Farm) -> None:
    upstream = farm.upstream
    first = upstream.commit("one", **{"a.c": numbered(40), "b.c": "b\n"})
    head = upstream.pull(6, {"a.c": numbered(40, line_20="twenty")}, base=first)
    other = upstream.commit("other words", **{"a.c": numbered(40, line_19="changed here")})
    last = upstream.commit("beside", **{"b.c": "bb\n"})
    farm.write(first, f'\n[[patch]]\npull = 6\nbase = "{first}"\nhead = "{head}"\nwhy = "so"\n')
    outcome = farm.ask(first, last, trust_ends=True)
    assert [commit.name for commit in outcome.candidates] == [other, last]
    (step,) = outcome.steps
    assert (step.word, step.evaluation.built) == ("skip", False)
    unfit = "pull 6 does not fit (conflicts); a.c, hunk 1: other lines from line 17 on"
    assert step.evaluation.why == unfit
    assert f"{other[:9]} is skipped: pull 6 does not fit" in farm.told
    # Where two histories part must be good; where nobody can tell, that is said.
    upstream.git("checkout", "--quiet", "-b", "release", other)
    good = upstream.commit("release", **{"b.c": "bbb\n"})
    assert farm.ask(good, last, trust_ends=True, restart=True).state == "found"
    assert f"{good[:9]} is no ancestor of {last[:9]}" in farm.told
    assert "what is found may be wrong: it may have been bad before that" in farm.told


def test_what_is_known_stays_where_it_cannot_go_on(farm: Farm) -> None:
    commits = grown(farm.upstream, 9)
    farm.write(commits[0])
    ends = (commits[0], "main")
    done = farm.run(
        *("--good", ends[0], "--bad", "main", "--trust-ends", "--skip", commits[4]), status=4
    )
    assert "the Docker engine does not answer" in done.stderr
    assert "what is known is kept: `builder bisect eng-1` goes on from there" in done.stderr
    known = json.loads(farm.run("--status", "--json").stdout)
    assert (known["state"], known["left"], known["candidates"]) == ("open", 6, [])
    assert f"git bisect skip {commits[4]}" in known["log"]
    # The branch moves on, and what is looked at does not.
    newer = grown(farm.upstream, 1)[0]
    for same in ((), ends, (commits[0], commits[8])):
        with pytest.raises(WorldError, match="the Docker engine does not answer"):
            farm.ask(*same, trust_ends=True, skip=(commits[4][:8],))
        going_on = (
            f"going on between {commits[0][:9]} and main ({commits[8][:9]}): 1 commit evaluated"
        )
        assert going_on in farm.told
    for other, way in (
        ((commits[1], "main"), {}),
        ((commits[0], newer), {}),
        (ends, {"test": "true"}),
        ((), {"test": "true"}),
        (ends, {"build_fails": "bad"}),
        (ends, {"first_parent": True}),
    ):
        with pytest.raises(QuestionError) as error:
            farm.ask(*other, **way)
        assert error.value.what == "another bisect of eng-1 is not at its end"
        between = f"between {commits[0][:9]} and main ({commits[8][:9]}), by the smoke test"
        assert between in error.value.why
    assert "6 commits left, about 3 to try" in farm.run("--status").stdout
    assert farm.ask(commits[6], commits[7], trust_ends=True, restart=True).state == "found"


def test_a_recipe_that_changed_needs_another_bisect(farm: Farm) -> None:
    commits = grown(farm.upstream, 5)
    farm.write(commits[0])
    with pytest.raises(WorldError):
        farm.ask(commits[0], "main")
    assert not farm.kept.exists()  # nothing was evaluated
    with pytest.raises(WorldError):
        farm.ask(commits[0], "main", trust_ends=True, skip=(commits[2],))
    base = farm.catalog / "recipes" / "bases" / "cuda-13.0.toml"
    text = base.read_text()
    base.write_text(text + "# other\n")
    with pytest.raises(QuestionError, match="eng-1, its base or a patch has changed since"):
        farm.ask()
    base.write_text(text)
    with pytest.raises(WorldError):
        farm.ask()
    farm.kept.write_text("{")
    with pytest.raises(QuestionError, match="bisect eng-1 --reset"):
        farm.ask()
    farm.run("--reset")
    assert not farm.kept.exists()


def test_two_at_once(farm: Farm) -> None:
    commits = grown(farm.upstream, 3)
    farm.write(commits[0])
    with named_lock(farm.kept.parent, "the bisect of eng-1"):
        done = farm.run("--good", commits[0], "--bad", "main", status=9)
        assert "another run on this machine is at work on the bisect of eng-1" in done.stderr
        with pytest.raises(BusyError):
            bisect_run.reset(build_session(farm.catalog), "eng", keep=False)
    assert not farm.kept.exists()


# How commits are evaluated


@pytest.fixture
def swept(monkeypatch: pytest.MonkeyPatch) -> list[Trace]:
    """Stands for the engine: every commit is built and verified; the traces that were swept."""
    gone: list[Trace] = []
    monkeypatch.setattr(BuildSession, "resolve", lambda *_: None)
    monkeypatch.setattr(evaluate, "trace", lambda subject: Trace(subject.commit, (), ()))
    monkeypatch.setattr(evaluate, "sweep", gone.append)
    monkeypatch.setattr(
        evaluate, "_smoke_tested", lambda *_: Evaluation("good", "built and verified")
    )
    monkeypatch.setattr(evaluate, "_image", lambda _: "eng:bisect")
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
    # Of the same name, and for another question.
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
    assert f"the test runs in {here}, where the bisect began" in farm.told


@pytest.mark.usefixtures("swept")
def test_a_directory_that_goes_while_it_is_needed(farm: Farm, tmp_path: Path) -> None:
    commits = grown(farm.upstream, 4)
    farm.write(commits[0])
    here = tmp_path / "here"
    here.mkdir()
    with contextlib.chdir(here), pytest.raises(UntriedError, match=f"runs in is gone: {here}"):
        farm.ask(commits[0], commits[3], test=f"mv {here} {here}.away")
    assert farm.state is not None
    assert [step.word for step in farm.state.steps] == ["good"]


@pytest.mark.usefixtures("swept")
@pytest.mark.parametrize(
    ("between", "why"),
    [
        ("exit 126", "the test ended with 126"),
        ("./none", "where it finds no such command"),
        ("./data", "where it may not run a command"),
        ("exit 128", "the test ended with 128"),
        ("kill -9 $$", "the test ended with 137"),
    ],
)
def test_a_test_that_breaks_off_gives_no_verdict(
    farm: Farm, tmp_path: Path, between: str, why: str
) -> None:
    commits = grown(farm.upstream, 5)
    farm.write(commits[0])
    (tmp_path / "data").touch()
    ends = (commits[0], commits[4])
    test = decide(tmp_path, ends, [], f"{between} || exit $?")
    with contextlib.chdir(tmp_path), pytest.raises(UntriedError, match=why) as error:
        farm.ask(*ends, test=test)
    assert "that is no verdict" in error.value.what
    assert farm.state is not None
    assert [step.word for step in farm.state.steps] == ["good", "bad"]
    with contextlib.chdir(tmp_path):
        decide(tmp_path, ends, [], "exit 124")
        outcome = farm.ask()
    assert outcome.first_bad is not None
    assert outcome.first_bad.name == commits[1]


@pytest.mark.parametrize("restarted", [(), ("good",), ("good", "bad")])
def test_what_is_known_is_forgotten_when_the_new_bisect_has_begun(
    farm: Farm,
    tmp_path: Path,
    swept: list[Trace],
    monkeypatch: pytest.MonkeyPatch,
    restarted: tuple[str, ...],
) -> None:
    commits = grown(farm.upstream, 9)
    farm.write(commits[0])
    ends = {"good": commits[0], "bad": commits[8]}
    test = decide(tmp_path, (commits[0], commits[8]), [], "exit 134")
    with contextlib.chdir(tmp_path), pytest.raises(UntriedError):
        farm.ask(**ends, test=test)
    before = farm.state
    assert before is not None
    assert [step.word for step in before.steps] == ["good", "bad"]
    assert before.trace is not None
    # What cannot begin forgets nothing.
    farm.run("--restart", "--good", "v9typo", "--bad", "main", status=5)
    with pytest.raises(QuestionError, match="is none of the commits between"):
        farm.ask(restart=True, skip=(commits[0],))
    with pytest.raises(QuestionError, match="are the same commit"):
        farm.ask(good=commits[8], restart=True)
    assert farm.state == before
    swept.clear()
    with monkeypatch.context() as patched:
        patched.setattr(BuildSession, "resolve", nobody)
        with pytest.raises(WorldError):
            farm.ask(restart=True)
    assert swept == [before.trace]
    assert farm.state == replace(before, trace=None)
    # What is not said is as it was.
    decide(tmp_path, (commits[0], commits[8]), commits[5:])
    both = len(restarted) == len(ends)
    way = {"test": str(tmp_path / "decide")} if both else {}
    outcome = farm.ask(**{name: ends[name] for name in restarted}, **way, restart=True)
    assert outcome.first_bad is not None
    assert outcome.first_bad.name == commits[5]
    assert outcome.question.test == (way["test"] if both else test)
    assert [step.commit.name for step in outcome.steps[:2]] == [commits[0], commits[8]]
    assert "going on" not in farm.told


@pytest.mark.usefixtures("swept")
def test_a_question_of_which_nothing_is_known_is_in_nobodys_way(
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
        farm.ask(restart=True)
    assert not farm.kept.exists()


def nobody(*_: Any) -> None:
    raise WorldError("the Docker engine does not answer")


def test_a_wrong_commit_to_skip_is_told_before_anything_is_built(farm: Farm) -> None:
    commits = grown(farm.upstream, 4)
    farm.write(commits[0])
    for wrong in (commits[3], commits[0], "0" * 9):
        with pytest.raises(QuestionError, match="is none of the commits between the ends"):
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
            bisect_run.reset(build_session(farm.catalog), name, keep=False)
    swept.clear()
    bisect_run.reset(build_session(farm.catalog), "eng-1", keep=False)
    assert swept == [state.trace]
    assert not farm.kept.exists()


def stopped(command: str, folder: Path) -> None:
    """Start a test in a group of its own, and stop it when it says that it is ready."""
    process = subprocess.Popen(["sh", "-c", command], cwd=folder, start_new_session=True)
    with process:
        while not (folder / "ready").exists():
            time.sleep(0.02)
        evaluate._stop(process)


def test_what_a_test_started_is_stopped_with_it(
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


# As gcc 14, nvcc 13, apt 3.0 and BuildKit 0.28 print it.
FAILED = '#14 ERROR: process "cmake --build /build" did not complete successfully: exit code: 1'
KILLED = "#14 2.399 g++: fatal error: Killed signal terminated program cc1plus"
LACKING = """\
#9 0.097 W: Failed to fetch http://debian.invalid/debian/dists/trixie/InRelease  {}
#9 0.097 W: Some index files failed to download. They have been ignored, or old ones used instead.
#9 0.115 E: Unable to locate package nano"""
OF_APT = '#9 ERROR: process "sh -euc apt-get" did not complete successfully: exit code: 100'
MEMORY, AGAIN = "ran out of memory", "archive did not answer: try again"


@pytest.mark.parametrize(
    ("lines", "hint"),
    [
        ([KILLED, FAILED], MEMORY),
        (["#14 9.1 collect2: fatal error: ld terminated with signal 9 [Killed]", FAILED], MEMORY),
        (["#14 9.1 nvcc error   : 'cicc' died due to signal 9 (Kill signal)", FAILED], MEMORY),
        (["#14 1.860 virtual memory exhausted: Cannot allocate memory", FAILED], MEMORY),
        (["#14 0.489 Killed", FAILED.replace(": 1", ": 137")], MEMORY),
        ([FAILED.replace("exit code: 1", "cannot allocate memory")], MEMORY),
        ([LACKING.format("503  Service Unavailable [IP: 127.0.0.1 80]"), OF_APT], AGAIN),
        ([LACKING.format("Temporary failure resolving 'debian.invalid'"), OF_APT], AGAIN),
        (
            [
                "#9 0.2 E: Failed to fetch http://debian.invalid/debian/pool/n/nano_8.4-1_amd64.deb"
                "  503  Service Unavailable [IP: 127.0.0.1 80]",
                OF_APT,
            ],
            AGAIN,
        ),
        # Another step got over it, or was not the one that failed.
        ([LACKING.format("503  Service Unavailable"), "#9 DONE 3.1s", FAILED], ""),
        (
            ["#14 ERROR: importing cache manifest: not found", KILLED.replace("14", "15"), FAILED],
            "",
        ),
        # The commit's own: its build fetches something, or it crashes the compiler.
        (["#14 0.4 fatal: unable to access: Could not resolve host: github.com", FAILED], ""),
        (["#14 0.4 ConnectionError: Temporary failure in name resolution", FAILED], ""),
        (["#14 3.1 g++: internal compiler error: Segmentation fault signal 11", FAILED], ""),
        (["#14 3.1 a.c:7: error: exit code: 137 is undeclared", FAILED], ""),
    ],
)
def test_a_build_that_breaks_down_is_told_from_one_that_fails(
    tmp_path: Path, lines: list[str], hint: str
) -> None:
    log = BuildLog(tmp_path / "log")
    for line in "\n".join(lines).splitlines():
        log.line(line)
    assert hint in log.breakdown
    assert bool(log.breakdown) == bool(hint)
    # Another run counts its steps anew.
    log.begin()
    log.line(FAILED)
    log.line(OF_APT)
    assert not log.breakdown
