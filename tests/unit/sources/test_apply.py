"""Patches that are refused, with the reason; nothing outside the tree is touched."""

from __future__ import annotations

from pathlib import Path

import pytest

from builder.core.errors import FetchError, PatchError
from support.patch_bench import Bench
from support.upstreams import numbered


def test_a_conflict_names_file_hunk_and_lines(bench: Bench) -> None:
    patch = bench.diff(**{"a.c": numbered(40, line_5="five", line_30="thirty")})
    bench.pin = bench.upstream.commit("other", **{"a.c": numbered(40, line_29="changed")})
    with pytest.raises(
        PatchError, match=r"file x\.patch does not apply \(1 of 2 hunks\)"
    ) as caught:
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


def test_what_changes_lines_that_are_not_there_does_not_apply(bench: Bench) -> None:
    patch = bench.diff(**{"a.c": numbered(40, line_5="five")})
    bench.pin = bench.upstream.commit("rewritten", **{"a.c": "all new\n"})
    with pytest.raises(PatchError, match="the file has no similar lines"):
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
    with pytest.raises(FetchError, match="no longer has 000000000000"):
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


NO_END = "\\ No newline at end of file\n"


def test_a_last_line_is_not_taken_for_the_start_of_a_longer_one(bench: Bench) -> None:
    """git apply compares bytes: it would join two lines of upstream."""
    base = bench.upstream.commit("base", **{"r.txt": "torch\nnumpy\nfoo"})
    head = bench.upstream.pull(1, {"r.txt": "torch\nextra\nnumpy\nfoo"})
    text = f"--- a/r.txt\n+++ b/r.txt\n@@ -1,3 +1,4 @@\n torch\n+extra\n numpy\n foo\n{NO_END}"
    for patch in (bench.pull(base, head), bench.file(text)):
        bench.pin = base
        assert (bench.apply(patch) / "r.txt").read_text() == "torch\nextra\nnumpy\nfoo"
        for longer in ("torch\nnumpy\nfoo\nbar\n", "torch\nnumpy\nfoo\n", "torch\nnumpy\nfoot\n"):
            bench.pin = bench.upstream.commit("longer", **{"r.txt": longer})
            with pytest.raises(PatchError, match="does not apply"):
                bench.apply(patch)
        bench.pin = bench.upstream.commit("made", **{"r.txt": "torch\nextra\nnumpy\nfood\n"})
        with pytest.raises(PatchError, match="does not apply"):  # nor is it there already
            bench.apply(patch)


def test_a_diff_that_git_reads_otherwise_is_refused(bench: Bench) -> None:
    mode = "diff --git a/b.c b/b.c\nold mode 100644\nnew mode 100755\n"
    plain = "--- a/a.c\n+++ b/a.c\n@@ -1,2 +1,2 @@\n-line 1\n+one\n line 2\n"
    with pytest.raises(PatchError) as caught:
        bench.apply(bench.file(mode + plain))  # git gives the mode to a.c
    assert "git reads a.c (+1 -1), and its headers say b.c (+0 -0)" in caught.value.why
    for between in ("\n", "diff -ru a/a.c b/a.c\n"):
        tree = bench.apply(bench.file(mode + between + plain))
        assert [(tree / name).stat().st_mode & 0o111 for name in ("a.c", "b.c")] == [0, 0o111]
    with pytest.raises(PatchError) as caught:
        bench.apply(bench.file(mode.replace("a/b.c b/b.c", "b.c b.c")))
    assert "git refuses it: git diff header lacks filename information" in caught.value.why


@pytest.mark.parametrize("name", ["näme.c", 'a "b".c', "back\\slash.c", "a\ttab.c", "plain.c"])
def test_a_file_that_exists_is_never_absent(bench: Bench, name: str) -> None:
    bench.pin = bench.upstream.commit("odd", **{name: numbered(9)})
    changed = numbered(9, line_5="five")
    git = bench.diff(**{name: changed}).replace(b" line 4\n", b" line X\n")
    texts = [git]
    if name == "plain.c":  # diff -u plain.c.orig plain.c, with and without a directory
        plain = git[git.index(b"--- ") :]
        texts += [plain.replace(b"a/plain.c", b"a/plain.c.orig")]
        texts += [texts[-1].replace(b"a/", b"").replace(b"b/", b"")]
    for text in texts:
        with pytest.raises(PatchError) as caught:
            bench.apply(bench.file(text))
        assert "hunk 1: the lines differ, from line 2" in caught.value.why
        with pytest.raises(PatchError, match="but files that it changes exist"):
            bench.apply(bench.file(text, expect="absent"))


