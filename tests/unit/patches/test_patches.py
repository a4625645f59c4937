"""Patches on trees: applied exactly, or refused with the reason; nothing outside is touched."""

from __future__ import annotations

import base64
import hashlib
import importlib.metadata
import subprocess
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from builder.errors import FetchError, PatchError
from builder.patches import diff as diffs
from builder.patches.context import PatchContext
from builder.patches.diff import NotADiffError
from builder.patches.series import apply_all
from builder.plan.inputs import PlannedPatch
from builder.recipes.schema import Add, AddPatch, FilePatch, Pick, PickPatch, PullPatch
from builder.tools.git.repositories import Repositories
from support.upstreams import Upstream, numbered


class Bench:
    """An upstream with a file of forty lines, and a workshop over its mirror."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.upstream = Upstream(folder / "upstream")
        self.said: list[str] = []
        self.pin = self.upstream.commit("one", **{"a.c": numbered(40), "b.c": "b\n"})
        self.count = 0

    def context(self, *, offline: bool = False) -> PatchContext:
        self.count += 1
        work = self.folder / f"work-{self.count}"
        work.mkdir()
        repositories = Repositories(self.folder / "cache", work, self.said.append, offline=offline)
        return PatchContext(repositories, work, None, self.said.append)

    def apply(self, *patches: PlannedPatch, offline: bool = False) -> Path:
        """The tree of the pin with patches, on disk."""
        context = self.context(offline=offline)
        tree = context.repositories.tree(self.upstream.url, self.pin, moved={})
        tree = apply_all(context, tree, patches)
        target = self.folder / f"tree-{self.count}"
        context.scratch.export(tree, target)
        return target

    def file(self, text: str | bytes, **options: Any) -> PlannedPatch:
        content = text.encode() if isinstance(text, str) else text
        patch = FilePatch(file="x.patch", why="a test", **options)
        return PlannedPatch(patch, content=content)

    def pull(self, base: str, head: str, **options: Any) -> PlannedPatch:
        patch = PullPatch(pull=1, base=base, head=head, why="a test", **options)
        return PlannedPatch(patch, self.upstream.url)

    def pick(self, after: str, to: str, **options: Any) -> PlannedPatch:
        patch = PickPatch(pick=Pick(after=after, to=to), why="a test", **options)
        return PlannedPatch(patch, self.upstream.url)

    def diff(self, **files: str | bytes | None) -> bytes:
        """The diff that a change of the pin's files makes."""
        self.upstream.git("checkout", "--quiet", "--detach", self.pin)
        commit = self.upstream.commit("change", **files)
        text = self.upstream.raw("diff", "--binary", self.pin, commit)
        self.upstream.git("checkout", "--quiet", "main")
        return text


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


# What applies


def test_a_file_is_applied(bench: Bench) -> None:
    patch = bench.diff(**{"a.c": numbered(40, line_20="twenty"), "new.c": "new\n"})
    tree = bench.apply(bench.file(patch))
    assert (tree / "a.c").read_text() == numbered(40, line_20="twenty")
    assert (tree / "new.c").read_text() == "new\n"


def test_a_plain_unified_diff_without_gits_headers_is_applied(bench: Bench) -> None:
    text = "--- a/b.c\t2026-01-01\n+++ b/b.c\t2026-01-02\n@@ -1 +1,2 @@\n b\n+c\n"
    assert (bench.apply(bench.file(text)) / "b.c").read_text() == "b\nc\n"


def test_a_pull_request_is_the_diff_of_its_two_commits(bench: Bench) -> None:
    bench.upstream.commit("two", **{"b.c": "b\n2\n"})
    base = bench.upstream.head()
    head = bench.upstream.pull(
        1, {"a.c": numbered(40, line_5="five")}, {"a.c": numbered(40, line_5="5", line_9="nine")}
    )
    tree = bench.apply(bench.pull(base, head))
    assert (tree / "a.c").read_text() == numbered(40, line_5="5", line_9="nine")
    assert (tree / "b.c").read_text() == "b\n"  # what the base has beyond the pin does not come


