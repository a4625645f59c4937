"""`pin update` on real repositories and releases of a package index."""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path

import pytest

from support.catalogs import load
from support.commands import Builder
from support.farms import Farm, text_line, write_installed
from support.indexes import Index
from support.upstreams import Upstream, numbered


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
    preset = farm.recipes.parent / "presets" / "m@5090.toml"
    preset.parent.mkdir()
    preset.write_text(
        'recipe = "eng-0.1.0"\nsummary = "x"\ncard = "5090"\nmodel = { name = "m" }\n'
    )
    farm.run("pin", "update", "eng")
    assert "eng-0.1.0 is now eng-0.10.0; presets that name the old one: m@5090" in farm.said
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


def test_update_names_the_patches_that_upstream_contains(farm: Farm) -> None:
    merged = {"a.c": numbered(40, line_20="20!")}
    farm.write(farm.pull(6, **merged), version="nightly")
    farm.upstream.commit("the same", **merged)
    farm.run("pin", "update", "eng", "--to", "main", status=11)
    assert "eng-nightly: pull 6: upstream" in farm.said
    assert "remove the patches that upstream contains; correct the recipe" in farm.said


def test_update_tells_which_definitions_no_cmake_file_names_any_more(farm: Farm) -> None:
    """cmake ignores a name that nothing reads: the engine would lose it without a word."""
    here = "option(GONE_OPTION x OFF)\noption(STAYS x OFF)\nset(MOVED 1)\nset(CMAKE_OWN 1)\n"
    templates = {"config.h.in": "#cmakedefine TEMPLATE\n#cmakedefine GONE_TEMPLATE\n"}
    farm.pin = farm.upstream.commit("all", **{"CMakeLists.txt": here}, **templates)
    names = ("GONE_OPTION", "STAYS", "MOVED", "TEMPLATE", "GONE_TEMPLATE", "CMAKE_OWN", "NEVER")
    define = "".join(f"{name} = 1\n" for name in names)
    over = '[[cmake.override]]\nname = "LLAMA_CURL"\nvalue = true\nwhy = "x"\n'
    file = farm.write(f"\n[cmake.define]\n{define}{over}")
    farm.upstream.commit("curl", **{"c.cmake": "option(LLAMA_CURL x ON)\n"})
    farm.pin = farm.upstream.head()
    file = farm.write(f"\n[cmake.define]\n{define}{over}")
    there = {"c.cmake": None, "m.cmake": "set(MOVED 1)\n", "config.h.in": "#cmakedefine TEMPLATE\n"}
    farm.upstream.commit("fewer", **{"CMakeLists.txt": "option(STAYS x OFF)\n"}, **there)
    farm.run("pin", "update", "eng", "--to", "main", status=3)
    found = {line.split(": ")[1] for line in farm.said.splitlines() if "any more" in line}
    gone = {f"cmake.0.define.{name}" for name in ("GONE_OPTION", "GONE_TEMPLATE")}
    assert found == {*gone, "cmake.0.override.0.name"}
    assert f"{file}:{text_line(file, 'GONE_OPTION')}: " in farm.said


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
    key = 'source.submodule."deps/part"'
    assert f"{file}:{line}: {key}: the source has no submodule" in farm.said
    assert "nothing was written" in farm.said
    assert new not in file.read_text()
    farm.run("pin", "update", "eng", "--to", "main", "--force", status=3)
    assert new in (farm.recipes / f"eng-{new[:7]}.toml").read_text()


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


@pytest.mark.parametrize(("tag", "named"), [("x-b2-1.0", "b2"), ("b7-1.0", "b7-1.0")])
def test_a_version_that_counts_commits_becomes_a_tag_that_counts_others(
    farm: Farm, tag: str, named: str
) -> None:
    farm.write(version="b1")
    farm.upstream.commit("two", **{"b.c": "bb\n"})
    farm.upstream.git("tag", tag)
    farm.run("pin", "update", "eng", "--to", tag)
    assert f'tags       = ["{named}", "stays"]' in (farm.recipes / f"eng-{named}.toml").read_text()


