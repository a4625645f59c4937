"""What the patch doctor must not take for merged: twins, reverts, merges that bring nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from test_doctor_history import Ward, brought, functions

NAMES = ("alpha", "beta", "gamma")
BEFORE = functions(*NAMES)
AFTER = functions(*NAMES, beta="2")
TOUCHED = BEFORE.replace("s->beta == 0", "s->beta <= 0")


@pytest.fixture
def ward(tmp_path: Path) -> Ward:
    return Ward(tmp_path)


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
        assert ward.on_main(base, patch).state in {"applies", "offset"}


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