def test_a_range_of_commits_is_picked_in_order(bench: Bench) -> None:
    first = bench.upstream.commit("first", **{"a.c": numbered(40, line_5="five")})
    bench.upstream.commit("second", **{"a.c": numbered(40, line_5="five!", line_9="nine")})
    last = bench.upstream.commit("third", **{"c.c": "c\n"})
    tree = bench.apply(bench.pick(bench.pin, last))
    assert (tree / "a.c").read_text() == numbered(40, line_5="five!", line_9="nine")
    with pytest.raises(PatchError, match=r"commit \w+ \(second\) does not apply"):
        bench.apply(bench.pick(first, last))


def test_patches_stand_on_each_other(bench: Bench) -> None:
    one = bench.upstream.commit("one", **{"a.c": numbered(40, line_20="A")})
    two = bench.upstream.commit("two", **{"a.c": numbered(40, line_20="B")})
    patches = [bench.pull(bench.pin, one), bench.pull(one, two)]
    assert "\nB\n" in (bench.apply(*patches) / "a.c").read_text()
    with pytest.raises(PatchError):
        bench.apply(*reversed(patches))


def test_lines_that_moved_are_found_and_said(bench: Bench) -> None:
    patch = bench.diff(**{"a.c": numbered(40, line_30="thirty")})
    bench.pin = bench.upstream.commit("longer", **{"a.c": "x\n" * 7 + numbered(40)})
    tree = bench.apply(bench.file(patch))
    assert (tree / "a.c").read_text() == "x\n" * 7 + numbered(40, line_30="thirty")
    assert "file x.patch: hunk 1 of a.c applies +7 lines away" in bench.said


def test_lines_that_moved_and_stand_twice_are_not_guessed(bench: Bench) -> None:
    block = numbered(9)
    bench.pin = bench.upstream.commit("block", **{"a.c": block})
    patch = bench.diff(**{"a.c": block.replace("line 5", "five")})
    bench.pin = bench.upstream.commit("twice", **{"a.c": "top\n" * 6 + block + "mid\n" + block})
    with pytest.raises(PatchError, match="does not apply") as caught:
        bench.apply(bench.file(patch))
    assert "its lines occur in 2 places" in caught.value.why


def test_added_files_are_installed_as_the_project_that_the_recipe_names(bench: Bench) -> None:
    other = Upstream(bench.folder / "other")
    other.write("plugin/genesis_shaped/__init__.py", "def register():\n    return 'live'\n")
    other.write("plugin/genesis_shaped/a.py", "A = 1\n")
    commit = other.record("one")
    points = {"vllm.general_plugins": {"shaped": "genesis_shaped:register"}}
    about = {"name": "Genesis-Shaped.plugin", "version": "7.0.0.dev0", "entry_points": points}
    where = {"path": "plugin/genesis_shaped", "to": "genesis_shaped"}
    add = Add.model_validate({"git": other.url, "commit": commit, "distribution": about} | where)
    tree = bench.apply(PlannedPatch(AddPatch(add=add, why="a test"), other.url))
    (found,) = importlib.metadata.distributions(path=[str(tree)])
    assert (found.name, found.version) == ("Genesis-Shaped.plugin", "7.0.0.dev0")
    assert [(p.group, p.name, p.value) for p in found.entry_points] == [
        ("vllm.general_plugins", "shaped", "genesis_shaped:register")
    ]
    # What pip would take away again is all that was added, each file with its digest.
    recorded = {str(path): path.hash for path in found.files or []}
    there = {str(path.relative_to(tree)) for path in tree.rglob("*") if path.is_file()}
    assert there - set(recorded) == {"a.c", "b.c"}
    for name, digest in recorded.items():
        content = hashlib.sha256((tree / name).read_bytes()).digest()
        expected = base64.urlsafe_b64encode(content).decode().rstrip("=")
        assert name.endswith("RECORD") if digest is None else digest.value == expected


def test_fuzz_and_three_way_only_where_the_recipe_allows_it(bench: Bench) -> None:
    head = bench.upstream.pull(1, {"a.c": numbered(40, line_20="twenty")})
    base = bench.pin
    bench.pin = bench.upstream.commit("near", **{"a.c": numbered(40, line_17="changed")})
    with pytest.raises(PatchError, match="does not apply"):
        bench.apply(bench.pull(base, head))
    for options in ({"fuzz": 2}, {"three_way": True}):
        tree = bench.apply(bench.pull(base, head, **options))
        assert (tree / "a.c").read_text() == numbered(40, line_17="changed", line_20="twenty")


