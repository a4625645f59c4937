"""What the patch doctor must not take for merged: twins, reverts, merges that bring nothing."""

from __future__ import annotations

import tomllib
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from builder.core.errors import FetchError
from builder.core.settings import Settings
from builder.recipes.edit import NamedCommit
from builder.upstream import update
from builder.upstream.patches import PIN, SourceSession, diagnose, on_pin
from builder.upstream.track import Ends, merged_by
from support import catalogs, faults
from support.patch_wards import RECIPE, Ward, brought, functions

NAMES = ("alpha", "beta", "gamma")
BEFORE = functions(*NAMES)
AFTER = functions(*NAMES, beta="2")
TOUCHED = BEFORE.replace("s->beta == 0", "s->beta <= 0")


def guarded(text: str, name: str) -> str:
    head = f"int {name}(struct state * s) {{\n"
    return text.replace(head, f"{head}    if (s == NULL) return -1;\n")


def started(ward: Ward) -> tuple[str, str]:
    """A pull request that makes ``AFTER`` of ``BEFORE``, and main that went on beside it."""
    base = ward.upstream.commit("one", **{"a.c": BEFORE})
    head = ward.upstream.pull(6, {"a.c": AFTER}, base=base)
    ward.upstream.commit("beside", **{"z.c": "z\n"})
    return base, head


def merge(ward: Ward, head: str, *options: str) -> None:
    ward.upstream.git("merge", "--quiet", "--no-ff", *options, "-m", "merge it", head)


def revert(ward: Ward, *options: str) -> None:
    ward.upstream.git("revert", "--no-edit", *options, "HEAD")


# The same lines in another function


def test_the_same_subject_and_lines_in_another_function_are_not_the_patch(ward: Ward) -> None:
    up = ward.upstream
    base = up.commit("one", **{"a.c": BEFORE})
    ward.side(base, "side")
    head = up.commit("Add a null check", **{"a.c": guarded(BEFORE, "beta")})
    up.git("update-ref", "refs/pull/6/head", head)
    ward.main()
    up.commit("beside", **{"z.c": "z\n"})
    up.commit("Add a null check", **{"a.c": guarded(BEFORE, "alpha")})
    for patch in (ward.pull(base, head), ward.pick(base, head)):
        assert ward.on_main(base, patch).state == "applies"


def test_the_same_lines_brought_elsewhere_leave_a_conflict_one(ward: Ward) -> None:
    up = ward.upstream
    base = up.commit("one", **{"a.c": BEFORE})
    head = up.pull(6, {"a.c": guarded(BEFORE, "beta")}, base=base)
    up.commit("guard alpha", **{"a.c": guarded(BEFORE, "alpha")})
    up.commit("beta compares", **{"a.c": guarded(TOUCHED, "alpha")})
    bare = ward.file(up.raw("diff", base, head))
    for patch in (ward.pull(base, head), bare):
        assert ward.on_main(base, patch).state == "conflicts"


def test_the_same_lines_removed_elsewhere_leave_a_conflict_one(ward: Ward) -> None:
    up = ward.upstream
    locked = "    lock(s);\n    s->{}"
    one = BEFORE
    for name in NAMES:
        one = one.replace(f"    s->{name} +=", f"{locked.format(name)} +=")
    base = up.commit("one", **{"a.c": one})
    head = up.pull(6, {"a.c": one.replace(locked.format("beta"), "    s->beta")}, base=base)
    two = one.replace(locked.format("alpha"), "    s->alpha")
    up.commit("no lock in alpha", **{"a.c": two})
    up.commit("beta is 3", **{"a.c": two.replace("s->beta += 1", "s->beta += 3")})
    assert ward.on_main(base, ward.pull(base, head)).state == "conflicts"


def test_a_squash_at_its_own_place_is_upstream_beside_twins(ward: Ward) -> None:
    up = ward.upstream
    base = up.commit("one", **{"a.c": BEFORE})
    head = up.pull(6, {"a.c": guarded(BEFORE, "beta")}, base=base)
    moved = functions("omega", "alpha", "beta", "gamma")
    up.commit("guard alpha", **{"a.c": guarded(moved, "alpha")})
    both = guarded(guarded(moved, "alpha"), "beta")
    up.commit("guard beta", **{"a.c": both})
    up.commit("beta compares", **{"a.c": both.replace("s->beta == 0", "s->beta <= 0")})
    finding = ward.on_main(base, ward.pull(base, head))
    assert finding.state == "upstream"
    assert brought(finding) == "guard beta"


