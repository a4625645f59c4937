"""The commands about sources and patches, on real repositories, as a user runs them."""

from __future__ import annotations

import hashlib
import json
import threading
import time
import tomllib
from collections import Counter
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from builder.tools.web import retry
from builder.upstream import track
from support.commands import Builder
from support.indexes import Index, served, wheel
from support.upstreams import Upstream, numbered, smart_http

RECIPE = """\
# An engine of ours.
engine  = "eng"
version = "{version}"
summary = "an engine"   # short
license = "MIT"
family  = "llama-cpp"
base    = "cuda-13.0"

[source]
git    = "{url}"
ref    = "{ref}"       # for people
commit = "{commit}"    # decides

[track]
tag = "v*"

[cuda]
arch = ["120"]

[llama]
build_number = {number}   # counted

[[cmake]]
targets = ["llama-server"]
{patches}
[image]
repository = "eng"
tags       = ["{version}", "stays"]

[[probe]]
option = "--x"
"""


class Farm:
    """A catalog with one engine, the engine's upstream, and the command line."""

    def __init__(self, catalog: Path, folder: Path, builder: Builder) -> None:
        self.catalog = catalog
        self.recipes = catalog / "recipes"
        self.builder = builder
        self.upstream = Upstream(folder / "served" / "eng")
        self.url = self.upstream.url
        files = {"a.c": numbered(40), "b.c": "b\n", "CMakeLists.txt": "x\n"}
        self.pin = self.upstream.commit("one", **files)
        self.upstream.git("tag", "v0.1.0")

    def write(self, patches: str = "", **other: Any) -> Path:
        file = self.recipes / f"eng-{other.get('version', '0.1.0')}.toml"
        values = {
            "version": "0.1.0",
            "url": self.url,
            "ref": "v0.1.0",
            "commit": self.pin,
            "number": self.upstream.git("rev-list", "--count", self.pin),
            "patches": patches,
        }
        file.write_text(RECIPE.format(**(values | other)))
        return file

    def run(self, *arguments: str, status: int = 0) -> str:
        done = self.builder(*arguments, "--catalog", self.catalog)
        assert done.returncode == status, done.stderr + done.stdout
        assert "Traceback" not in done.stderr
        self.said = done.stderr
        return done.stdout

    def json(self, *arguments: str, status: int = 0) -> Any:
        return json.loads(self.run(*arguments, "--json", status=status))

    def pull(self, number: int, **files: str) -> str:
        head = self.upstream.pull(number, files, base=self.pin)
        return (
            f'\n[[patch]]   # needed\npull = {number}\nbase = "{self.pin}"\nhead = "{head}"\n'
            'why  = "it breaks without"   # truly\n'
        )


@pytest.fixture
def farm(catalog: Path, tmp_path: Path, builder: Builder, monkeypatch: pytest.MonkeyPatch) -> Farm:
    monkeypatch.setenv("BUILDER_CACHE_DIR", str(tmp_path / "cache"))
    return Farm(catalog, tmp_path, builder)


# patches


def states(findings: Any) -> dict[str, str]:
    return {finding["target"]: finding["state"] for finding in findings}


def test_the_doctor_tells_of_the_pin_of_upstream_and_of_any_ref(farm: Farm) -> None:
    farm.write(farm.pull(6, **{"a.c": numbered(40, line_20="twenty")}))
    farm.upstream.commit("longer", **{"a.c": "x\n" + numbered(40)})
    farm.upstream.git("tag", "v0.2.0")
    farm.upstream.commit("other words", **{"a.c": "x\n" + numbered(40, line_19="changed here")})
    changer = farm.upstream.head()
    farm.upstream.commit("beside", **{"b.c": "bb\n"})
    findings = farm.json("patch", "check", "--against", "main", "--against", changer)
    assert states(findings) == {
        "pin": "applies",
        "v0.2.0": "offset",
        "main": "conflicts",
        changer: "conflicts",
    }
    by_target = {finding["target"]: finding for finding in findings}
    assert by_target["v0.2.0"]["details"] == ["a.c, hunk 1: +1 lines"]
    (conflict,) = by_target["main"]["details"]
    assert conflict.splitlines() == [
        "a.c, hunk 1: the lines differ, from line 18",
        "  - line 19",
        "  + changed here",
    ]
    (named,) = by_target["main"]["commits"]
    assert named.startswith(changer[:7])
    assert named.endswith("other words")
    text = farm.run("patch", "check", "eng", "--against", "main")
    assert "the lines that it expects have changed" in text
    assert f"changed by {named}" in text


def test_what_is_asked_for_is_shown_by_the_name_that_was_given(farm: Farm) -> None:
    farm.write(farm.pull(6, **{"a.c": numbered(40, line_20="twenty")}))
    between = farm.upstream.commit("two", **{"b.c": "bb\n"})
    newest = farm.upstream.commit("three", **{"b.c": "bbb\n"})
    farm.upstream.git("tag", "-a", "-m", "x", "v0.2.0")
    asked = ("main", "v0.2.0", between[:9], between, farm.pin[:7])
    findings = farm.json("patch", "check", *(f"--against={ref}" for ref in asked))
    assert [(f["target"], f["commit"]) for f in findings] == [
        ("pin", farm.pin),
        ("v0.2.0", newest),
        ("main", newest),
        (between[:9], between),
        (between, between),
        (farm.pin[:7], farm.pin),
    ]
    farm.run("patch", "check", "--against", between[:6], status=5)
    assert f"no known commit {between[:6]}" in farm.said
    farm.run("patch", "check", "--against", "0" * 9, status=5)
    farm.run("pin", "update", "eng", "--to", between[:8])
    assert between in (farm.recipes / f"eng-{between[:7]}.toml").read_text()


