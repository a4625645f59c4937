"""Bisects without an engine: their ends, their state, and what is refused."""

from __future__ import annotations

import json

import pytest

from builder.cli.session import build_session
from builder.core.errors import (
    BuilderError,
    BusyError,
    FetchError,
    GoneError,
    RecipeError,
    WorldError,
)
from builder.core.files import named_lock
from builder.upstream import bisect
from builder.upstream.bisect import BisectRequest, QuestionError
from support import faults
from support.bisects import Farm, grown
from support.overlaid import write_catalog
from support.upstreams import numbered


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
    message = refused("main", "v1")
    assert f"the bad end, v1 ({commits[0][:9]}), is older than the good one, main" in message
    assert "have no common history" in refused("v1", "other")
    assert "no known commit nowhere" in refused("v1", "nowhere", FetchError)
    assert "give all 40 digits of a commit" in refused("0" * 9, "v1", FetchError)
    assert "that git allows" in refused("--upload-pack=x", "v1", RecipeError)
    assert f"of {farm.upstream.url}" in refused("v1", "0" * 40, GoneError)
    done = farm.run("--good", "v1", "--bad", "v1", status=2)
    assert f"builder: v1 ({commits[0][:9]}) and v1 ({commits[0][:9]}) are the same" in done.stderr


def test_recipes_that_cannot_be_bisected_are_refused(farm: Farm) -> None:
    done = farm.run("--good", "a", "--bad", "b", status=3)
    assert "no recipe is named eng" in done.stderr
    farm.write("", source='[source]\npath = "engine"\n')
    with pytest.raises(RecipeError, match="the source of eng-1 is not a git repository"):
        farm.ask("a", "b")
    farm.write(grown(farm.upstream, 1)[0])
    source = f'[source]\ngit = "{farm.upstream.url}"\ncommit = "{farm.upstream.head()}"\n'
    write_catalog(farm.catalog, "", "published/engine:1", source=source)
    with pytest.raises(RecipeError, match="comes from its base, stand-in"):
        bisect.bisect(build_session(root=farm.catalog), "overlaid", BisectRequest("a", "b"))
    for ends in ([], ["main"]):
        with pytest.raises(QuestionError, match="there is no unfinished bisect of eng-1"):
            farm.ask(*ends)
    done = farm.run("--status", status=2)
    assert "there is no unfinished bisect of eng-1" in done.stderr


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
        with pytest.raises(QuestionError, match="names no commit between the ends"):
            farm.ask(commits[0], commits[3], trust_ends=True, skip=(wrong,))
    ends = ["--good", commits[0], "--bad", commits[3], "--trust-ends"]
    done = farm.run(*ends, "--skip", commits[1][:7], "--skip", commits[2], "--json", status=8)
    found = json.loads(done.stdout)
    assert (found["state"], found["first_bad"]) == ("undecided", None)
    assert [commit["name"] for commit in found["candidates"]] == commits[1:]
    assert [step["why"] for step in found["steps"]] == ["skipped by --skip"] * 2
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
    assert (step.verdict, step.built) == ("skip", False)
    unfit = "pull 6 does not fit (conflicts); a.c, hunk 1: the lines differ, from line 17"
    assert step.why == unfit
    assert f"{other[:9]} is skipped: pull 6 does not fit" in farm.output
    # The merge base must be good; if it is skipped, a warning is logged.
    upstream.git("checkout", "--quiet", "-b", "release", other)
    good = upstream.commit("release", **{"b.c": "bbb\n"})
    farm.run("--reset")
    assert farm.ask(good, last, trust_ends=True).state == "found"
    assert f"{good[:9]} is no ancestor of {last[:9]}" in farm.output
    assert "the answer may be wrong" in farm.output


def test_a_server_that_is_not_trusted_skips_no_commit(farm: Farm) -> None:
    """Skipped, the good commits would be gone from the answer."""
    upstream = farm.upstream
    first = upstream.commit("one", **{"a.c": "1\n"})
    upstream.commit("two", **{"a.c": "2\n"})
    last = upstream.commit("three", **{"a.c": "3\n"})
    handler, _ = faults.with_tls("127.0.0.1", faults.cut)
    with faults.serving(handler) as (port, _):
        pull = f'pull = 6\nbase = "{"1" * 40}"\nhead = "{"2" * 40}"\nwhy = "so"\n'
        farm.write(first, f'\n[[patch]]\n{pull}git = "https://127.0.0.1:{port}/x"\n')
        with pytest.raises(FetchError, match="its TLS certificate is not trusted"):
            farm.ask(first, last, trust_ends=True)
    assert "is skipped" not in farm.output


def test_progress_is_kept_when_a_bisect_cannot_continue(farm: Farm) -> None:
    commits = grown(farm.upstream, 9)
    farm.write(commits[0])
    ends = (commits[0], "main")
    done = farm.run(
        *("--good", ends[0], "--bad", "main", "--trust-ends", "--skip", commits[4]), status=4
    )
    assert "Docker does not answer" in done.stderr
    assert "the progress is kept: `builder bisect eng-1` continues" in done.stderr
    known = json.loads(farm.run("--status", "--json").stdout)
    assert (known["state"], known["left"], known["candidates"]) == ("open", 6, [])
    assert f"git bisect skip {commits[4]}" in known["log"]
    # The branch moves on, and what is looked at does not.
    newer = grown(farm.upstream, 1)[0]
    for same in ((), ends, (commits[0], commits[8])):
        with pytest.raises(WorldError, match="Docker does not answer"):
            farm.ask(*same, trust_ends=True, skip=(commits[4][:8],))
        going_on = (
            f"continuing between {commits[0][:9]} and main ({commits[8][:9]}): 1 commit evaluated"
        )
        assert going_on in farm.output
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
        assert error.value.what == "another bisect of eng-1 is unfinished"
        between = f"between {commits[0][:9]} and main ({commits[8][:9]}), by the smoke test"
        assert between in error.value.why
    assert "6 commits left, about 3 to test" in farm.run("--status").stdout
    farm.run("--reset")
    assert farm.ask(commits[6], commits[7], trust_ends=True).state == "found"


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
            bisect.reset(build_session(root=farm.catalog), "eng")
    assert not farm.kept.exists()
