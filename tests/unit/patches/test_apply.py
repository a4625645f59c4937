"""Patches that are refused, with the reason; nothing outside the tree is touched."""

from __future__ import annotations

from pathlib import Path

import pytest

from builder.errors import FetchError, PatchError
from support.patch_bench import Bench
from support.upstreams import numbered


def test_a_conflict_names_file_hunk_and_lines(bench: Bench) -> None:
    patch = bench.diff(**{"a.c": numbered(40, line_5="five", line_30="thirty")})
    bench.pin = bench.upstream.commit("other", **{"a.c": numbered(40, line_29="changed")})
    with pytest.raises(PatchError, match=r"file x\.patch applies only in part") as caught:
        bench.apply(bench.file(patch))
    assert caught.value.why.splitlines() == [
        "a.c, hunk 2: the lines differ, from line 27",
        "  - line 29",
        "  + changed",
    ]


def test_what_is_in_the_source_already_is_said(bench: Bench) -> None:
    head = bench.upstream.pull(1, {"a.c": numbered(40, line_5="five")})
    base, bench.pin = (
        bench.pin,
        bench.upstream.commit("same", **{"a.c": numbered(40, line_5="five")}),
    )
    with pytest.raises(PatchError, match="pull 1 is already in the source"):
        bench.apply(bench.pull(base, head))
    with pytest.raises(PatchError, match="pull 1 is already in the source"):
        bench.apply(bench.pull(base, head, three_way=True))


def test_what_changes_lines_that_are_not_there_is_not_applicable(bench: Bench) -> None:
    patch = bench.diff(**{"a.c": numbered(40, line_5="five")})
    bench.pin = bench.upstream.commit("rewritten", **{"a.c": "all new\n"})
    with pytest.raises(PatchError, match="the lines that it changes do not exist"):
        bench.apply(bench.file(patch))
    bench.pin = bench.upstream.commit("removed", **{"a.c": None})
    with pytest.raises(PatchError, match="its files do not exist"):
        bench.apply(bench.file(patch))


def test_a_patch_that_changes_nothing_is_an_error(bench: Bench) -> None:
    with pytest.raises(PatchError, match="changes nothing"):
        bench.apply(bench.pull(bench.pin, bench.pin))
    empty = bench.upstream.record("empty")
    with pytest.raises(PatchError, match="changes nothing"):
        bench.apply(bench.pull(bench.pin, empty))
    with pytest.raises(PatchError, match="changes nothing"):
        bench.apply(bench.pick(bench.pin, bench.pin))
    there = bench.upstream.commit("there", **{"a.c": numbered(40, line_5="5")})
    back = bench.upstream.commit("and back", **{"a.c": numbered(40)})
    assert there != back
    with pytest.raises(PatchError, match="changes nothing"):
        bench.apply(bench.pick(empty, back))
    with pytest.raises(PatchError, match=r"nothing is left of file x\.patch"):
        bench.apply(bench.file(bench.diff(**{"b.c": "c\n"}), leave_out=["*.c"]))


def test_a_base_that_is_no_ancestor_is_an_error(bench: Bench) -> None:
    head = bench.upstream.pull(1, {"b.c": "b2\n"})
    beside = bench.upstream.commit("beside", **{"b.c": "b3\n"})
    with pytest.raises(PatchError, match="is not the diff of a branch") as caught:
        bench.apply(bench.pull(beside, head))
    assert f"{beside} is not an ancestor of {head}" in caught.value.why
    with pytest.raises(PatchError, match="is not the diff of a branch"):
        bench.apply(bench.pull("0" * 40, head))
    with pytest.raises(FetchError, match="cannot fetch"):
        bench.apply(bench.pull(bench.pin, "0" * 40))


def test_a_merge_is_not_picked(bench: Bench) -> None:
    head = bench.upstream.pull(1, {"b.c": "b2\n"})
    bench.upstream.commit("main", **{"a.c": numbered(40, line_5="5")})
    bench.upstream.git("merge", "--quiet", "--no-ff", "-m", "merged", head)
    with pytest.raises(PatchError, match=r"contains the merge \w+ \(merged\)"):
        bench.apply(bench.pick(bench.pin, bench.upstream.head()))


def new(old: str, path: str, mode: str = "100644", text: str = "x") -> str:
    """A diff that makes a file; a link's has no line feed at its end."""
    end = "\\ No newline at end of file\n" if mode == "120000" else ""
    head = f"diff --git {old} {path}\nnew file mode {mode}\n--- /dev/null\n+++ {path}\n"
    return f"{head}@@ -0,0 +1 @@\n+{text}\n{end}"