def test_an_abbreviation_of_several_commits_is_refused(farm: Farm) -> None:
    farm.write(farm.pull(6, **{"a.c": numbered(40, line_20="twenty")}))
    tree = farm.upstream.git("rev-parse", "HEAD^{tree}")
    head = farm.upstream.git("rev-parse", "HEAD")
    # Two commits that begin alike: found by trying, 40,000 names of which 28 bits count.
    alike: dict[str, str] = {}
    for n in range(1 << 20):
        text = f"tree {tree}\nparent {head}\nauthor T <t@x> {n} +0000\n"
        text += f"committer T <t@x> {n} +0000\n\n.\n"
        name = hashlib.sha1(f"commit {len(text)}\0{text}".encode()).hexdigest()  # noqa: S324
        if name[:7] in alike:
            break
        alike[name[:7]] = text
    for index, content in enumerate((alike[name[:7]], text)):
        made = farm.upstream.hashed("commit", content)
        farm.upstream.git("tag", f"v0.{index + 2}.0", made)
    farm.run("patch", "check", "--against", name[:7], status=5)
    assert f"{name[:7]} is ambiguous" in farm.said
    assert name in farm.said
    assert states(farm.json("patch", "check", "--against", name[:8]))[name[:8]] == "applies"


def test_what_is_upstream_is_named_however_it_came_there(farm: Farm) -> None:
    for number, how in enumerate(("merge", "squash", "rebase"), 1):
        farm.upstream.git("checkout", "--quiet", "-B", "main", farm.pin)
        patch = farm.pull(number, **{"b.c": f"b\n{how} brought this\n"})
        head = farm.upstream.git("rev-parse", f"refs/pull/{number}/head")
        farm.upstream.commit("before", **{"a.c": numbered(40, line_1=how)})
        if how == "merge":
            farm.upstream.git("merge", "--quiet", "--no-ff", "-m", "merge it", head)
        elif how == "squash":
            farm.upstream.commit("squashed (#2)", **{"b.c": f"b\n{how} brought this\n"})
        else:
            farm.upstream.git("cherry-pick", head)
        brought = farm.upstream.head()
        farm.upstream.commit("behind", **{"a.c": numbered(40, line_2=how)})
        farm.upstream.git("tag", "-f", f"v0.{number + 1}.0")
        farm.write(patch)
        findings = farm.json("patch", "check")
        assert findings[1]["state"] == "upstream", how
        assert findings[1]["commits"][0].split()[0] == brought[:7], how


def test_what_is_gone_is_superseded_and_who_took_it_is_named(farm: Farm) -> None:
    farm.write(farm.pull(6, **{"b.c": "c\n"}))
    farm.upstream.commit("b is rewritten", **{"b.c": "another thing\n"})
    farm.upstream.git("tag", "v0.2.0")
    farm.upstream.commit("b is no more", **{"b.c": None})
    findings = farm.json("patch", "check", "--against", "main")
    assert states(findings) == {"pin": "applies", "v0.2.0": "superseded", "main": "absent"}
    assert findings[1]["commits"][0].endswith("b is rewritten")
    assert findings[2]["commits"][0].endswith("b is no more")


def test_a_patch_that_does_not_fit_its_own_pin_is_exit_11(farm: Farm) -> None:
    patch = farm.pull(6, **{"a.c": numbered(40, line_20="twenty")})
    farm.pin = farm.upstream.commit("it", **{"a.c": numbered(40, line_20="twenty")})
    farm.write(patch)
    farm.run("patch", "check", status=11)
    assert "eng-0.1.0: pull 6: upstream" in farm.said
    broken = patch.replace(farm.upstream.git("rev-parse", "refs/pull/6/head"), farm.pin)
    farm.write(broken.replace('base = "', f'base = "{"0" * 40}" #'))
    farm.run("patch", "check", status=11)
    assert "eng-0.1.0: pull 6: broken" in farm.said


def test_a_file_patch_is_tried_too_and_one_that_is_absent_has_its_line(farm: Farm) -> None:
    (farm.catalog / "patches").mkdir()
    text = "--- a/b.c\n+++ b/b.c\n@@ -1 +1 @@\n-b\n+c\n"
    (farm.catalog / "patches" / "b.patch").write_text(text)
    file = farm.write('\n[[patch]]\nfile = "b.patch"\nwhy = "x"\n')
    assert states(farm.json("patch", "check")) == {"pin": "applies"}
    (farm.catalog / "patches" / "b.patch").unlink()
    farm.run("patch", "check", status=3)
    line = file.read_text().splitlines().index('file = "b.patch"') + 1
    assert f"{file}:{line}: patch.0.file: cannot read" in farm.said


def test_a_warm_mirror_answers_offline(farm: Farm) -> None:
    farm.write(farm.pull(6, **{"a.c": numbered(40, line_20="twenty")}))
    farm.upstream.commit("other", **{"a.c": numbered(40, line_19="changed")})
    farm.upstream.git("tag", "v0.2.0")
    farm.run("patch", "check", "--offline", status=5)
    assert "is not mirrored" in farm.said
    before = farm.json("patch", "check")
    farm.upstream.folder.rename(farm.upstream.folder.with_name("gone"))
    assert farm.json("patch", "check", "--offline") == before
    farm.run("patch", "check", status=5)