# Taken back, and brought again


@pytest.mark.parametrize("how", ["merge", "squash"])
def test_what_was_reverted_and_then_touched_conflicts(ward: Ward, how: str) -> None:
    base, head = started(ward)
    if how == "merge":
        merge(ward, head)
        revert(ward, "-m", "1")
    else:
        ward.upstream.commit("Mend (#6)", **{"a.c": AFTER})
        revert(ward)
    ward.upstream.commit("touch", **{"a.c": TOUCHED})
    finding = ward.on_main(base, ward.pull(base, head))
    assert finding.state == "conflicts"
    assert "and reverted it with" in finding.details[-1]


def test_a_night_keeps_a_patch_that_upstream_reverted(ward: Ward, catalog: Path) -> None:
    base, head = started(ward)
    ward.upstream.commit("Mend (#6)", **{"a.c": AFTER})
    revert(ward)
    ward.upstream.commit("touch", **{"a.c": TOUCHED})
    text = RECIPE.format(url=ward.upstream.url, pin=base, after=base, to=head)
    (catalog / "recipes" / "eng-1.toml").write_text(text)
    found = catalogs.load(catalog)
    target = NamedCommit("main", ward.upstream.head(), "branch")
    frozen = update.at_commit(found, found.engine("eng-1"), target, lambda: 4, "nightly-x")
    session = SourceSession(found, Settings(cache_dir=ward.cache), ward.context)
    lean, unfit = update.fitted(frozen, session)
    assert [finding.state for finding in unfit] == ["conflicts"]
    assert lean.dropped == ()
    assert len(tomllib.loads(lean.entry.text)["patch"]) == 1


def merged_now(ward: Ward, base: str, head: str) -> str | None:
    repositories, up = ward.context.repositories, ward.upstream
    return merged_by(repositories, up.url, 6, Ends(base, head, ""), of=up.url, commit=up.head())


@pytest.mark.parametrize("how", ["merge", "squash"])
@pytest.mark.parametrize("reverts", [1, 2, 3, 4])
def test_the_last_revert_counts(ward: Ward, how: str, reverts: int) -> None:
    base, head = started(ward)
    if how == "merge":
        merge(ward, head)
    else:
        ward.upstream.commit("Mend (#6)", **{"a.c": AFTER})
    for number in range(reverts):
        revert(ward, *(("-m", "1") if how == "merge" and not number else ()))
    there = reverts % 2 == 0
    assert bool(merged_now(ward, base, head)) == there
    assert ward.on_main(base, ward.pull(base, head)).state == ("upstream" if there else "applies")


def test_what_was_brought_again_is_not_applied_to_a_copy(ward: Ward) -> None:
    base, head = started(ward)
    merge(ward, head)
    revert(ward, "-m", "1")
    revert(ward)
    copied = AFTER.replace("beta += 2", "beta += two") + functions("omega") + BEFORE
    ward.upstream.commit("a copy of before", **{"a.c": copied})
    finding = ward.on_main(base, ward.pull(base, head))
    assert finding.state == "doubtful"
    assert finding.details[-1].endswith("but the tree lacks its lines")


# In the history, and not in the files


@pytest.mark.parametrize("touched", [False, True])
def test_a_merge_that_kept_our_side_does_not_have_it(ward: Ward, touched: bool) -> None:
    base, head = started(ward)
    merge(ward, head, "-s", "ours")
    if touched:
        ward.upstream.commit("touch", **{"a.c": TOUCHED})
    finding = ward.on_main(base, ward.pull(base, head))
    assert finding.state == ("conflicts" if touched else "applies")
    assert finding.details[-1].endswith("but the tree lacks its lines")
    assert merged_now(ward, base, head) is None