def test_a_file_that_the_diff_itself_makes_is_not_absent(bench: Bench) -> None:
    rename = "diff --git a/n b/m\nsimilarity index 100%\nrename from n\nrename to m\n"
    with pytest.raises(PatchError, match="only adds files"):
        bench.apply(bench.file(new("a/n", "b/n") + rename, expect="absent"))


def test_a_copy_of_the_old_lines_at_their_old_place_is_not_taken_for_them(bench: Bench) -> None:
    """Nothing moved for git, though the lines that the diff was made for are elsewhere."""
    block = "".join(SLOTS[:4])
    old = numbered(20) + block
    bench.pin = bench.upstream.commit("block", **{"a.c": old})
    patch = bench.diff(**{"a.c": old.replace("return s->b", "return s->bb")})
    bench.apply(bench.file(patch))  # the mirror knows the file that it was made for
    above = "".join(f"other {n}\n" for n in range(20)) + block
    bench.pin = bench.upstream.commit("a copy above", **{"a.c": above + old})
    with pytest.raises(PatchError, match=r"x\.patch is not applied") as caught:
        bench.apply(bench.file(patch))
    assert "a merge from the file that it was made for has another result" in caught.value.why


def test_lines_of_a_renamed_file_are_not_guessed(bench: Bench) -> None:
    block = numbered(9)
    bench.upstream.git("checkout", "--quiet", "--detach")
    base = bench.upstream.commit("block", **{"ä.c": block})
    bench.upstream.commit("moved", **{"ä.c": None, "z.c": block.replace("line 5", "five")})
    patch = bench.upstream.raw("diff", "-M10%", base, "HEAD")
    assert b"rename from" in patch
    bench.pin = bench.upstream.commit(
        "twice", **{"z.c": None, "ä.c": "top\n" * 6 + block + "mid\n" + block}
    )
    with pytest.raises(PatchError, match="is not applied") as caught:
        bench.apply(bench.file(patch))
    assert "its lines occur in 2 places" in caught.value.why


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


SLOTS = [f"int slot_{name}(struct state * s) {{\n    return s->{name};\n}}\n" for name in "abcdef"]
GUARD = "    if (s->slots == NULL) {\n        return -1;\n    }\n    s->slots->used += 1;\n"


def test_a_change_that_is_there_is_not_made_again_in_a_copy(bench: Bench) -> None:
    """Upstream has the change, and a copy of the code without it: git finds the copy."""
    once = "".join(SLOTS) + "int run(struct state * s) {\n    prepare(s);\n    return 0;\n}\n"
    bench.pin = bench.upstream.commit("once", **{"a.c": once})
    mended = once.replace("prepare(s);\n", f"prepare(s);\n{GUARD}")
    patch = bench.diff(**{"a.c": mended})
    bare = b"".join(x for x in patch.splitlines(keepends=True) if not x.startswith(b"index"))
    bench.pin = bench.upstream.commit("mended, and copied", **{"a.c": mended + "\n" + once})
    for text in (patch, bare):
        with pytest.raises(PatchError, match=r"x\.patch is not applied") as caught:
            bench.apply(bench.file(text))
        assert "the lines that it adds" in caught.value.why


def without_index(text: bytes) -> bytes:
    return b"".join(x for x in text.splitlines(keepends=True) if not x.startswith(b"index"))