def test_a_script_without_an_engine_is_untried_and_no_failure(
    farm: Farm, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DOCKER_HOST", "unix:///nonexistent")
    commit = farm.upstream.head()
    script = f'script = {{ git = "{farm.url}", commit = "{commit}", path = "a.c" }}'
    farm.write(f'\n[[patch]]\nwhy = "x"\n{script}\n' + farm.pull(6, **{"b.c": "c\n"}))
    findings = farm.json("patch", "check")
    assert [(f["target"], f["state"]) for f in findings] == [("pin", "untried"), ("pin", "applies")]


def test_one_upstream_that_is_away_does_not_stop_the_others(farm: Farm, tmp_path: Path) -> None:
    other = Upstream(tmp_path / "other")
    pin = other.commit("one", **{"a.c": numbered(9)})
    file = farm.write(farm.pull(6, **{"b.c": "c\n"}))
    text = file.read_text().replace('engine  = "eng"', 'engine  = "gone"')
    text = text.replace(farm.url, other.url).replace(farm.pin, pin)
    (farm.recipes / "gone-0.1.0.toml").write_text(text)
    other.folder.rename(tmp_path / "away")
    for command in ("patch check", "patch drift", "pin outdated"):
        assert farm.json(*command.split(), status=5), command
        assert f"{command}: one recipe failed" in farm.said
        assert "gone-0.1.0: cannot fetch" in farm.said


def test_a_repository_that_is_broken_is_asked_once_for_all_recipes(farm: Farm) -> None:
    everything = ("patch check", "pin outdated", "pin verify")
    cases = ((503, retry.ATTEMPTS, everything[:1]), (404, 1, everything), (403, 2, everything))
    for status, tried, commands in cases:
        with smart_http(farm.upstream.folder.parent) as served:
            served.faults = [status] * 99
            farm.url = f"{served.url}/eng/.git"
            for version in ("0.1.0", "0.1.1", "0.1.2"):
                farm.write(farm.pull(6, **{"b.c": f"{version}\n"}), version=version)
            for command in commands:
                served.requests.clear()
                farm.run(*command.split(), status=5)
                # git itself asks twice where it is not let in
                assert len(served.requests) <= tried, (status, command)
                if command != "pin verify":
                    assert "3 recipes failed" in farm.said


def test_a_submodules_file_is_patched_and_diagnosed(farm: Farm, tmp_path: Path) -> None:
    part = Upstream(tmp_path / "served" / "part")
    part.commit("part", **{"p.h": "1\n2\n3\n"})
    farm.upstream.git("submodule", "--quiet", "add", part.url, "deps/part")
    farm.pin = farm.upstream.record("with part")
    farm.upstream.git("tag", "-f", "v0.2.0")
    (farm.catalog / "patches").mkdir()
    text = "--- a/deps/part/p.h\n+++ b/deps/part/p.h\n@@ -1,3 +1,3 @@\n 1\n-2\n+two\n 3\n"
    (farm.catalog / "patches" / "p.patch").write_text(text)
    farm.write('\n[[patch]]\nfile = "p.patch"\nwhy = "x"\n')
    part.commit("newer", **{"p.h": "1\nII\n3\n"})
    farm.upstream.git("-C", "deps/part", "pull", "--quiet", "origin", "main")
    farm.upstream.record("part moves")
    farm.upstream.git("tag", "v0.3.0")
    assert states(farm.json("patch", "check")) == {"pin": "applies", "v0.3.0": "superseded"}


# freeze and drift


def test_freeze_writes_base_and_head_and_keeps_the_file(farm: Farm) -> None:
    file = farm.write()
    before = file.read_text()
    base = farm.upstream.commit("main goes on", **{"b.c": "bb\n"})
    head = farm.upstream.pull(7, {"a.c": numbered(40, line_20="x")}, {"a.c": numbered(40)})
    head = farm.upstream.pull(7, {"a.c": numbered(40, line_20="twenty")}, base=base)
    farm.upstream.commit("and on", **{"b.c": "bbb\n"})
    out = farm.run("patch", "add", "eng", "--pull", "7", "--dry-run")
    assert f'+head = "{head}"' in out
    assert file.read_text() == before
    out = farm.run("patch", "add", "eng", "--pull", "7", "--reason", 'it "breaks"')
    assert "eng-0.1.0\tpull 7\tpin" in out
    after = file.read_text()
    assert after.startswith(before.rstrip("\n"))
    assert f'base = "{base}"' in after
    assert f'head = "{head}"' in after
    farm.run("list")

    moved = farm.upstream.pull(7, {"a.c": numbered(40, line_21="21")}, base=base)
    with_comment = after.replace(f'head = "{head}"', f'head = "{head}"   # as of today')
    file.write_text(with_comment)
    farm.run("patch", "add", "eng", "--pull", "7")
    assert file.read_text() == with_comment.replace(head, moved)


@pytest.mark.parametrize("ends", ["\n", "\r\n"])
@pytest.mark.parametrize("inline", [False, True])
def test_freeze_and_update_write_as_the_file_is_written(
    farm: Farm, inline: bool, ends: str
) -> None:
    file = farm.write(farm.pull(6, **{"b.c": "c\n"}))
    text = file.read_text()
    if inline:
        start, end = text.index("[[patch]]"), text.index("[image]")
        head = farm.upstream.git("rev-parse", "refs/pull/6/head")
        one = f'patch = [{{ pull = 6, base = "{farm.pin}", head = "{head}", why = "x" }}]   # all\n'
        text = text[:start] + text[end:]
        text = text.replace('base    = "cuda-13.0"\n', f'base    = "cuda-13.0"\n{one}')
    file.write_bytes(text.replace("\n", ends).encode())
    head = farm.upstream.pull(7, {"a.c": numbered(40, line_20="x")}, base=farm.pin)
    farm.run("patch", "add", "eng", "--pull", "7", "--reason", "y")
    content = file.read_bytes().decode()
    assert content.count(ends) == content.count("\n")
    assert [part in content for part in ("# all", "{ pull = 6", "[[patch]]")] == [
        *(inline, inline),
        not inline,
    ]
    assert len(farm.json("recipe", "explain", "eng")["patches"]) == 2
    assert f'head = "{head}"' in content
    farm.upstream.commit("two", **{"c.c": "c\n"})
    farm.run("pin", "update", "eng", "--to", "main")
    file = farm.recipes / f"eng-{farm.upstream.head()[:7]}.toml"
    content = file.read_bytes().decode()
    assert content.count(ends) == content.count("\n")
    assert farm.upstream.head() in content


def test_freeze_finds_the_base_of_what_was_merged(farm: Farm) -> None:
    farm.write()
    base = farm.upstream.commit("before", **{"b.c": "bb\n"})
    head = farm.upstream.pull(7, {"a.c": numbered(40, line_20="twenty")}, base=base)
    farm.upstream.commit("beside", **{"b.c": "bbb\n"})
    farm.upstream.git("merge", "--quiet", "--no-ff", "-m", "merge it", head)
    farm.upstream.commit("later", **{"b.c": "bbbb\n"})
    out = farm.run("patch", "add", "eng", "--pull", "7", "--dry-run")
    assert f'+base = "{base}"' in out


def test_freeze_says_what_is_not_there(farm: Farm) -> None:
    file = farm.write()
    before = file.read_text()
    farm.run("patch", "add", "eng", "--pull", "99", status=5)
    assert "has no pull request 99" in farm.said
    farm.upstream.pull(7, {"b.c": "c\n"})
    farm.run("patch", "add", "eng", "--pull", "7", "--onto", "nowhere", status=5)
    farm.run("patch", "add", "eng", "--pull", "7", "--repository", "ext::sh -c id", status=3)
    farm.run("patch", "add", "eng", "--pull", "7", "--onto", "-x", status=3)
    farm.run("patch", "add", "eng", "--pull", "0", status=2)
    assert file.read_text() == before


class Api(BaseHTTPRequestHandler):
    """GitHub's API for one pull request, as its documentation has it."""

    answers: dict[str, tuple[int, Any]]

    def do_GET(self) -> None:
        status, body = self.answers.get(self.path, (404, {"message": "Not Found"}))
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def api(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, tuple[int, Any]]]:
    answers: dict[str, tuple[int, Any]] = {}
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Own", (Api,), {"answers": answers}))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setenv("BUILDER_GITHUB_API", f"http://127.0.0.1:{server.server_port}")
    yield answers
    server.shutdown()
    server.server_close()


