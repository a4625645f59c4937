"""`patch check` on real repositories, as a user runs it."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from builder.cli.pin import collected
from builder.sources.git import GitError
from support.farms import Farm, states
from support.upstreams import Upstream, numbered, smart_http


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
        "v0.2.0": "applies",
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
    assert "unknown whether upstream has it in other words: look, with `git show`" in text


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


def test_who_removed_the_lines_is_named(farm: Farm) -> None:
    farm.write(farm.pull(6, **{"b.c": "c\n"}))
    farm.upstream.commit("b is rewritten", **{"b.c": "another thing\n"})
    farm.upstream.git("tag", "v0.2.0")
    farm.upstream.commit("b is no more", **{"b.c": None})
    findings = farm.json("patch", "check", "--against", "main")
    assert states(findings) == {"pin": "applies", "v0.2.0": "conflicts", "main": "absent"}
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
    text = text.replace('repository = "eng"', 'repository = "gone"')
    (farm.recipes / "gone-0.1.0.toml").write_text(text)
    other.folder.rename(tmp_path / "away")
    for command in ("patch check", "pin outdated"):
        assert farm.json(*command.split(), status=5), command
        assert f"{command}: one recipe failed" in farm.said
        assert "gone-0.1.0: cannot fetch" in farm.said


def test_a_repository_that_is_broken_is_asked_once_for_all_recipes(farm: Farm) -> None:
    for status, tried in ((404, 1), (403, 2)):  # 503: see test_mirrors.py
        with smart_http(farm.upstream.folder.parent) as served:
            served.faults = [status] * 99
            farm.url = f"{served.url}/eng/.git"
            for version in ("0.1.0", "0.1.1", "0.1.2"):
                farm.write(farm.pull(6, **{"b.c": f"{version}\n"}), version=version)
            for command in ("patch check", "pin outdated"):
                served.requests.clear()
                farm.run(*command.split(), status=5)
                # git itself asks twice where it is not let in
                assert len(served.requests) <= tried, (status, command)
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
    assert states(farm.json("patch", "check")) == {"pin": "applies", "v0.3.0": "conflicts"}


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


@pytest.mark.usefixtures("index")
def test_the_doctor_reads_wheels_in_part_and_says_so(farm: Farm) -> None:
    findings = farm.json("patch", "check", "--against", "1.1", "--against", "1.10")
    assert [(f["target"], f["state"]) for f in findings] == [
        ("pin", "applies"),
        ("1.10", findings[1]["state"]),
        ("1.1", "applies"),
    ]
    assert findings[1]["state"] != "applies"
    assert not [*(farm.catalog.parent / "cache" / "pypi").glob("*")]
    out = farm.run("patch", "check", "--against", "1.1")
    for version in ("1.0", "1.1", "1.10"):
        assert f"eng-1.0: vllm {version} was read in part" in out


@pytest.mark.parametrize("how", ["merge", "squash", "fast-forward"])
def test_add_knows_what_was_merged_and_touched_again(farm: Farm, how: str) -> None:
    farm.write(farm.pull(6, **{"a.c": numbered(40, line_20="twenty")}))
    head = farm.upstream.git("rev-parse", "refs/pull/6/head")
    if how == "squash":
        farm.upstream.commit("Twenty (#6)", **{"a.c": numbered(40, line_20="twenty")})
    else:
        ways = {"merge": ("--no-ff", "-m", "merge 6"), "fast-forward": ("--ff-only",)}
        farm.upstream.git("merge", "--quiet", *ways[how], head)
    by = farm.upstream.head()
    later = farm.upstream.commit("touched", **{"a.c": numbered(40, line_20="XX", line_19="XIX")})
    before = farm.write("", commit=later).read_text()
    farm.run("patch", "add", "eng", "--pull", "6", status=11)
    assert "the pin of eng-0.1.0 already contains pull request 6" in farm.said
    assert by[:7] in farm.said
    assert farm.write("", commit=later).read_text() == before


def test_a_recipe_on_which_git_fails_does_not_hide_the_others() -> None:
    failures: list[str] = []
    with collected(failures, "eng"):
        raise GitError("ls-tree", 128, "fatal: not a tree object")
    (said,) = failures
    assert said.startswith("eng: git ls-tree failed\n  fatal: not a tree object\n")