GITLINK = "Subproject commit " + "1" * 40
BINARY = "diff --git a/i.png b/i.png\nindex 1..2 100644\nBinary files a/i.png and b/i.png differ\n"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (new("a/../../x", "b/../../x"), "leads out of the tree"),
        (new("/etc/x", "/etc/x"), "leads out of the tree"),
        ("--- /etc/passwd\n+++ /etc/passwd\n@@ -1 +1 @@\n-a\n+b\n", "leads out of the tree"),
        (new("a/.git/config", "b/.git/config"), "leads out of the tree"),
        (new("a/x/.GIT/hooks/y", "b/x/.GIT/hooks/y", "100755"), "leads out of the tree"),
        (new("a//x", "b//x"), "leads out of the tree"),
        (new("a/l", "b/l", "120000", "/etc/passwd"), "outside the tree"),
        (new("a/d/l", "b/d/l", "120000", "../../x"), "outside the tree"),
        (new("a/m", "b/m", "160000", GITLINK), "changes the submodule m"),
        (BINARY, "the binary file i.png differs"),
        ("", "contains no diff"),
        ("just words\n", "contains no diff"),
        ("--- a/b.c\n+++ b/b.c\n@@ -1,5 +1,6 @@\n b\n", "a hunk ends early"),
        ("\x00\xff\x00", "contains no diff"),
    ],
)
def test_a_hostile_or_broken_patch_is_refused(bench: Bench, text: str, said: str) -> None:
    before = sorted(path for path in bench.folder.rglob("*") if "work-" not in str(path))
    with pytest.raises(PatchError) as caught:
        bench.apply(bench.file(text))
    assert said in str(caught.value)
    after = sorted(
        path
        for path in bench.folder.rglob("*")
        if "work-" not in str(path) and "/cache/" not in f"{path}/"
    )
    assert after == [path for path in before if "/cache/" not in f"{path}/"]


def test_a_link_is_not_followed_out_of_the_tree(bench: Bench) -> None:
    """A link that upstream's tree has, and a patch that writes through it."""
    (bench.upstream.folder / "out").symlink_to("/tmp")
    bench.pin = bench.upstream.record("link")
    text = new("a/out/owned", "b/out/owned")
    with pytest.raises(PatchError):
        bench.apply(bench.file(text))
    assert not Path("/tmp/owned").exists()


@pytest.mark.parametrize(
    ("there", "made", "led"),
    [
        ({"sub/l1": ".."}, {"l2": "sub/l1/../../etc/passwd"}, "l2"),
        ({"l2": "sub/l1/../x"}, {"sub/l1": "."}, ""),  # sub/l1/.. is sub/..: the top
        ({"l2": "sub/l1/../../x"}, {"sub/l1": "deep/er"}, ""),
        ({"l2": "sub/l1/../../x", "sub/l1": "deep/er"}, {"sub/l1": ".."}, "l2"),
        ({}, {"a": "b", "b": "a"}, "a"),
        ({"out": "/etc/passwd"}, {"in": "sub/../b.c"}, ""),  # upstream's own is upstream's
        ({"out": "/etc"}, {"in": "out/passwd"}, "in"),
    ],
)
def test_links_are_followed_through_the_tree(
    bench: Bench, there: dict[str, str], made: dict[str, str], led: str
) -> None:
    (bench.upstream.folder / "sub" / "deep" / "er").mkdir(parents=True)
    bench.upstream.write("sub/deep/er/x", "x\n")
    for path, target in there.items():
        (bench.upstream.folder / path).symlink_to(target)
    bench.pin = bench.upstream.record("links")
    for path, target in made.items():
        (bench.upstream.folder / path).unlink(missing_ok=True)
        (bench.upstream.folder / path).symlink_to(target)
    head = bench.upstream.record("other links")
    if not led:
        bench.apply(bench.pull(bench.pin, head))
        return
    with pytest.raises(PatchError, match=f"{led}: would be a link to .*, outside the tree"):
        bench.apply(bench.pull(bench.pin, head))


def test_a_diff_that_does_not_call_it_a_link_bends_none(bench: Bench) -> None:
    (bench.upstream.folder / "l").symlink_to("b.c")
    bench.pin = bench.upstream.record("link")
    end = "\\ No newline at end of file\n"
    text = f"--- a/l\n+++ b/l\n@@ -1 +1 @@\n-b.c\n{end}+/etc/passwd\n{end}"
    with pytest.raises(PatchError, match="l: would be a link to /etc/passwd"):
        bench.apply(bench.file(text))


def test_the_users_own_git_configuration_does_not_bend_patches(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    config = tmp_path / "gitconfig"
    config.write_text(
        "[apply]\nignoreWhitespace = change\nwhitespace = fix\n[core]\nautocrlf = true\n"
        "[diff]\nnoprefix = true\nexternal = false\n[color]\nui = always\n"
    )
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(config))
    head = bench.upstream.pull(1, {"b.c": "b  \n\tc \n"})
    assert (bench.apply(bench.pull(bench.pin, head)) / "b.c").read_bytes() == b"b  \n\tc \n"
    bench.pin = bench.upstream.commit("blanks", **{"b.c": "x  y\nb\nc\n"})
    spaced = bench.file("--- a/b.c\n+++ b/b.c\n@@ -1,3 +1,3 @@\n x y\n-b\n+B\n c\n")
    with pytest.raises(PatchError, match="does not apply"):
        bench.apply(spaced)