def test_drift_tells_what_became_of_a_pull_request(farm: Farm) -> None:
    patch = farm.pull(6, **{"a.c": numbered(40, line_20="twenty")})
    farm.write(patch)
    (same,) = farm.json("patch", "drift")
    assert (same["state"], same["changes"]) == ("unmoved", "")

    moved = farm.upstream.pull(6, {"a.c": numbered(40, line_20="20!")}, base=farm.pin)
    (drifted,) = farm.json("patch", "drift")
    assert (drifted["state"], drifted["head"]) == ("moved", moved)
    assert "-+twenty" in drifted["changes"].replace(" ", "")
    assert "++20!" in drifted["changes"].replace(" ", "")
    assert "pull 6 changed since it was added" in farm.run("patch", "drift", "eng")

    farm.upstream.git("update-ref", "-d", "refs/pull/6/head")
    assert farm.json("patch", "drift")[0]["state"] == "gone"

    squashed = farm.upstream.commit("squashed", **{"a.c": numbered(40, line_20="twenty")})
    farm.upstream.git("tag", "v0.2.0")
    (merged,) = farm.json("patch", "drift")
    assert merged["state"] == "merged"
    assert merged["merged"].startswith(squashed[:7])


@pytest.mark.parametrize("how", ["merge", "squash", "fast-forward"])
def test_drift_and_freeze_know_what_was_merged_and_touched_again(farm: Farm, how: str) -> None:
    farm.write(farm.pull(6, **{"a.c": numbered(40, line_20="twenty")}))
    head = farm.upstream.git("rev-parse", "refs/pull/6/head")
    if how == "squash":
        farm.upstream.commit("Twenty (#6)", **{"a.c": numbered(40, line_20="twenty")})
    else:
        ways = {"merge": ("--no-ff", "-m", "merge 6"), "fast-forward": ("--ff-only",)}
        farm.upstream.git("merge", "--quiet", *ways[how], head)
    by = farm.upstream.head()
    # No tag has it, main has it: and its line is another one again.
    later = farm.upstream.commit("touched", **{"a.c": numbered(40, line_20="XX", line_19="XIX")})
    (merged,) = farm.json("patch", "drift")
    assert merged["state"] == "merged"
    assert merged["merged"].startswith(by[:7])
    before = farm.write("", commit=later).read_text()
    farm.run("patch", "add", "eng", "--pull", "6", status=11)
    assert "the pin of eng-0.1.0 already contains pull request 6" in farm.said
    assert by[:7] in farm.said
    assert farm.write("", commit=later).read_text() == before
    assert farm.json("patch", "drift") == []