def test_the_old_recipe_is_kept_beside_the_new_one(farm: Farm) -> None:
    file = farm.write()
    before = file.read_text()
    farm.upstream.commit("two", **{"b.c": "bb\n"})
    farm.upstream.git("tag", "v0.2.0")
    farm.run("pin", "update", "eng", "--keep-old")
    kept = file.read_text()
    assert kept.replace('kept    = "the version before 0.2.0"\n', "") == before != kept
    assert load(farm.catalog).engine("eng").name == "eng-0.2.0"
    assert 'version = "0.2.0"' in (farm.recipes / "eng-0.2.0.toml").read_text()


def test_a_recipe_with_another_pin_does_not_have_the_reason_why_the_old_one_is_kept(
    farm: Farm,
) -> None:
    file = farm.write()
    reason = 'kept = "a published run"\n'
    file.write_text(file.read_text().replace("summary", f"{reason}summary", 1))
    before = file.read_text()
    farm.upstream.commit("two", **{"b.c": "bb\n"})
    farm.upstream.git("tag", "v0.2.0")
    farm.run("pin", "update", "eng", "--keep-old")
    assert file.read_text() == before
    assert "kept" not in (farm.recipes / "eng-0.2.0.toml").read_text()


def test_a_recipe_that_another_one_extends_stays(farm: Farm) -> None:
    file = farm.write()
    other = 'extends = "eng-0.1.0"\nversion = "2"\nimage.tags = ["2"]\n'
    (farm.recipes / "eng-2.toml").write_text(other)
    preset = farm.recipes.parent / "presets" / "m@5090.toml"
    preset.parent.mkdir()
    preset.write_text('recipe = "eng-0.1.0"\nsummary = "x"\ncard = "5090"\nmodel.name = "m"\n')
    farm.upstream.commit("two", **{"b.c": "bb\n"})
    farm.upstream.git("tag", "v0.2.0")
    farm.run("pin", "update", "eng-0.1.0")
    assert "is now" not in farm.said
    assert load(farm.catalog).engine("eng-2").recipe.extends == file.stem


@pytest.mark.parametrize("kept", [False, True])
def test_a_lock_with_the_name_of_the_recipe_moves_with_it(farm: Farm, kept: bool) -> None:
    file = farm.write()
    named = '\n[debian]\nruntime = ["curl"]\nlock = "locks/eng-0.1.0.debian.toml"\n'
    file.write_text(file.read_text() + named)
    lock = farm.recipes / "locks" / "eng-0.1.0.debian.toml"
    lock.parent.mkdir(exist_ok=True)
    lock.write_text("# the lock\n")
    farm.upstream.commit("two", **{"b.c": "bb\n"})
    farm.upstream.git("tag", "v0.2.0")
    farm.run("pin", "update", "eng", *(["--keep-old"] if kept else []))
    new = farm.recipes / "eng-0.2.0.toml"
    assert 'lock = "locks/eng-0.2.0.debian.toml"' in new.read_text()
    assert lock.with_name("eng-0.2.0.debian.toml").read_text() == "# the lock\n"
    assert (file.exists(), lock.exists()) == (kept, kept)


