"""What `patch check` reads in a history: what came in, what went, who changed which lines."""

from __future__ import annotations

from pathlib import Path

import pytest

from builder.core.errors import PatchError
from builder.plan.inputs import PlannedPatch
from builder.recipes.catalog import parse
from builder.recipes.patches import Pick, PickPatch
from builder.recipes.schema import Recipe
from builder.sources.patches import apply_all
from builder.upstream.patches import diagnose
from support.patch_wards import RECIPE, Ward, brought, functions
from support.upstreams import numbered

# Merged


@pytest.mark.parametrize("how", ["merge", "squash", "rebase", "fast-forward"])
def test_what_was_merged_is_upstream_also_where_its_lines_changed_since(
    ward: Ward, how: str
) -> None:
    up = ward.upstream
    base = up.commit("one", **{"a.c": functions("alpha", "beta", "gamma")})
    head = up.pull(
        6,
        {"a.c": functions("alpha", "beta", "gamma", beta="2")},
        {"a.c": functions("alpha", "beta", "gamma", beta="2", gamma="7")},
        base=base,
    )
    if how != "fast-forward":
        up.commit("main goes on", **{"a.c": functions("alpha", "beta", "gamma", alpha="5")})
    merged = functions("alpha", "beta", "gamma", alpha="5", beta="2", gamma="7")
    if how == "merge":
        up.git("merge", "--quiet", "--no-ff", "-m", "merge it", head)
    elif how == "squash":
        up.commit("Mend b and c (#6)", **{"a.c": merged})
    elif how == "rebase":
        up.git("cherry-pick", f"{base}..{head}")
    else:
        up.git("merge", "--quiet", "--ff-only", head)
    by = up.git("log", "-1", "--format=%s")
    up.commit("touched again", **{"a.c": merged.replace("beta += 2", "beta += two")})
    up.commit(
        "and again", **{"a.c": functions("n") + merged.replace("beta += 2", "beta += 2 * two")}
    )
    finding = ward.on_main(base, ward.pull(base, head))
    assert finding.state == "upstream"
    assert brought(finding) == by


def given(ward: Ward, base: str, commits: list[str]) -> list[PlannedPatch]:
    """A change as a pull request, as a diff file, and as a range with other ids."""
    up, after = ward.upstream, base
    for commit in commits:
        after = up.git("commit-tree", f"{commit}^{{tree}}", "-p", after, "-m", "other id")
    text = up.raw("diff", base, commits[-1])
    return [ward.pull(base, commits[-1]), ward.file(text), ward.pick(base, after)]


def test_white_space_and_moved_code_do_not_hide_what_was_merged(ward: Ward) -> None:
    up = ward.upstream
    base = up.commit("one", **{"a.c": functions("alpha", "beta", "gamma", "delta")})
    mended = functions("alpha", "beta", "gamma", "delta", beta="2")
    head = up.pull(6, {"a.c": mended.replace("return -1;\n", "return  -1;\n", 3)}, base=base)
    up.commit("beside", **{"z.c": "z\n"})
    up.git("merge", "--quiet", "--no-ff", "-m", "merge it", head)
    up.commit("beta moves", **{"a.c": functions("alpha", "gamma", "delta", "beta", beta="2")})
    for patch in given(ward, base, [head]):
        assert ward.on_main(base, patch).state == "upstream", patch.name


def test_whether_what_later_work_removes_is_wanted_is_unknown(ward: Ward) -> None:
    up = ward.upstream
    base = up.commit("one", **{"a.c": functions("alpha", "beta")})
    extra = functions("alpha", "beta").replace(
        "    return 0;\n", "    note(s);\n    return 0;\n", 1
    )
    head = up.pull(6, {"a.c": extra}, base=base)
    up.commit("beside", **{"z.c": "z\n"})
    up.git("merge", "--quiet", "--no-ff", "-m", "merge it", head)
    up.commit("no notes, and more", **{"a.c": functions("alpha", "beta", alpha="7")})
    finding = ward.on_main(base, ward.pull(base, head))
    assert finding.state == "conflicts"
    assert finding.details[-1].startswith("upstream introduced it with ")
    assert finding.details[-1].endswith(" merge it, but the tree lacks its lines")


