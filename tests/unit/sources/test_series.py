"""Patches that apply to a tree: exactly, moved, and with what the recipe allows."""

from __future__ import annotations

import base64
import hashlib
import importlib.metadata
import quopri
import re
from itertools import product

import pytest

from builder.core.errors import FetchError, PatchError
from builder.plan.inputs import PlannedPatch
from builder.recipes.patches import Add, AddPatch
from support.patch_bench import Bench
from support.upstreams import Upstream, numbered


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
    with pytest.raises(PatchError, match="is not applied") as caught:
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


def five(**lines: str) -> str:
    return numbered(40, **lines)


SERIES: dict[str, list[dict[str, str | bytes | None]]] = {
    "renames in a row": [{"b.c": None, "d.c": "b\n"}, {"d.c": None, "e.c": "b\n"}],
    "new, then deleted": [{"n.c": "1\n2\n"}, {"n.c": None, "b.c": "c\n"}],
    "changed, then deleted": [{"b.c": "c\n"}, {"b.c": None}],
    "new, then renamed": [{"n.c": "1\n2\n"}, {"n.c": None, "m.c": "1\n2\n"}],
    "three times": [{"a.c": five(line_5=x, line_30=x)} for x in ("a", "x == 3D", "c")],
    "binary, then text": [{"x.bin": bytes(range(256))}, {"b.c": "é = 1\n>From me\nFrom you\n"}],
}
FALSE_START = (
    "a subject\n\nFrom " + "a" * 40 + " Mon Sep 17 00:00:00 2001\nis no mail\n- nor a change"
)


def encoded(mailbox: bytes, how: str) -> bytes:
    """A mailbox whose mails are encoded, as mail servers do."""
    encode = {"base64": base64.encodebytes, "quoted-printable": quopri.encodestring}[how]
    mails = []
    for mail in re.split(rb"^(?=From [0-9a-f]{40} .*\nFrom: )", mailbox, flags=re.MULTILINE)[1:]:
        head, body = mail.split(b"\n\n", 1)
        head = re.sub(rb"\nContent-Transfer-Encoding: .*", b"", head)
        mails.append(head + f"\nContent-Transfer-Encoding: {how}\n\n".encode() + encode(body))
    return b"\n".join(mails)


@pytest.mark.parametrize(
    ("name", "form"),
    [
        *product(SERIES, ["mailbox", "git log -p"]),
        *product(["three times", "binary, then text"], ["base64", "quoted-printable", "CRLF"]),
        ("renames in a row", "cover letter"),
    ],
)
def test_a_series_becomes_what_its_last_commit_is(bench: Bench, name: str, form: str) -> None:
    upstream = bench.upstream
    upstream.git("checkout", "--quiet", "--detach", bench.pin)
    for changes in SERIES[name]:
        last = upstream.commit(FALSE_START if form != "git log -p" else "x\n\n- y", **changes)
    cover = ["--cover-letter"] if form == "cover letter" else []
    text = upstream.raw("format-patch", "--stdout", "-M", "--binary", *cover, bench.pin)
    if form == "git log -p":
        text = upstream.raw("log", "-p", "-M", "--binary", "--reverse", f"{bench.pin}..{last}")
    elif form == "CRLF":
        text = text.replace(b"\n", b"\r\n")
    elif form in {"base64", "quoted-printable"}:
        text = encoded(text, form)
    tree = bench.apply(bench.file(text))
    made = {path.name: path.read_bytes() for path in tree.iterdir()}
    there = [path for path in upstream.folder.iterdir() if path.is_file()]
    assert made == {path.name: path.read_bytes() for path in there}


def test_a_remark_above_the_first_mail_is_no_mail(bench: Bench) -> None:
    commit = bench.upstream.commit("two", **{"b.c": "two\n"})
    mail = bench.upstream.raw("format-patch", "--stdout", f"{bench.pin}..{commit}")
    tree = bench.apply(bench.file(b"# Pull request 7, without its tests\n\n" + mail))
    assert (tree / "b.c").read_text() == "two\n"
    with pytest.raises(PatchError, match="line 1 belongs to no file"):
        bench.apply(bench.file(b"@@ -1 +1 @@\n-b\n+c\n\n" + mail))