def test_update_tells_which_probed_options_and_values_are_gone(
    builder: Builder,
    catalog: Path,
    llama_tree: Upstream,
    own_cache: Path,  # noqa: ARG001
) -> None:
    def run(*arguments: str, status: int = 0) -> str:
        done = builder(*arguments, "--catalog", catalog)
        assert done.returncode == status, done.stderr
        return done.stderr

    llama_tree.git("tag", "v0.1.0")
    about = ("--name", "mini-0.1.0", "--about", "LLaMa 0.1.0, small")
    run("recipe", "new", llama_tree.url, *about)
    file = catalog / "recipes" / "mini-0.1.0.toml"
    probes = 'option = "--host"\n\n[[probe]]\noption = "--not-in-the-tree"\n'
    file.write_text(f"{file.read_text()}\n[[probe]]\n{probes}")
    arguments = (llama_tree.folder / "common/arg.cpp").read_text()
    fewer = arguments.replace("draft-mtp|", "").replace('{"--host"}', '{"--listen"}')
    llama_tree.commit("fewer", **{"common/arg.cpp": fewer})
    llama_tree.git("tag", "v0.2.0")
    said = run("pin", "update", "mini", status=3)
    assert f"{file}:{text_line(file, 'summary')}: summary: still names 0.1.0" in said
    assert "probe.0.has.1: --spec-type no longer lists draft-mtp, but none, ngram-simple" in said
    assert "probe.2.option: the source no longer has --host" in said
    assert said.count("probe.") == 2
    llama_tree.commit("back", **{"common/arg.cpp": arguments})
    assert "probe." not in run("pin", "update", "mini", "--to", "main", "--dry-run", status=3)
    llama_tree.commit("moved", **{"tools/server/CMakeLists.txt": "# nothing\n"})
    said = run("pin", "update", "mini", "--to", "main", "--dry-run", status=3)
    assert "family: the tree is one of llama.cpp's, but no recipe can be written for it" in said


def test_options_are_compared_with_a_pin_that_is_no_ancestor_or_is_gone(
    builder: Builder, catalog: Path, llama_tree: Upstream, own_cache: Path
) -> None:
    def update() -> str:
        shutil.rmtree(own_cache, ignore_errors=True)
        done = builder("pin", "update", "mini", "--dry-run", "--catalog", catalog)
        assert done.returncode == 3, done.stderr
        return done.stderr

    llama_tree.git("tag", "v0.1.0")
    about = ("--name", "mini-0.1.0", "--about", "LLaMa 0.1.0, small")
    assert builder("recipe", "new", llama_tree.url, *about, "--catalog", catalog).returncode == 0
    arguments = (llama_tree.folder / "common/arg.cpp").read_text()
    llama_tree.git("checkout", "-q", "--orphan", "rewritten")
    llama_tree.commit("fewer", **{"common/arg.cpp": arguments.replace("draft-mtp|", "")})
    llama_tree.git("tag", "v0.2.0")
    assert "--spec-type no longer lists draft-mtp" in update()
    old = llama_tree.git("rev-parse", "v0.1.0").strip()
    llama_tree.git("tag", "-d", "v0.1.0")
    llama_tree.git("branch", "-D", "main")
    llama_tree.git("reflog", "expire", "--expire=now", "--all")
    llama_tree.git("gc", "-q", "--prune=now")
    said = update()
    assert f"no longer has {old[:9]}: names that are gone since are not shown" in said
    assert "--spec-type" not in said


def test_a_ref_that_the_recipe_did_not_have_stands_before_the_commit(farm: Farm) -> None:
    file = farm.write()
    text = file.read_text().replace('ref    = "v0.1.0"       # for people\n', "# decides\n")
    assert "for people" not in text
    behind = "# it has none\nsubmodules = false\n\n[track]"
    file.write_text(text.replace("\n[track]", behind))
    new = farm.upstream.commit("two", **{"b.c": "bb\n"})
    farm.run("pin", "update", "eng", "--to", "main")
    lines = file.read_text().splitlines()
    at = lines.index('ref    = "main"')
    assert lines[at - 1 : at + 6] == [
        "# decides",
        'ref    = "main"',
        f'commit = "{new}"    # decides',
        *behind.splitlines()[:-1],
        "[track]",
    ]


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