def removed_in_steps(ward: Ward, how: str) -> tuple[str, str]:
    """The base and head of a change that upstream had, and that other work has removed."""
    up, names = ward.upstream, ("alpha", "beta")
    base = up.commit("one", **{"a.c": functions(*names)})
    change = {"a.c": functions("alpha", "guard", "check", "beta")}
    if how == "new file":
        change = {"new.c": functions("guard", "check")}
    head = up.pull(6, change, base=base)
    up.commit("beside", **{"z.c": "z\n"})
    if how == "squash":
        up.commit("Guard and check (#6)", **change)
    else:
        up.git("merge", "--quiet", "--no-ff", "-m", "merge it", head)
    if how == "new file":
        up.commit("no new.c, and more", **{"new.c": None, "a.c": functions(*names, beta="3")})
    elif how == "at once":
        up.commit("no guard; alpha is 5", **{"a.c": functions(*names, alpha="5")})
    else:
        up.commit("no guard", **{"a.c": functions("alpha", "check", "beta")})
        up.commit("no check", **{"a.c": functions(*names)})
    return base, head


@pytest.mark.parametrize("how", ["at once", "step by step", "squash", "new file"])
@pytest.mark.parametrize("touched", [False, True])
def test_what_was_merged_and_is_gone_is_not_upstream(ward: Ward, how: str, touched: bool) -> None:
    base, head = removed_in_steps(ward, how)
    if touched and how == "new file":
        ward.upstream.commit("another new.c", **{"new.c": "int other(void);\n"})
    elif touched:
        now = ward.upstream.git("show", "HEAD:a.c").replace("int beta(", "int beta_of(") + "\n"
        ward.upstream.commit("another beta", **{"a.c": now})
    for patch in (ward.pull(base, head), ward.file(ward.upstream.raw("diff", base, head))):
        finding = ward.on_main(base, patch)
        assert finding.state == ("conflicts" if touched else "applies"), finding.commits


LOW = "    guard_the_state(s, LOW);\n    guard_the_state(s, HIGH);\n"
NOTES = "    note_the_change(s, DELTA);\n    note_the_change(s, OTHER);\n"


def within(text: str, name: str, lines: str) -> str:
    """A file of functions with lines at the start of one."""
    start = f"int {name}(struct state * s) {{\n"
    return text.replace(start, start + lines)


@pytest.mark.parametrize("how", ["a half is reverted", "both halves are removed", "in halves"])
def test_a_change_that_upstream_had_in_halves_is_not_called_upstream(ward: Ward, how: str) -> None:
    """Also where both are there: git has no commit with this change, so a person looks."""
    up = ward.upstream
    one = functions("alpha", "beta", "gamma", "delta")
    both = within(within(one, "alpha", LOW), "delta", NOTES)
    base = up.commit("one", **{"a.c": one})
    head = up.pull(6, {"a.c": both}, base=base)
    if how == "both halves are removed":
        up.commit("both", **{"a.c": both})
        up.commit("no guards", **{"a.c": within(one, "delta", NOTES)})
        up.commit("no notes", **{"a.c": one.replace("delta(struct state * s)", "delta(state *s)")})
    else:
        up.commit("guards", **{"a.c": within(one, "alpha", LOW)})
        up.git("revert", "--no-edit", "HEAD")
        if how == "in halves":
            up.git("revert", "--no-edit", "HEAD")
        there = both if how == "in halves" else within(one, "delta", NOTES)
        up.commit("notes", **{"a.c": there})
    if how == "in halves":
        up.commit("touched", **{"a.c": both.replace("s->delta == 0", "s->delta <= 0")})
    for patch in given(ward, base, [head]):
        finding = ward.on_main(base, patch)
        assert finding.state == "conflicts", finding.commits
        assert finding.commits