def test_drift_adds_what_github_knows(
    farm: Farm, api: dict[str, tuple[int, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GIT_CONFIG_COUNT", "1")
    monkeypatch.setenv("GIT_CONFIG_KEY_0", f"url.file://{farm.upstream.folder}.insteadOf")
    monkeypatch.setenv("GIT_CONFIG_VALUE_0", "https://github.com/o/eng")
    farm.url = "https://github.com/o/eng"
    farm.write(farm.pull(6, **{"b.c": "c\n"}))
    path = "/repos/o/eng/pulls/6"
    told: dict[str, Any] = {
        "title": "Mend b",
        "state": "closed",
        "merged_at": None,
        "merge_commit_sha": None,
        "base": {"ref": "main"},
    }
    api[path] = (200, told)
    assert farm.json("patch", "drift")[0]["github"] == "closed: Mend b"
    api[path] = (
        200,
        told | {"merged_at": "2026-11-01T00:00:00Z", "merge_commit_sha": "1" * 40},
    )
    assert farm.json("patch", "drift")[0]["github"] == "merged 2026-11-01 as 111111111: Mend b"
    for status, body in ((403, {"message": "rate limit"}), (200, ["nonsense"]), (500, None)):
        api[path] = (status, body)
        assert farm.json("patch", "drift")[0]["github"] == ""


# update and outdated


def test_numbers_of_a_tag_count_as_numbers() -> None:
    nines = "9" * 5000  # more digits than Python reads
    series = [
        ["b10018-1.0.0", "b10018-1.0.2", "b10018-1.0.10", f"b10018-1.0.{nines}", "b10019-1.0.0"],
        ["b10018-1.0.2-rc2", "b10018-1.0.2-rc10", "b10018-1.0.2"],
        ["v0.9.9", "v0.10.0-rc1", "v0.10.0", "v0.10.0-1", "v0.10.1"],
    ]
    for tags in series:
        newest_first = [*reversed(tags)]
        assert sorted(newest_first, key=track.version_order) == tags


def test_update_moves_the_pin_and_what_follows_from_it(farm: Farm) -> None:
    file = farm.write(farm.pull(6, **{"a.c": numbered(40, line_20="twenty")}))
    before = file.read_text()
    farm.upstream.commit("two", **{"b.c": "bb\n"})
    new = farm.upstream.commit("three", **{"b.c": "bbb\n"})
    for tag in ("v0.2.0", "v0.10.0-rc1", "v0.9.9", "other"):
        farm.upstream.git("tag", "-a", "-m", "x", tag, new)
    farm.upstream.git("tag", "-a", "-m", "x", "v0.10.0", new)
    out = farm.run("pin", "update", "eng", "--dry-run")
    assert file.read_text() == before
    assert f'+commit = "{new}"    # decides' in out
    assert "eng-0.10.0\tpull 6\tpin" in out
    farm.run("pin", "update", "eng")
    assert not file.exists()
    after = (farm.recipes / "eng-0.10.0.toml").read_text()
    expected = before.replace(f'commit = "{farm.pin}"', f'commit = "{new}"')
    expected = expected.replace('ref    = "v0.1.0"', 'ref    = "v0.10.0"')
    expected = expected.replace("build_number = 1 ", "build_number = 3 ")
    assert after == expected.replace('"0.1.0"', '"0.10.0"')
    assert "eng-0.10.0.toml is up to date" in (farm.run("pin", "update", "eng"), farm.said)[1]


def test_update_does_not_write_a_recipe_whose_patches_no_longer_fit(farm: Farm) -> None:
    patches = farm.pull(6, **{"a.c": numbered(40, line_20="twenty")})
    file = farm.write(patches, version="nightly")
    before = file.read_text()
    new = farm.upstream.commit("other", **{"a.c": numbered(40, line_19="19!", line_20="20!")})
    for option in ((), ("--dry-run",), ("--dry-run", "--force")):
        out = farm.run("pin", "update", "eng", "--to", "main", *option, status=11)
        assert "eng-nightly\tpull 6\tpin" in out
        assert "1 of the patches do not apply to the new pin: nothing was written" in farm.said
        assert file.read_text() == before
    farm.run("pin", "update", "eng", "--to", "main", "--force", status=11)
    assert "eng-nightly.toml was written anyway" in farm.said
    text = file.read_text()
    assert f'commit = "{new}"' in text
    assert 'version = "nightly"' in text
    for ref in ("nowhere", "--upload-pack=x", "a b", "x..y", "@{-1}", "x\n"):
        farm.run("pin", "update", "eng", "--to", ref, status=5 if ref == "nowhere" else 3)


def test_update_tells_what_the_recipe_names_and_upstream_no_longer_has(
    farm: Farm, tmp_path: Path
) -> None:
    part = Upstream(tmp_path / "served" / "part")
    part.commit("part", **{"CMakeLists.txt": "1\n"})
    page = {"tools/server/public/index.html.gz": "page\n", "sub/CMakeLists.txt": "x\n"}
    farm.upstream.commit("all", **page)
    farm.upstream.git("submodule", "--quiet", "add", part.url, "deps/part")
    farm.pin = farm.upstream.record("with part")
    file = farm.write(farm.pull(6, **{"a.c": numbered(40, line_20="20!")}))
    text = file.read_text().replace("build_number = 3 ", "ui = true\nbuild_number = 3 ")
    text = text.replace(
        'commit = "', f'submodule = {{ "deps/part" = "{part.url}" }}\ncommit = "', 1
    )
    for source in ("sub", "deps/part"):
        text = text.replace(
            "[[cmake]]", f'[[cmake]]\nsource = "{source}"\ntargets = ["x"]\n\n[[cmake]]', 1
        )
    file.write_text(text)
    farm.upstream.commit("good", **{"b.c": "bb\n"})
    farm.run("pin", "update", "eng", "--to", "main", "--dry-run")

    gone = dict.fromkeys(page)
    farm.upstream.commit("gone", **gone, **{"a.c": numbered(40, line_20="20?")})
    farm.run("pin", "update", "eng", "--to", "main", status=11)
    said = farm.said
    farm.upstream.commit("back", **{"a.c": numbered(40)})
    farm.run("pin", "update", "eng", "--to", "main", status=3)
    assert "the new source lacks something that eng-0.1.0 names: nothing was written" not in said
    for text in (said, farm.said):
        assert "source: the source has no sub/CMakeLists.txt" in text
        assert "llama.ui: the source has no built web page" in text
    assert "deps/part" not in said

    farm.upstream.git("rm", "--quiet", "deps/part")
    new = farm.upstream.record("without part")
    farm.run("pin", "update", "eng", "--to", "main", status=3)
    line = text_line(file, "submodule = ")
    assert f"{file}:{line}: source.submodule.deps/part: the source has no submodule" in farm.said
    assert "nothing was written" in farm.said
    assert new not in file.read_text()
    farm.run("pin", "update", "eng", "--to", "main", "--force", status=3)
    assert new in (farm.recipes / f"eng-{new[:7]}.toml").read_text()


def text_line(file: Path, start: str) -> int:
    """The number of the first line that begins so."""
    return [line.startswith(start) for line in file.read_text().splitlines()].index(True) + 1


def test_a_name_that_moves_with_upstream_stays(farm: Farm) -> None:
    file = farm.write(version="main", ref="main")
    farm.upstream.commit("two", **{"b.c": "bb\n"})
    farm.upstream.git("tag", "v0.2.0")
    farm.run("pin", "update", "eng")
    text = file.read_text()
    assert 'version = "main"' in text
    assert 'tags       = ["main", "stays"]' in text
    assert 'ref    = "v0.2.0"' in text


@pytest.mark.parametrize(
    ("version", "named"),
    [("b1", "b2"), ("{commit:.9}", "{new:.9}"), ("{commit:.6}", "{commit:.6}")],
)
def test_a_version_names_the_pin_in_several_ways(farm: Farm, version: str, named: str) -> None:
    old = farm.pin
    farm.write(version=version.format(commit=old))
    new = farm.upstream.commit("two", **{"b.c": "bb\n"})
    farm.run("pin", "update", "eng", "--to", new)
    name = named.format(commit=old, new=new)
    text = (farm.recipes / f"eng-{name}.toml").read_text()
    assert f'tags       = ["{name}", "stays"]' in text
    assert "ref " not in text  # a commit has no name of its own


def test_update_does_not_write_over_another_recipe(farm: Farm) -> None:
    file = farm.write()
    farm.upstream.commit("two", **{"b.c": "bb\n"})
    farm.upstream.git("tag", "v0.2.0")
    other = farm.write(version="0.2.0")
    text = other.read_text()
    farm.run("pin", "update", "eng-0.1.0", status=3)
    assert "which exists already" in farm.said
    assert file.exists()
    assert other.read_text() == text


def test_outdated_counts_commits_and_days(farm: Farm) -> None:
    farm.write()
    assert farm.json("pin", "outdated")[0]["ahead"] == 0
    farm.upstream.commit("two", **{"b.c": "bb\n"})
    farm.upstream.commit("three", **{"b.c": "bbb\n"})
    farm.upstream.git("tag", "v0.2.0")
    (lag,) = farm.json("pin", "outdated")
    assert (lag["ahead"], lag["since"], lag["rewritten"]) == (2, "2023-11-14", False)
    assert "2 commits ahead" in farm.run("pin", "outdated")
    # The history is rewritten: the pin is nobody's ancestor any more.
    farm.upstream.git("checkout", "--quiet", "--orphan", "fresh")
    farm.upstream.commit("all anew", **{"b.c": "new\n"})
    farm.upstream.git("tag", "v0.3.0")
    (lag,) = farm.json("pin", "outdated")
    assert lag["rewritten"]


def test_a_tag_of_thousands_of_digits_is_a_number_as_any_other(farm: Farm) -> None:
    farm.write()
    new = farm.upstream.commit("two", **{"b.c": "bb\n"})
    refs = "".join(f"{new} refs/tags/v{'1' * digits}\n" for digits in (4500, 4499))
    (farm.upstream.folder / ".git" / "packed-refs").write_text(refs)
    (lag,) = farm.json("pin", "outdated")
    assert lag["ahead"] == 1
    assert lag["target"]["name"] == "v" + "1" * 4500


WHEEL = """\
engine  = "eng"
version = "1.0"
summary = "of a wheel"
license = "MIT"
family  = "vllm-overlay"
base    = "vllm-openai-0.19.1"
source  = {{ pypi = "vllm", version = "1.0", sha256 = "{sha256}" }}   # kept
overlay = {{ package = "vllm", version = "1.0" }}
cuda    = {{ arch = ["120"] }}
image   = {{ repository = "eng", tags = ["1.0", "stays"] }}

[[patch]]
file = "x.patch"
why  = "of 1.0"

[[probe]]
run  = ["x"]
contains = ["vllm 1.0"]
"""


@pytest.fixture
def index(farm: Farm, monkeypatch: pytest.MonkeyPatch) -> Iterator[Index]:
    """An index with releases of vllm, the first of them the recipe's."""
    (farm.catalog / "patches").mkdir()
    text = "--- a/vllm/a.py\n+++ b/vllm/a.py\n@@ -4,3 +4,3 @@\n line 4\n-line 5\n+5\n line 6\n"
    (farm.catalog / "patches" / "x.patch").write_text(text)
    releases = {
        "1.0": numbered(9),
        "1.1": "line 0\n" + numbered(9),
        "1.10": numbered(9, line_4="other", line_5="words"),
        "1.2": numbered(9),
        "2.0rc1": numbered(9),
    }
    with served() as index:
        for day, (version, content) in enumerate(releases.items(), 1):
            made = wheel("vllm", version, {"vllm/a.py": content.encode(), "vllm/_C.so": b"x" * 999})
            about = {"upload-time": f"2026-01-{day:02}T00:00:00Z", "yanked": version == "1.2"}
            digest = index.put("vllm", version, made, **about)
            if version == "1.0":
                (farm.recipes / "eng-1.0.toml").write_text(WHEEL.format(sha256=digest))
        monkeypatch.setenv("PIP_INDEX_URL", f"{index.url}/simple")
        yield index


def test_the_doctor_reads_wheels_in_part_and_says_so(farm: Farm, index: Index) -> None:
    findings = farm.json("patch", "check", "--against", "1.1", "--against", "1.10")
    assert [(f["target"], f["state"]) for f in findings] == [
        ("pin", "applies"),
        ("1.10", findings[1]["state"]),
        ("1.1", "offset"),
    ]
    assert findings[1]["state"] not in {"applies", "offset"}
    assert not [*(farm.catalog.parent / "cache" / "pypi").glob("*")]
    index.asked.clear()
    out = farm.run("patch", "check", "--against", "1.1")
    assert not [path for path in index.asked if path.startswith("/files/")]
    for version in ("1.0", "1.1", "1.10"):
        assert f"eng-1.0: vllm {version} was read in part" in out


@pytest.mark.usefixtures("index")
def test_outdated_counts_releases_of_the_package_index(farm: Farm) -> None:
    (lag,) = farm.json("pin", "outdated")
    assert (lag["target"]["name"], lag["ahead"], lag["since"]) == ("1.10", 2, "2026-01-02")
    assert "eng-1.0\t1.10\t2 releases ahead\t2026-01-02" in farm.run("pin", "outdated")
    assert farm.json("pin", "outdated", "--offline") == []


def test_update_moves_a_release_and_tells_what_else_names_the_old_one(
    farm: Farm, index: Index
) -> None:
    file = farm.recipes / "eng-1.0.toml"
    before = file.read_text()
    farm.run("pin", "update", "eng", "--to", "1.10", status=11)
    assert file.read_text() == before
    farm.run("pin", "update", "eng", "--to", "1.1", status=3)
    assert f"{file}:{text_line(file, 'overlay')}: overlay.version: still names 1.0" in farm.said
    assert "probe.0.contains.0: still names 1.0" in farm.said
    assert "why" not in farm.said
    assert file.read_text() == before
    ready = before.replace('overlay = { package = "vllm", version = "1.0" }', "").replace(
        "vllm 1.0", "vllm"
    )
    file.write_text(ready)
    farm.run("pin", "update", "eng", "--to", "1.1")
    expected = ready.replace('version = "1.0"', 'version = "1.1"').replace('["1.0", ', '["1.1", ')
    digest = hashlib.sha256(index.files["vllm-1.1-py3-none-any.whl"]).hexdigest()
    old = hashlib.sha256(index.files["vllm-1.0-py3-none-any.whl"]).hexdigest()
    assert (farm.recipes / "eng-1.1.toml").read_text() == expected.replace(old, digest)
    assert not file.exists()
    farm.run("pin", "update", "eng", "--to", "7.0", status=5)
    assert "has no wheel of vllm 7.0" in farm.said


# verify-pins, mirror and offline


def test_verify_pins_names_what_is_gone(farm: Farm, tmp_path: Path) -> None:
    part = Upstream(tmp_path / "served" / "part")
    part.commit("part", **{"p.h": "1\n"})
    farm.upstream.git("submodule", "--quiet", "add", part.url, "deps/part")
    farm.pin = farm.upstream.record("with part")
    farm.write(farm.pull(6, **{"b.c": "c\n"}))
    pins = farm.json("pin", "verify")
    assert {pin["state"] for pin in pins} == {"ok"}
    kinds = [pin["kind"] for pin in pins if pin["recipe"] == "eng-0.1.0"]
    assert kinds == ["commit", "submodule", "pull"]  # the base of the request is the pin
    assert len([pin for pin in pins if pin["kind"] == "file"]) == 9  # the base's wheels
    # A pull request is closed, its branch deleted and collected; the submodule moves away.
    farm.upstream.git("update-ref", "-d", "refs/pull/6/head")
    farm.upstream.git("reflog", "expire", "--expire=now", "--all")
    farm.upstream.git("gc", "--quiet", "--prune=now")
    part.folder.rename(part.folder.with_name("renamed"))
    pins = farm.json("pin", "verify", "eng", status=5)
    states_of = {pin["kind"]: pin["state"] for pin in pins if pin["state"] != "ok"}
    assert states_of == {"submodule": "gone", "pull": "gone"}
    assert "2 of 12 pins are gone, 0 could not be checked" in farm.said
    # A server that does not answer says nothing of what it has.
    farm.write(url="http://127.0.0.1:9/eng")
    assert farm.json("pin", "verify", "eng", status=5)[0]["state"] == "unknown"


class SlowIndex(BaseHTTPRequestHandler):
    """A package index without projects, that counts how many questions wait at the same time."""

    waiting: Counter[str]

    def do_GET(self) -> None:
        self.waiting["now"] += 1
        self.waiting["most"] = max(self.waiting["most"], self.waiting["now"])
        time.sleep(0.4)
        self.waiting["now"] -= 1
        self.send_response(404)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


def test_several_pins_are_asked_for_at_once_and_told_in_their_order(
    farm: Farm, monkeypatch: pytest.MonkeyPatch
) -> None:
    farm.write()
    waiting: Counter[str] = Counter()
    handler = type("Own", (SlowIndex,), {"waiting": waiting})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.setenv("PIP_INDEX_URL", f"http://127.0.0.1:{server.server_port}/simple")
        pins = farm.json("pin", "verify", status=5)
        server.shutdown()
    assert 3 <= waiting["most"] <= 8
    wheels = tomllib.loads((farm.recipes / "bases" / "cuda-13.0.toml").read_text())["wheel"]
    names = [f"{wheel['name']} {wheel['version']}" for wheel in wheels]
    assert [pin["what"] for pin in pins if pin["kind"] == "file"] == names
    assert {pin["state"] for pin in pins if pin["kind"] == "file"} == {"gone"}


class SilentIndex(BaseHTTPRequestHandler):
    """A package index that closes every connection without an answer."""

    asked: set[str]

    def do_GET(self) -> None:
        self.asked.add(self.path)
        self.close_connection = True

    def log_message(self, *_: object) -> None:
        pass


def test_an_index_that_does_not_answer_is_asked_for_one_file(
    farm: Farm, monkeypatch: pytest.MonkeyPatch
) -> None:
    farm.write()
    asked: set[str] = set()
    handler = type("Own", (SilentIndex,), {"asked": asked})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.setenv("PIP_INDEX_URL", f"http://127.0.0.1:{server.server_port}/simple")
        pins = farm.json("pin", "verify", status=5)
        server.shutdown()
    files = [pin for pin in pins if pin["kind"] == "file"]
    assert (len(files), {pin["state"] for pin in files}) == (9, {"unknown"})
    assert len(asked) == 1
    assert sum("the package index does not answer" in pin["why"] for pin in files) == 8


@pytest.mark.network
def test_a_mirror_keeps_what_vanishes(
    farm: Farm, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from support.environment import SHARED_CACHE

    monkeypatch.setenv("BUILDER_CACHE_DIR", str(SHARED_CACHE))
    farm.write(farm.pull(6, **{"b.c": "c\n"}))
    out = farm.run("pin", "mirror")
    assert f"{farm.url} {farm.pin}" in out
    assert "pull 6 of" in out
    assert "cuda-13.0: nvidia-cuda-nvcc 13.0.88" in out
    farm.upstream.folder.rename(tmp_path / "gone")
    assert states(farm.json("patch", "check", "--offline"))["pin"] == "applies"
    farm.run("pin", "verify", "eng", status=5)
    farm.run("pin", "mirror", "eng", status=5)
    assert "eng-0.1.0: cannot fetch" in farm.said


def test_over_http_only_what_is_needed_is_fetched(farm: Farm) -> None:
    for n in range(30):
        farm.upstream.commit(f"{n}", **{"big.bin": bytes((n * i) % 251 for i in range(20_000))})
    farm.pin = farm.upstream.head()
    farm.upstream.git("tag", "v0.2.0")
    with smart_http(farm.upstream.folder.parent) as served:
        farm.url = f"{served.url}/eng/.git"
        farm.write(farm.pull(6, **{"b.c": "c\n"}))
        farm.run("patch", "check")
        assert served.sent < 100_000  # thirty versions of the big file are 500 kB
        asked = len(served.requests)
        farm.run("patch", "check", "--offline")
        assert len(served.requests) == asked


def test_explain_tells_who_decides_what(farm: Farm) -> None:
    farm.write(farm.pull(6, **{"b.c": "c\n"}))
    told = farm.json("recipe", "explain", "eng")
    (definitions,) = told["definitions"]
    origins = {each["name"]: each["from"] for each in definitions}
    assert origins["GGML_CUDA_NO_VMM"] == "family llama-cpp"
    assert origins["CMAKE_EXE_LINKER_FLAGS"] == "base cuda-13.0"
    assert origins["CMAKE_CUDA_ARCHITECTURES"] == "builder"
    assert told["patches"][0]["why"] == "it breaks without"
    text = farm.run("recipe", "explain", "eng")
    assert "Patch pull 6: it breaks without" in text
    assert "from family llama-cpp:" in text