@pytest.mark.parametrize("kept", [False, True])
def test_update_moves_the_base_that_installs_the_package(
    farm: Farm, index: Index, kept: bool
) -> None:
    base = write_installed(farm, index, "1.0")
    recipe = farm.recipes / "eng-1.0-wheel.toml"
    lock = base.parent / "locks" / "eng-1.0.toml"
    texts = [file.read_text() for file in (base, recipe, lock)]
    out = farm.run("pin", "update", "eng-1.0-wheel", "--dry-run")
    assert '+base    = "eng-wheel-1.10"' in out
    assert '+requirements = ["vllm==1.10", "other==1.0"]' in out
    assert [file.read_text() for file in (base, recipe, lock)] == texts
    assert not (base.parent / "eng-wheel-1.10.toml").exists()

    farm.run("pin", "update", "eng-1.0-wheel", "--to", "1.1", *(["--keep-old"] if kept else []))
    assert "next: `builder pin lock eng-wheel-1.1`" in farm.said
    new_base, new_recipe, new_lock = (
        file.with_name(file.name.replace("1.0", "1.1")) for file in (base, recipe, lock)
    )
    expected = texts[0].replace("1.0", "1.1").replace("other==1.1", "other==1.0")
    assert new_base.read_text() == expected.replace("as 1.1 was", "as 1.0 was")
    assert new_recipe.read_text() == texts[1].replace("1.0", "1.1")
    assert new_lock.read_text() == texts[2]  # `pin lock` writes it anew
    assert [file.exists() for file in (base, recipe, lock)] == [kept] * 3


def test_update_leaves_a_base_that_another_recipe_needs(farm: Farm, index: Index) -> None:
    base = write_installed(farm, index, "1.0")
    text = (farm.recipes / "eng-1.0-wheel.toml").read_text()
    other = text.replace('engine  = "eng"', 'engine  = "two"').replace('"eng", tags', '"two", tags')
    (farm.recipes / "two-1.0-wheel.toml").write_text(other)
    farm.run("pin", "update", "eng-1.0-wheel")
    assert not (farm.recipes / "eng-1.0-wheel.toml").exists()
    assert base.exists()
    assert (base.parent / "locks" / "eng-1.0.toml").exists()
    assert (base.parent / "eng-wheel-1.10.toml").exists()
    assert "two-1.0-wheel" in farm.run("pin", "outdated", "two")


def test_update_names_the_base_that_it_cannot_change(farm: Farm, index: Index) -> None:
    base = write_installed(farm, index, "1.0")
    text = base.read_text()
    base.write_text(text.replace("vllm==1.0", "vllm>=1.0"))
    recipe = farm.recipes / "eng-1.0-wheel.toml"
    before = {file: file.read_text() for file in farm.recipes.rglob("*.toml")}
    farm.run("pin", "update", "eng-1.0-wheel", "--force", status=3)
    assert "cannot move eng-wheel-1.0 from vLLM 1.0 to 1.10" in farm.said
    assert f"edit {base}, then run `builder pin lock eng-wheel-1.0`" in farm.said
    assert {file: file.read_text() for file in farm.recipes.rglob("*.toml")} == before
    recipe.write_text(recipe.read_text().replace("eng-wheel-1.0", "vllm-openai-0.19.1"))
    farm.run("pin", "update", "eng-1.0-wheel", status=3)
    assert "no base of eng-1.0-wheel has its package in a lock" in farm.said
    assert "then run `builder pin image vllm-openai-0.19.1`" in farm.said


def test_update_does_not_rename_a_base_without_the_version_in_its_name(
    farm: Farm, index: Index
) -> None:
    base = write_installed(farm, index, "1.0")
    named = base.with_name("eng-wheel.toml")
    named.write_text(base.read_text().replace('"eng-wheel-1.0"', '"eng-wheel"'))
    recipe = farm.recipes / "eng-1.0-wheel.toml"
    recipe.write_text(recipe.read_text().replace("eng-wheel-1.0", "eng-wheel"))
    farm.run("pin", "update", "eng-1.0-wheel", status=3)
    assert f"edit {named}, then run `builder pin lock eng-wheel`" in farm.said
    farm.run("pin", "update", "eng-1.0-wheel", "--to", "1.0")
    assert "eng-1.0-wheel.toml is up to date" in farm.said