def test_a_file_that_a_merged_branch_adds_and_removes_is_found(ward: Ward) -> None:
    up = ward.upstream
    base = up.commit("one", **{"a.c": functions("alpha", "beta")})
    ward.side(base, "side")
    commits = [
        up.commit("notes", **{"n.md": "a plan\nand why\n"}),
        up.commit("mend beta", **{"a.c": functions("alpha", "beta", beta="2")}),
        up.commit("no notes", **{"n.md": None}),
    ]
    ward.main()
    up.commit("beside", **{"z.c": "z\n"})
    up.git("merge", "--quiet", "--no-ff", "-m", "merge it", commits[-1])
    patch = given(ward, base, commits)[-1]
    assert ward.on_main(base, patch).state == "upstream"


@pytest.mark.parametrize("how", ["merge", "squash", "rebase"])
def test_several_commits_in_one_diff_are_compared_with_several(ward: Ward, how: str) -> None:
    up = ward.upstream
    names = ("alpha", "beta", "gamma")
    base = up.commit("one", **{"a.c": functions(*names)})
    ward.side(base, "side")
    commits = [
        up.commit("first try", **{"a.c": functions(*names, beta="2")}),
        up.commit("second try", **{"a.c": functions(*names, beta="3", gamma="4")}),
    ]
    up.git("update-ref", "refs/pull/6/head", commits[-1])
    ward.main()
    up.commit("beside", **{"a.c": functions(*names, alpha="9")})
    if how == "merge":
        up.git("merge", "--quiet", "--no-ff", "-m", "merge it", commits[-1])
    elif how == "rebase":
        up.git("cherry-pick", f"{base}..{commits[-1]}")
    else:
        up.commit("both (#6)", **{"a.c": functions(*names, alpha="9", beta="3", gamma="4")})
    later = functions(*names, alpha="9", beta="3", gamma="4").replace(
        "s->gamma += 4", "s->gamma += n"
    )
    up.commit("touched", **{"a.c": later.replace("s->beta == 0", "s->beta <= 0")})
    pull, file, pick = given(ward, base, commits)
    assert ward.on_main(base, pull).state == "upstream"
    assert ward.on_main(base, pick).state == "upstream"
    # No commit has the patch id of a file that is the diff of two.
    assert ward.on_main(base, file).state == ("conflicts" if how == "rebase" else "upstream")


def test_what_was_taken_back_applies_again(ward: Ward) -> None:
    up = ward.upstream
    base = up.commit("one", **{"a.c": functions("alpha", "beta", "gamma")})
    head = up.pull(6, {"a.c": functions("alpha", "beta", "gamma", beta="2")}, base=base)
    up.commit("beside", **{"z.c": "z\n"})
    up.git("merge", "--quiet", "--no-ff", "-m", "merge it", head)
    up.commit("out again", **{"a.c": functions("alpha", "beta", "gamma")})
    finding = ward.on_main(base, ward.pull(base, head))
    assert finding.state == "applies"
    (note,) = finding.details
    assert "upstream introduced it with" in note
    assert note.endswith("out again")


def test_a_merged_one_whose_lines_are_in_a_copy_is_not_applied_to_that(ward: Ward) -> None:
    up = ward.upstream
    one = "start\n" + numbered(20)
    base = up.commit("one", **{"a.c": one})
    head = up.pull(6, {"a.c": one.replace("line 10\n", "ten\n")}, base=base)
    merged = one.replace("line 10\n", "ten!\n")
    up.git("merge", "--quiet", "--no-ff", "-m", "merge it", head)
    up.commit("a copy of before", **{"a.c": merged + "copy\n" + numbered(20)})
    finding = ward.on_main(base, ward.pull(base, head))
    assert finding.state == "doubtful"
    assert finding.details[-1].endswith("but the tree lacks its lines")


# Ranges


