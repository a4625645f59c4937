"""The parser of diffs, against what git writes and reads."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from builder.sources import diff as diffs
from builder.sources.diff import NotADiffError
from builder.sources.git import EMPTY_TREE

HEADERS = [b"--- x", b"+++ y", b"@@ -1 +1 @@", b"diff --git a/x b/x"]
lines = st.lists(
    st.sampled_from([*HEADERS, b"a", b"b", b"", b"\r", b"\xff\xfe", b"\x0c"]), max_size=30
)


@settings(max_examples=60, deadline=None)
@given(before=lines, after=lines, ends=st.booleans())
def test_the_parser_reads_what_git_writes(
    tmp_path_factory: pytest.TempPathFactory, before: list[bytes], after: list[bytes], ends: bool
) -> None:
    folder = tmp_path_factory.mktemp("diff")
    for name, content in (("old", before), ("new", after)):
        (folder / name).mkdir()
        text = b"\n".join(content) + (b"\n" if ends else b"")
        (folder / name / "f").write_bytes(text)
    made = subprocess.run(
        ["git", "diff", "--no-index", "--text", "--no-renames", "old/f", "new/f"],
        cwd=folder,
        capture_output=True,
        check=False,
    ).stdout
    if not made:
        return
    (file,) = diffs.parse(made)
    counted = subprocess.run(
        ["git", "apply", "--numstat", "-p2", "-"],
        input=made,
        cwd=folder,
        capture_output=True,
        check=True,
    ).stdout.split()
    assert sum(len(hunk.of(b"+")) for hunk in file.hunks) == int(counted[0])
    assert sum(len(hunk.of(b"-")) for hunk in file.hunks) == int(counted[1])
    assert file.text == made
    old = diffs.lines_of((folder / "old" / "f").read_bytes())
    for hunk in file.hunks:
        assert old[max(hunk.start - 1, 0) :][: len(hunk.before)] == hunk.before


@settings(max_examples=300, deadline=None)
@given(st.one_of(st.binary(max_size=200), st.lists(st.sampled_from([
    b"diff --git a/x b/x\n", b"--- a/x\n", b"+++ b/x\n", b"@@ -1 +1 @@\n", b"@@ -1,2 +0,0 @@\n",
    b"-a\n", b"+b\n", b" c\n", b"\\ No newline at end of file\n", b"GIT binary patch\n", b"\n",
    b"new file mode 100644\n", b"rename from ../x\n", b'--- "a/\\056\\056/x"\n', b"-- \n2.39\n",
]), max_size=12).map(b"".join)))  # fmt: skip
def test_the_parser_reads_or_refuses_anything(text: bytes) -> None:
    try:
        files = diffs.parse(text)
    except NotADiffError:
        return
    for file in files:
        assert file.paths
        assert not [path for path in file.paths if ".." in path.split("/")]


HEAD = b"diff --git a/a.c b/a.c\n--- a/a.c\n+++ b/a.c\n"
ONE = b"@@ -1,3 +1,4 @@\n line 1\n+added one\n line 2\n line 3\n"
TWO = b"@@ -20,3 +21,4 @@\n line 20\n+added three\n line 21\n line 22\n"
B = b"--- a/b.c\n+++ b/b.c\n@@ -1 +1 @@\n-b\n+c\n"
NEW = b"diff --git a/n b/n\nnew file mode 100644\n--- /dev/null\n+++ b/n\n@@ -0,0 +1,2 @@\n+1\n+2\n"
RENAME = b"similarity index 100%\nrename from b.c\nrename to d.c\n"
MODE = b"diff --git a/b.c b/b.c\nold mode 100644\nnew mode 100755\n"
NO_END = b"\\ No newline at end of file\n"


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (HEAD + ONE + b"+added two\n" + TWO, 9),
        (HEAD + ONE + b"\n" + TWO, 10),
        (HEAD + ONE + b"# a remark\n" + TWO, 10),
        (HEAD + ONE + TWO.replace(b"@@ -20", b"@ -20"), 9),
        (HEAD + ONE + TWO.replace(b"@@ -20", b"@@ 20"), 9),
        (HEAD + ONE + TWO + b"-lost\n", 14),
        (HEAD + ONE + b"-- \n2.39.5\n\n+lost\n", 12),
        (NEW + b"+3\n+4\n", 8),
        (HEAD + ONE.replace(b"3 +1,4", b"2 +1,3"), 8),  # fewer lines than there are
        (HEAD + ONE + B.removeprefix(b"--- a/b.c\n"), 9),
        (HEAD + ONE + b"--- a/b.c\n@@ -1 +1 @@\n-b\n+c\n", 9),
        (HEAD + ONE + b"--- a/b.c\n+++ b/b.c\n", 9),
        (b"--- a/b.c\n+++ b/b.c\n" + HEAD + ONE, 1),
        (b"-lost\n+lost\n" + HEAD + ONE, 2),
        (b"rename from b.c\nrename to d.c\n" + HEAD + ONE, 2),
        (HEAD + ONE + b"diff --gti a/b.c b/d.c\n" + RENAME, 9),
        (MODE + RENAME, 5),
        (MODE + b"old mode 100644\nnew mode 100755\n" + HEAD + ONE, 4),
        (b"diff --git a/b.c b/b.c\nindex 1234567..2345678 100644\n" + HEAD + ONE, 1),
        (HEAD + ONE + b"diff --git a/b.c b/b.c\n", 9),
        (b"diff --git a/e b/e\nnew file mode 100644\nindex 0000000..1234567\n" + HEAD + ONE, 1),
        (b"diff --git a/b.c b/d.c\n" + RENAME + b"--- a/b.c\n+++ b/d.c\n" + HEAD + ONE, 1),
        (b"Binary files a/x and b/x differ\n" + HEAD + ONE, 1),
        (HEAD + ONE + b"Binary files a/x and b/x differ\n", 9),
        (HEAD + ONE + b"Only in b: new.c\n", 9),
        (b"Only in b: new.c\n" + HEAD + ONE, 1),
        (HEAD + ONE + b"Submodule ggml 1234567...2345678:\n  > a commit\n", 9),
        (b"--- a/ggml\n+++ b/ggml\n@@ -1 +1 @@\n-Subproject commit " + b"1" * 40
         + b"\n+Subproject commit " + b"2" * 40 + b"\n", 1),
        (HEAD + ONE + b"diff --cc b.c\n--- a/b.c\n+++ b/b.c\n@@@ -1,1 -1,1 +1 @@@\n", 9),
        (b"*** a/b.c\n--- b/b.c\n***************\n*** 1 ****\n! b\n--- 1 ----\n! c\n" + HEAD, 3),
        (b"diff -ru a/b.c b/b.c\n" + B + b"Nur in b: new.c.\n", 7),
        (b"diff -ru a/b.c b/b.c\n" + B + b"Symbolic links a/l and b/l differ\n", 7),
        (b"diff -ru a/b.c b/b.c\n" + B + b"Only in b/my dir: new file\ndiff -ru a/a.c b/a.c\n"
         + HEAD.split(b"\n", 1)[1] + ONE, 7),
        (b"diff -r a/b.c b/b.c\n1a2\n> c\n" + HEAD + ONE, 2),
        (HEAD + ONE + b"GIT binary patch\nliteral 1\nIcmZPo000310RR91\n\n", 9),
        (NEW.replace(b"+1\n", b"+1\n" + NO_END), 8),
        (NEW.replace(b"\n", b"\r\n"), 1),
        (NEW.replace(b" a/n b/n", b" src/n src/n").replace(b"+ b/n", b"+ src/n"), 1),
        (b"--- src/b.c.orig\n+++ src/b.c\n@@ -1 +1 @@\n-b\n+c\n", 1),
        (b"--- /dev/null\n+++ src/n\n@@ -0,0 +1 @@\n+1\n", 1),
    ],
)  # fmt: skip
def test_what_git_would_skip_is_an_error_with_its_line(text: bytes, line: int) -> None:
    with pytest.raises(NotADiffError, match=rf"\bline {line}\b"):
        diffs.parse(text)


@pytest.mark.parametrize(
    ("text", "paths"),
    [
        (b"- a note\n+ another\n\n" + HEAD + ONE + TWO + b"-- \n2.39.5\n\n", ["a.c"]),
        (HEAD + ONE + b"Then the other one:\n\n" + B, ["a.c", "b.c"]),
        (HEAD + ONE + b"diff -ru a/b.c b/b.c\n" + B, ["a.c", "b.c"]),
        (
            b"diff -ru a/b.c b/b.c\n" + B + b"\ndiff -ru a/a.c b/a.c\n" + HEAD[23:] + ONE,
            ["b.c", "a.c"],
        ),
        (
            b"# HG changeset patch\n\ndiff -r 123 b.c\n" + B + b"\n# HG changeset patch\nprose\n\n"
            b"diff -r 123 a.c\n" + HEAD[23:] + ONE,
            ["b.c", "a.c"],
        ),
        (b"Index: b.c\n" + b"=" * 67 + b"\n" + B, ["b.c"]),
        (MODE + b"diff --git a/b.c b/d.c\n" + RENAME, ["b.c", "d.c"]),
        (b"diff --git a/e b/e\nnew file mode 100644\nindex 0000000..e69de29\n" + NEW, ["e", "n"]),
        (b"--- b.c\n+++ b.c\n@@ -1 +1 @@\n-b\n" + NO_END + b"+c\n" + NO_END, ["b.c"]),
        (b"commit " + b"a" * 40 + b"\n\n    - x\n\n" + HEAD + ONE, ["a.c"]),
    ],
)
def test_a_diff_with_text_around_it_is_read(text: bytes, paths: list[str]) -> None:
    assert [file.path for file in diffs.parse(text)] == paths


ODD = ["nä\tme.c", 'a "b".c', "back\\slash", "new\nline", " lead and trail ", "\x7f.c", "ÿ/x y.c"]


def test_odd_names_are_read_as_git_writes_them(tmp_path: Path) -> None:
    def git(*arguments: str) -> bytes:
        command = ["git", "-C", str(tmp_path), *arguments]
        return subprocess.run(command, capture_output=True, check=True).stdout

    git("init", "--quiet")
    for name in ODD:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(f"{name} is here\n" * 9)
    git("add", "--all")
    changed = diffs.parse(git("diff", "--cached", EMPTY_TREE))
    assert sorted((file.old, file.new) for file in changed) == sorted((None, n) for n in ODD)
    tree = git("write-tree").decode().strip()
    for name in ODD:
        (tmp_path / name).chmod(0o755)
    git("add", "--all")
    changed = diffs.parse(git("diff", "--cached", tree))
    assert sorted((file.old, file.new) for file in changed) == sorted((n, n) for n in ODD)
    for name in ODD:
        (tmp_path / name).rename(tmp_path / f"{name}.2")
    git("add", "--all")
    changed = diffs.parse(git("diff", "--cached", "-M", tree))
    assert sorted((file.old, file.new) for file in changed) == sorted((n, f"{n}.2") for n in ODD)