def test_each_mail_of_a_series_is_left_out_or_refused_by_itself(bench: Bench) -> None:
    bench.upstream.git("checkout", "--quiet", "--detach", bench.pin)
    bench.upstream.commit("rename", **{"b.c": None, "d.c": "b\n"})
    bench.upstream.commit("change", **{"a.c": five(line_5="five"), "näme.c": "new\n"})
    text = bench.upstream.raw("format-patch", "--stdout", "-M", bench.pin)
    tree = bench.apply(bench.file(text, leave_out=["b.c", "n*.c", "tests/*"]))
    assert sorted(path.name for path in tree.iterdir()) == ["a.c", "b.c"]
    assert "file x.patch: left out by leave_out: d.c, näme.c" in bench.said
    assert "file x.patch: leave_out names no file of it: tests/*" in bench.said
    with pytest.raises(PatchError) as caught:
        bench.apply(bench.file(text.replace(b"+new\n", b"+new\n+lost\n")))
    line = text[: text.index(b"+new\n")].count(b"\n") + 2
    assert caught.value.why == f"mail 2: line {line} belongs to no file of the diff: +lost"
    with pytest.raises(PatchError) as caught:
        bench.apply(bench.file(text[: text.index(b"diff --git a/a.c")]))
    assert caught.value.why == "mail 2: it contains no diff"


def test_a_result_that_the_diff_does_not_name_is_said(bench: Bench) -> None:
    """A mail client that wraps lines or strips blanks leaves a diff that fits."""
    patch = bench.diff(**{"a.c": five(line_5="five  "), "n.c": "a long line\n"})
    bench.apply(bench.file(patch))
    assert not [line for line in bench.said if "becomes another file" in line]
    bench.apply(bench.file(patch.replace(b"five  ", b"five").replace(b" line\n", b"\nline\n")))
    said = [line for line in bench.said if "becomes another file than the diff names" in line]
    assert [line.split(" ")[2] for line in said] == ["a.c", "n.c"]


def test_a_warm_mirror_serves_patches_offline(bench: Bench) -> None:
    head = bench.upstream.pull(1, {"b.c": "b2\n"})
    picked = bench.upstream.commit("pick", **{"a.c": numbered(40, line_3="three")})
    patches = [bench.pull(bench.pin, head), bench.pick(bench.pin, picked)]
    with pytest.raises(FetchError, match="not mirrored"):
        bench.apply(*patches, offline=True)
    bench.apply(*patches)
    bench.upstream.folder.rename(bench.folder / "gone")
    assert (bench.apply(*patches, offline=True) / "b.c").read_text() == "b2\n"


def enum(*names: str) -> str:
    return "".join(f"    {name},\n" for name in ("FIRST", *names, "LAST"))


@pytest.mark.parametrize("way", ["after one line", "twice", "a part", "a new file", "a range"])
def test_a_conflict_with_an_earlier_patch_of_the_recipe_names_it(bench: Bench, way: str) -> None:
    """Upstream did not change these lines: a search in its history would find nothing."""
    bench.pin = bench.upstream.commit("enum", **{"e.h": enum(), "far.c": numbered(9)})
    one: dict[str, str | bytes | None] = {"e.h": enum("ARCH_A")}
    other: dict[str, str | bytes | None] = {"e.h": enum("ARCH_B")}
    if way in {"twice", "a part"}:
        other = one
        one = one | ({"a.c": numbered(40, line_9="nine")} if way == "a part" else {})
    if way == "a new file":
        one, other = {"new.h": "a\n"}, {"new.h": "b\n"}
    first = bench.file(bench.diff(**one), "a.patch")
    between = bench.file(bench.diff(**{"far.c": numbered(9, line_3="three")}), "mid.patch")
    last = bench.file(bench.diff(**other), "b.patch")
    if way == "a range":
        bench.upstream.commit("beside", **{"z.c": "z\n"})
        last = bench.pick(bench.pin, bench.upstream.commit("two", **other))
        last = bench.pick(bench.pin, bench.upstream.head())
    bench.apply(last)
    with pytest.raises(PatchError) as caught:
        bench.apply(first, between, last)
    did = "makes this change already" if way in {"twice", "a part"} else "changed these lines"
    assert f"your earlier patch file a.patch {did}" in caught.value.what
    assert "mid.patch" not in str(caught.value)


def test_a_conflict_with_upstream_blames_no_patch_of_the_recipe(bench: Bench) -> None:
    late = bench.file(bench.diff(**{"a.c": numbered(40, line_20="twenty")}), "b.patch")
    bench.pin = bench.upstream.commit("two", **{"a.c": numbered(40, line_20="20")})
    near = bench.file(bench.diff(**{"a.c": numbered(40, line_20="20", line_22="22")}), "a.patch")
    with pytest.raises(PatchError, match="does not apply") as caught:
        bench.apply(near, late)
    assert "a.patch" not in str(caught.value)