def ranged(ward: Ward) -> tuple[str, str, list[str]]:
    """A pin, main's head, and a branch of three commits whose first and last are on main."""
    up = ward.upstream
    names = ("alpha", "beta", "gamma", "delta", "epsilon")
    pin = up.commit("one", **{"a.c": functions(*names)})
    ward.side(pin, "side")
    commits = [
        up.commit("mend a", **{"a.c": functions(*names, alpha="2")}),
        up.commit("mend c", **{"a.c": functions(*names, alpha="2", gamma="3")}),
        up.commit("mend e", **{"a.c": functions(*names, alpha="2", gamma="3", epsilon="4")}),
    ]
    up.git("update-ref", "refs/pull/6/head", commits[-1])
    ward.main()
    up.commit("beside", **{"z.c": "z\n"})
    up.git("cherry-pick", commits[0])
    up.git("cherry-pick", commits[2])
    return pin, up.head(), commits


def test_a_range_that_is_in_part_upstream_names_each_commit(ward: Ward) -> None:
    pin, _, commits = ranged(ward)
    finding = ward.on_main(pin, ward.pick(pin, commits[-1]))
    assert finding.state == "conflicts"
    first, second, third = finding.details
    assert "(mend a): upstream; introduced by " in first
    assert second.endswith("(mend c): applies")
    assert "(mend e): upstream; introduced by " in third


def test_commits_that_a_range_is_without_must_be_in_it(ward: Ward) -> None:
    pin, _, commits = ranged(ward)
    for without, said in (
        (["0" * 40], "leaves out commits that it does not contain"),
        (commits, "is left"),
    ):
        pick = Pick(after=pin, to=commits[-1], without=without)
        patch = PlannedPatch(PickPatch(pick=pick, why="a test"), ward.upstream.url)
        case = ward.case(pin, patch)
        with pytest.raises(PatchError, match=said):
            apply_all(ward.context, case.tree(next(case.targets(()))), case.patches)


def test_a_range_that_is_whole_keeps_its_key() -> None:
    pick = Pick(after="1" * 40, to="2" * 40)
    inputs = PlannedPatch(PickPatch(pick=pick, why="x")).inputs()
    assert inputs["pick"] == {"after": "1" * 40, "to": "2" * 40}
    recipe, problems = parse(
        RECIPE.format(url="https://x.invalid/x", pin="1" * 40, after="1" * 40, to="2" * 40),
        Path("eng-1.toml"),
        Recipe,
    )
    assert recipe is not None, problems


# Lines that changed, went or moved


def test_who_retyped_a_line_is_named(ward: Ward) -> None:
    up = ward.upstream
    one = functions("alpha", "beta") + "int heads = 256;\n" + functions("gamma")
    base = up.commit("one", **{"a.c": one})
    head = up.pull(6, {"a.c": one.replace("heads = 256", "heads = 512")}, base=base)
    up.commit("retyped", **{"a.c": one.replace("int heads = 256", "const int heads = (256)")})
    finding = ward.on_main(base, ward.pull(base, head))
    assert finding.state == "conflicts"
    assert brought(finding) == "retyped"


def test_who_removed_the_lines_is_named(ward: Ward) -> None:
    up = ward.upstream
    one = functions("alpha", "beta", "gamma")
    base = up.commit("one", **{"a.c": one})
    head = up.pull(6, {"a.c": functions("alpha", "beta", "gamma", beta="2")}, base=base)
    up.commit("beside", **{"a.c": functions("alpha", "beta", "gamma", alpha="9")})
    up.commit("b goes", **{"a.c": functions("alpha", "gamma", alpha="9")})
    up.commit("more", **{"a.c": functions("alpha", "gamma", alpha="9", gamma="9")})
    for patch in (ward.pull(base, head), ward.file(up.raw("diff", base, head))):
        finding = ward.on_main(base, patch)
        assert finding.state == "conflicts", finding.details
        assert [name.split(" ", 2)[2] for name in finding.commits] == ["b goes"]


def test_lines_that_are_not_there_yet_conflict_and_are_shown(ward: Ward) -> None:
    up = ward.upstream
    old = up.commit("one", **{"a.c": functions("alpha", "gamma")})
    base = up.commit("b comes", **{"a.c": functions("alpha", "beta", "gamma")})
    head = up.commit("mend b", **{"a.c": functions("alpha", "beta", "gamma", beta="2")})
    ward.side(old, "fork")
    fork = up.commit("a fork", **{"a.c": functions("alpha", "gamma", alpha="3")})
    ward.main()
    for patch in (ward.pick(base, head), ward.file(up.raw("diff", base, head))):
        pin = next(diagnose(ward.case(fork, patch)))
        assert pin.state == "conflicts", pin.details
        assert "s->beta += 1;" in pin.details[-1]