@pytest.mark.parametrize("touched", [False, True])
def test_an_old_function_that_came_back_does_not_have_it(ward: Ward, touched: bool) -> None:
    base, head = started(ward)
    merge(ward, head)
    ward.upstream.commit("rework", **{"a.c": functions("alpha", "gamma")})
    ward.upstream.commit("back to the old", **{"a.c": TOUCHED if touched else BEFORE})
    finding = ward.on_main(base, ward.pull(base, head))
    assert finding.state == ("conflicts" if touched else "applies")
    assert finding.details[-1].endswith("but the tree lacks its lines")


# Under another name


@pytest.mark.parametrize("names", [("b.c",), ("b.c", "src/c.c")])
def test_a_file_that_was_renamed_is_not_absent(ward: Ward, names: tuple[str, ...]) -> None:
    base, head = started(ward)
    (ward.upstream.folder / "src").mkdir()
    for old, new in pairwise(("a.c", *names)):
        ward.upstream.git("mv", old, new)
        ward.upstream.record(f"it is {new} now")
    finding = ward.on_main(base, ward.pull(base, head))
    assert finding.state == "conflicts"
    assert f"its lines moved to {names[-1]}" in finding.details
    assert [name.split(" ", 2)[2] for name in finding.commits] == [
        f"it is {name} now" for name in names
    ]


def test_whether_a_patch_came_under_another_name_is_unknown(ward: Ward) -> None:
    base, head = started(ward)
    ward.upstream.git("mv", "a.c", "b.c")
    ward.upstream.commit("rename, and touch gamma", **{"b.c": functions(*NAMES, gamma="3")})
    ward.upstream.commit("Mend (#6)", **{"b.c": functions(*NAMES, beta="2", gamma="3")})
    finding = ward.on_main(base, ward.pull(base, head))
    assert finding.state == "conflicts"
    assert "its lines moved to b.c" in finding.details


# The recipe's own patches, and pull requests that are gone


def test_a_patch_that_an_earlier_one_makes_is_not_upstreams(ward: Ward) -> None:
    up = ward.upstream
    pin = up.commit("one", **{"a.c": BEFORE})
    up.commit("two", **{"a.c": AFTER})
    text = up.raw("diff", pin, up.head())
    up.git("revert", "--no-edit", "HEAD")
    case = ward.case(pin, ward.file(text, "a.patch"), ward.file(text, "b.patch"))
    first, second = [each for each in diagnose(case) if each.target == PIN]
    assert (first.state, second.state) == ("applies", "conflicts")
    assert second.details[0] == "your earlier patch file a.patch makes this change already"
    assert second.commits == ()


@pytest.mark.parametrize("left", ["a new head", "nothing", "no repository"])
def test_a_pull_request_that_is_gone_names_what_to_do(ward: Ward, left: str) -> None:
    up = ward.upstream
    up.git("config", "uploadpack.allowAnySHA1InWant", "true")
    base = up.commit("one", **{"a.c": BEFORE})
    head = up.pull(6, {"a.c": AFTER})
    new = up.pull(6, {"a.c": TOUCHED})
    if left != "a new head":
        up.git("update-ref", "-d", "refs/pull/6/head")
    up.git("reflog", "expire", "--expire=now", "--all")
    up.git("gc", "--quiet", "--prune=now")
    url = up.url
    planned = ward.pull(base, head)
    if left == "no repository":
        planned = replace(planned, url=f"{url}-gone")
    (found,) = on_pin(ward.case(base, planned))
    told = "\n".join(found.details)
    assert found.state == "broken"
    assert f"no longer has {head[:12]}" in told
    assert "to a repository of yours: git = URL" in told
    command = "`builder patch add engine-1 --pull 6`"
    assert (command in told and f"is {new[:12]} now" in told) == (left == "a new head")


def test_a_repository_that_cannot_be_read_is_not_a_broken_patch(
    ward: Ward, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A certificate that is not trusted says nothing about a commit."""
    up = ward.upstream
    base = up.commit("one", **{"a.c": BEFORE})
    handler, _ = faults.with_tls("127.0.0.1", faults.cut)
    with faults.serving(handler) as (port, _):
        monkeypatch.setenv("NO_PROXY", "127.0.0.1")
        planned = replace(ward.pull(base, "1" * 40), url=f"https://127.0.0.1:{port}/x")
        with pytest.raises(FetchError, match="its TLS certificate is not trusted"):
            on_pin(ward.case(base, planned))