def test_a_block_that_the_file_had_before_is_no_double_where_that_is_unknown(bench: Bench) -> None:
    case = "case {0}:\n    lock(&s);\n    run(s, {0});\n    unlock(&s);\n    break;\n"
    cases = "".join(case.format(n) for n in range(8))
    bench.pin = bench.upstream.commit("cases", **{"a.c": cases})
    locked = cases.replace("    run(s, 5);\n", "    lock(&s);\n    unlock(&s);\n    run(s, 5);\n")
    patch = without_index(bench.diff(**{"a.c": locked}))
    assert (bench.apply(bench.file(patch)) / "a.c").read_text() == locked
    bench.pin = bench.upstream.commit("main moves", **{"a.c": "/* x */\n" * 3 + cases})
    assert (bench.apply(bench.file(patch)) / "a.c").read_text() == "/* x */\n" * 3 + locked


SET_UP = "".join(f"    set_up_part_{n}(s, FLAG_{n});\n" for n in range(6))


@pytest.mark.parametrize("there", ["far below", "in another function"])
def test_a_distinctive_block_that_is_there_is_not_made_again(bench: Bench, there: str) -> None:
    slots = "".join(SLOTS) + numbered(60) + "int last(void) {\n}\n"
    bench.pin = bench.upstream.commit("slots", **{"a.c": slots, "b.c": numbered(20)})
    top = "int slot_b(struct state * s) {\n"
    patch = bench.diff(
        **{"a.c": slots.replace(top, top + SET_UP), "b.c": numbered(20, line_9="nine")}
    )
    bench.apply(bench.file(patch))  # the mirror knows the file that it was made for
    now = slots
    if there == "far below":
        now = slots.replace("int last(void) {\n", "int last(void) {\n" + SET_UP)
    else:
        now = slots.replace("    return s->c;\n", SET_UP + "    return s->c;\n")
    bench.pin = bench.upstream.commit("there", **{"a.c": now, "b.c": numbered(20)})
    with pytest.raises(PatchError, match=r"x\.patch is not applied") as caught:
        bench.apply(bench.file(patch))
    assert "the lines that it adds" in caught.value.why


@pytest.mark.parametrize(("lines", "below"), [(6, True), (6, False), (2, True), (2, False)])
def test_a_block_is_not_made_again_where_its_file_is_unknown(
    bench: Bench, lines: int, *, below: bool
) -> None:
    """A short block may be a habit of the file."""
    block = "".join(SET_UP.splitlines(keepends=True)[:lines])
    slots = "int first(void) {\n}\n" + "".join(SLOTS) + "int last(void) {\n}\n"
    place, top = (
        f"int {'last' if below else 'first'}(void) {{\n",
        "int slot_b(struct state * s) {\n",
    )
    there = slots.replace(place, place + block)
    bench.pin = bench.upstream.commit("slots", **{"a.c": slots if below else there})
    made_for = slots if below else there
    patch = without_index(bench.diff(**{"a.c": made_for.replace(top, top + block)}))
    bench.pin = bench.upstream.commit("there", **{"a.c": there, "b.c": "moved on\n"})
    if lines < 4:
        assert (bench.apply(bench.file(patch)) / "a.c").read_text().count(block) == 2
        return
    with pytest.raises(PatchError, match=r"x\.patch is not applied") as caught:
        bench.apply(bench.file(patch))
    assert "the lines that it adds" in caught.value.why


def test_what_git_does_not_place_has_a_true_reason(bench: Bench) -> None:
    bench.pin = bench.upstream.commit("an image", **{"i.bin": bytes(256)})
    image = {"i.bin": bytes(255)}
    tops = bench.diff(**{"a.c": numbered(40, line_2="two")}, **image)
    ends = bench.diff(**{"a.c": numbered(41)}, **image)
    bare = b"--- a/a.c\n+++ b/a.c\n@@ -20 +20 @@\n-line 20\n+twenty\n"
    bench.pin = bench.upstream.commit("more", **{"a.c": "// top\n" + numbered(40) + "end\n"})
    for text, why in (
        (tops, "the file has other lines before its first ones now"),
        (ends, "it ends with the file, which goes on after these lines now"),
        (bare, "git does not place lines without context: `git diff -U3` writes it"),
    ):
        with pytest.raises(PatchError) as caught:
            bench.apply(bench.file(text))
        assert caught.value.why == f"a.c, hunk 1: {why}"