# Where a conflict is shown


def test_a_conflict_is_shown_where_its_lines_are_not_where_brackets_are(ward: Ward) -> None:
    up = ward.upstream
    names = ("alpha", "beta", "gamma", "delta", "epsilon", "zeta", "theta", "kappa")
    base = up.commit("one", **{"a.c": functions(*names)})
    head = up.pull(6, {"a.c": functions(*names, theta="2")}, base=base)
    changed = functions(*names).replace("if (s->theta == 0)", "if (s->theta <= 0)")
    up.commit("another file", **{"z.c": "s->theta += 1;\n"})
    up.commit("g is compared", **{"a.c": changed.replace("s->theta += 1", "s->theta += 1 + 1")})
    up.commit("elsewhere", **{"a.c": "top\n" * 5 + up.git("show", "HEAD:a.c") + "\n"})
    line = up.git("show", "HEAD:a.c").splitlines().index("    if (s->theta <= 0) {") + 1
    made_for = up.raw("diff", base, head)
    bare = b"".join(x for x in made_for.splitlines(keepends=True) if not x.startswith(b"index"))
    finding = ward.on_main(base, ward.pull(base, head))
    (shown,) = finding.details
    assert f"a.c, hunk 1: the lines differ, from line {line}" in shown
    assert [name.split(" ", 2)[2] for name in finding.commits] == ["g is compared"]
    # The same by the text alone: by the heading, and by lines that are rare.
    finding = next(diagnose(ward.case(up.head(), ward.file(bare))))
    (shown,) = finding.details
    assert f"a.c, hunk 1: the lines differ, from line {line}" in shown


def test_who_brought_it_is_told_by_the_lines_not_by_a_part_of_them(ward: Ward) -> None:
    up = ward.upstream
    one = "int a = 1;\nint b = 2;\nint c = 3;\n"
    two = one.replace("b = 2", "b = 20")
    base = up.commit("one", **{"a.c": one})
    head = up.pull(6, {"a.c": two}, base=base)
    up.commit("a longer line first", **{"a.c": one + numbered(9) + "int b = 20; // not this\n"})
    up.commit("mended by hand", **{"a.c": two + numbered(9) + "int b = 20; // not this\n"})
    finding = ward.on_main(base, ward.pull(base, head))
    assert finding.state == "upstream"
    assert brought(finding) == "mended by hand"


# Hunks with more than one place


def test_an_ambiguous_hunk_is_doubtful(ward: Ward) -> None:
    up = ward.upstream
    block = numbered(9)
    base = up.commit("one", **{"a.c": "first\n" + block + "second\n" + numbered(5)})
    head = up.pull(6, {"a.c": up.git("show", "HEAD:a.c").replace("line 5", "five", 1) + "\n"})
    up.commit("copied", **{"a.c": "x\n" * 6 + block + up.git("show", "HEAD:a.c") + "\n"})
    plain = ward.on_main(base, ward.pull(base, head))
    assert plain.state == "doubtful"
    assert "its lines occur in 2 places" in plain.details[0]


def test_a_copy_is_not_patched_in_the_place_of_what_changed(ward: Ward) -> None:
    up = ward.upstream
    one = numbered(40)
    base = up.commit("one", **{"a.c": one})
    head = up.pull(6, {"a.c": numbered(40, line_21="mended")}, base=base)
    part = "".join(one.splitlines(keepends=True)[16:26])
    up.commit("changed, and copied", **{"a.c": numbered(40, line_20="other") + "copy\n" + part})
    finding = ward.on_main(base, ward.pull(base, head))
    assert finding.state == "doubtful", finding.details
    assert finding.details[0].endswith("the file that it was made for has another result")
