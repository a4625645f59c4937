"""The parser of diffs, against what git writes and reads."""

from __future__ import annotations

import subprocess

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from builder.patches import diff as diffs
from builder.patches.diff import NotADiffError

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
    assert sum(len(hunk.added) for hunk in file.hunks) == int(counted[0])
    assert sum(len(hunk.removed) for hunk in file.hunks) == int(counted[1])
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
