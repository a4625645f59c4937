"""git bisect on real repositories, with mirrors that have no contents."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from builder.sources.history import Bisection, Commit, described
from builder.sources.mirrors import Repositories
from support.bisects import grown
from support.upstreams import Upstream


@pytest.fixture
def upstream(tmp_path: Path) -> Upstream:
    return Upstream(tmp_path / "eng")


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
        assert set(found.scratch.missing(contents)) == contents
        return found

    return mirror


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
    assert scratch.merge_bases(good, bad) == [base]
    assert scratch.merge_bases(base, bad) == [base]
    assert scratch.merge_bases(other, bad) == []
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