def test_hunks_of_files_that_the_target_lacks_are_left_out_and_named(bench: Bench) -> None:
    base = bench.upstream.commit("tests", **{"tests__t.c": "t\n", "docs__d.md": "d\n"})
    head = bench.upstream.pull(
        1, {"b.c": "b\nc\n", "tests/t.c": "t\nt\n", "docs/d.md": "e\n", "docs/deep/f.md": "f\n"}
    )
    with pytest.raises(PatchError, match="does not apply") as caught:
        bench.apply(bench.pull(base, head))
    assert "docs/d.md: does not exist" in caught.value.why
    tree = bench.apply(bench.pull(base, head, leave_out=["tests/*", "docs/*"]))
    assert sorted(path.name for path in tree.iterdir()) == ["a.c", "b.c"]
    said = "pull 1: left out by leave_out: docs/d.md, docs/deep/f.md, tests/t.c"
    assert said in bench.said


def test_a_binary_change_of_a_pull_request_is_exact(bench: Bench) -> None:
    base = bench.upstream.commit("bin", **{"x.bin": bytes(range(256))})
    head = bench.upstream.pull(1, {"b.c": "b2\n"})
    bench.upstream.git("checkout", "--quiet", head)
    head = bench.upstream.commit("bin", **{"x.bin": bytes(reversed(range(256)))})
    bench.upstream.git("checkout", "--quiet", "main")
    bench.pin = base
    tree = bench.apply(bench.pull(base, head))
    assert (tree / "x.bin").read_bytes() == bytes(reversed(range(256)))
    bench.pin = bench.upstream.commit("other", **{"x.bin": b"\0other"})
    with pytest.raises(PatchError) as caught:
        bench.apply(bench.pull(base, head))
    assert "x.bin: is another binary file than the patch was made for" in caught.value.why


def test_crlf_files_are_patched_byte_for_byte(bench: Bench) -> None:
    text = numbered(9).replace("\n", "\r\n").encode()
    bench.pin = bench.upstream.commit("crlf", **{"w.txt": text, ".gitattributes": "* text=auto\n"})
    bench.upstream.git("rm", "--quiet", "--cached", "-r", ".")
    bench.upstream.write(".gitattributes", "* -text\n")
    bench.pin = bench.upstream.record("as it is")
    patch = bench.diff(**{"w.txt": text.replace(b"line 5\r", b"five\r")})
    tree = bench.apply(bench.file(patch))
    assert (tree / "w.txt").read_bytes() == text.replace(b"line 5\r", b"five\r")
    with pytest.raises(PatchError) as caught:
        bench.apply(bench.file(patch.replace(b"\r\n", b"\n")))
    assert "w.txt, hunk 1: the line ends differ (CRLF or LF)" in caught.value.why


def test_modes_renames_deletions_and_odd_names_come_through(bench: Bench) -> None:
    name = 'a "quoted" näme.c'
    bench.pin = bench.upstream.commit("odd", **{name: "1\n", "gone.c": "g\n", "old.c": "o\n" * 9})
    bench.upstream.git("checkout", "--quiet", "--detach")
    bench.upstream.git("mv", "old.c", "moved.c")
    (bench.upstream.folder / "b.c").chmod(0o755)
    commit = bench.upstream.commit("change", **{name: "2\n", "gone.c": None})
    patch = bench.upstream.raw("diff", "-M", bench.pin, commit)
    bench.upstream.git("checkout", "--quiet", "main")
    tree = bench.apply(bench.file(patch))
    assert sorted(path.name for path in tree.iterdir()) == [name, "a.c", "b.c", "moved.c"]
    assert (tree / "b.c").stat().st_mode & 0o111
    assert (tree / name).read_text() == "2\n"


def test_a_warm_mirror_serves_patches_offline(bench: Bench) -> None:
    head = bench.upstream.pull(1, {"b.c": "b2\n"})
    picked = bench.upstream.commit("pick", **{"a.c": numbered(40, line_3="three")})
    patches = [bench.pull(bench.pin, head), bench.pick(bench.pin, picked)]
    with pytest.raises(FetchError, match="not mirrored"):
        bench.apply(*patches, offline=True)
    bench.apply(*patches)
    bench.upstream.folder.rename(bench.folder / "gone")
    assert (bench.apply(*patches, offline=True) / "b.c").read_text() == "b2\n"


# What does not


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


# The parser, against git's own reading


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
