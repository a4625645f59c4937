"""`recipe new` on real repositories: what it writes, what it refuses, and that nothing is left."""

from __future__ import annotations

import hashlib
import io
import re
import shutil
import tarfile
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from identify.vendor.licenses import LICENSES

from builder.recipes.edit import NamedCommit
from builder.upstream import track
from builder.upstream.new_recipe import default_version
from support.catalogs import rendered
from support.commands import Builder
from support.environment import REPOSITORY
from support.indexes import served
from support.llama_tree import MIT
from support.upstreams import Upstream

EXPECTED = """\
#:schema schemas/recipe.schema.json
# Written by `builder recipe new` from v0.2.0: not built yet.
engine  = "mini-llama-cpp"
version = "0.2.0"
summary = "Mini LLaMa, small"   # the first heading of README.md
license = "MIT"
family  = "llama-cpp"
base    = "cuda-13.0"

[source]
git    = "{url}"
ref    = "v0.2.0"
commit = "{commit}"

[track]
tag = "v[0-9]*"

[cuda]
arch = ["120"]   # ggml's cmake makes 120a of it
vmm  = false

[llama]
build_number = 3
ui           = false   # the tree has no web page
cpu_variants = true

[[cmake]]
targets = ["llama-server", "llama-cli", "llama-bench"]

[image]
repository = "mini-llama-cpp"

# Read from common/arg.cpp. Add [[probe]] option = "--NAME" for an option of this fork alone.
[[probe]]
option = "--spec-type"
has    = ["none", "draft-mtp", "ngram-simple"]

[[probe]]
option = "--cache-type-k"
has    = ["f32", "f16", "q8_0"]
"""
LIKE = """\
engine  = "other"
version = "1.0"
summary = "x"
license = "Apache-2.0"
family  = "{family}"
base    = "cuda-13.0"
notes   = ["not taken"]

[source]
git    = "https://example.invalid/other"
commit = "0123456789abcdef0123456789abcdef01234567"

[track]
branch = "main"

[cuda]
arch   = ["120"]
vmm    = true
driver = "580"

{more}
[[patch]]
pull = 7
base = "0123456789abcdef0123456789abcdef01234567"
head = "89abcdef0123456789abcdef0123456789abcdef"
why  = "not taken"

[[cmake]]
targets = ["llama-server"]
define  = {{ {define}CMAKE_C_FLAGS = "-g", FORK_X = true, X_COMMIT = "0123456789" }}

[image]
repository = "other-images"
tags       = ["1.0", "stays"]
moving     = ["stays"]
entrypoint = ["/opt/engine/bin/llama-server"]
port       = 8081
env        = {{ A = "b" }}

[build]
disk = 3.0

[[probe]]
run      = ["llama-server", "--version"]
contains = ["kept"]

[[probe]]
option = "--n-gpu-layers"

[[probe]]
option = "--not-in-the-tree"

[[probe]]
run      = ["llama-server", "--version"]
contains = ["0123456"]

[[probe]]
run      = ["llama-server", "--version"]
contains = ["other 1.0"]
"""
OF_CMAKE = LIKE.format(family="cmake", more="", define="GGML_CUDA = true, ").replace(
    'targets = ["llama-server"]', 'targets = ["llama-server"]\ninstall = "targets"'
)
Run = Callable[..., str]
HELLO = "hello-sm120"
KEY = "0" * 64


@pytest.fixture
def new(builder: Builder, catalog: Path, llama_tree: Upstream, own_cache: Path) -> Run:  # noqa: ARG001
    """Run the command on the repository; what it said on stderr."""

    def run(*options: str, status: int = 0, url: str = llama_tree.url) -> str:
        before = recipes(catalog)
        done = builder("recipe", "new", url, *options, "--catalog", catalog)
        assert done.returncode == status, done.stderr
        assert "Traceback" not in done.stderr
        if status != 0:
            assert recipes(catalog) == before
        return done.stderr

    return run


def recipes(catalog: Path) -> dict[str, str]:
    return {file.name: file.read_text() for file in (catalog / "recipes").glob("*.toml")}


def only(catalog: Path) -> dict[str, Any]:
    """The only recipe."""
    (text,) = recipes(catalog).values()
    return tomllib.loads(text)


def test_the_newest_tag_is_written(
    builder: Builder, new: Run, llama_tree: Upstream, catalog: Path
) -> None:
    """The newest by time: numbers of tags of different kinds do not compare."""
    llama_tree.git("tag", "master-9999999", "HEAD~1")
    llama_tree.git("tag", "v0.10.0", "HEAD")
    commit = llama_tree.commit("three", **{"a.txt": "a"})
    llama_tree.git("tag", "-a", "-m", "x", "v0.2.0")
    llama_tree.git("tag", "v0.1.9")  # of the same commit
    llama_tree.git("tag", "blob", llama_tree.hashed("blob", "x"))
    llama_tree.commit("four", **{"a.txt": "b"})
    said = new()
    assert recipes(catalog) == {
        "mini-llama-cpp-0.2.0.toml": EXPECTED.format(url=llama_tree.url, commit=commit)
    }
    day = llama_tree.git("log", "-1", "--format=%cs", commit)
    assert f"commit {commit}: the newest tag, v0.2.0 of {day}; main has 1 more commit" in said
    next_one = f"next: builder build mini-llama-cpp-0.2.0 --catalog {catalog}"
    assert said.rstrip().endswith(next_one)
    done = builder("recipe", "check", "--strict", "--catalog", catalog)
    assert done.returncode == 0, done.stderr + done.stdout


RELEASE = "mini-llama-python"
PLACE = "vendor/mini-llama.cpp"


def sdist(folder: Path, tree: Upstream, *, repository: bool, changed: str = "") -> bytes:
    """A release with the tree of a commit as a submodule; with its repository, as checkouts have
    it in them."""
    top = folder / f"{RELEASE}-1.0"
    shutil.copytree(tree.folder, top / PLACE, ignore=shutil.ignore_patterns(".git"))
    if changed:
        (top / PLACE / changed).write_text("changed\n")
    below = top / PLACE / "vendor" / ".git"  # a submodule of the tree leads out of it, too
    below.write_text("gitdir: ../../../.git/modules/vendor\n")
    modules = (
        f'[submodule "x"]\npath = {PLACE}\nurl = https://example.invalid/o/mini-llama.cpp.git\n'
    )
    (top / ".gitmodules").write_text(modules)
    if repository:
        own = top / ".git/modules" / PLACE
        shutil.copytree(tree.folder / ".git", own)
        (own / "HEAD").write_text(f"{tree.head()}\n")
        (top / PLACE / ".git").write_text(f"gitdir: ../../.git/modules/{PLACE}\n")
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as archive:
        archive.add(top, top.name)
    shutil.rmtree(top)
    return out.getvalue()


@pytest.mark.parametrize(
    ("repository", "changed", "known"),
    [(True, "", True), (False, "", False), (True, "README.md", False)],
)
def test_a_tree_in_an_sdist(
    new: Run,
    builder: Builder,
    catalog: Path,
    llama_tree: Upstream,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    repository: bool,
    changed: str,
    known: bool,
) -> None:
    """Its commit is written only where the sdist has the commit object of exactly this tree."""
    with served() as index:
        monkeypatch.setenv("PIP_INDEX_URL", f"{index.url}/simple")
        content = sdist(tmp_path, llama_tree, repository=repository, changed=changed)
        index.files[f"{RELEASE}-1.0.tar.gz"] = content
        index.about[f"{RELEASE}-1.0.tar.gz"] = {}
        given = ["--root", f"./{PLACE}/"]
        if not known:
            said = new(*given, url=f"pypi:{RELEASE}", status=3)
            assert "does not tell the version of mini-llama-cpp" in said
            given += ["--name", "mini-llama-cpp-1.0"]
        said = new(*given, url=f"pypi:{RELEASE}")
        commit = llama_tree.head()
        shown = (
            f"{PLACE} of {RELEASE} 1.0, is {f'commit {commit}' if known else 'a tree'} of https:"
        )
        assert f"{shown}//example.invalid/o/mini-llama.cpp" in said
        assert ("without its commit" in said) is not known
        found = only(catalog)
        assert found["version"] == (commit[:7] if known else "1.0")
        digest = hashlib.sha256(content).hexdigest()
        assert found["source"] == {
            "pypi": RELEASE,
            "version": "1.0",
            "sha256": digest,
            "root": PLACE,
        }
        build = {"build_commit": commit[:9]} if known else {}
        assert found["llama"] == {**build, "ui": False, "cpu_variants": True}
        assert "track" not in found
        # The next release, of another commit.
        text = llama_tree.folder / "common/arg.cpp"
        text.write_text(text.read_text().replace('"--spec-type"', '"--gone"'))
        llama_tree.record("three")
        index.files[f"{RELEASE}-1.1.tar.gz"] = sdist(tmp_path, llama_tree, repository=repository)
        index.about[f"{RELEASE}-1.1.tar.gz"] = {}
        name = f"mini-llama-cpp-{found['version']}"
        update = ("pin", "update", name, "--catalog", catalog)
        done = builder(*update)
        assert done.returncode != 0
        assert "the source no longer has --spec-type" in done.stderr
        done = builder(*update, "--force")
        moved = only(catalog)
        assert moved["source"]["version"] == "1.1", done.stderr
        tells = repository
        assert moved["llama"].get("build_commit") == (llama_tree.head()[:9] if known else None)
        assert moved["version"] == (llama_tree.head()[:7] if known and tells else "1.1")


def test_a_tree_in_an_sdist_that_says_its_version(
    new: Run,
    builder: Builder,
    catalog: Path,
    llama_tree: Upstream,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its version is its own, never the version of the package around it."""
    with served() as index:
        monkeypatch.setenv("PIP_INDEX_URL", f"{index.url}/simple")
        cmake = llama_tree.folder / "CMakeLists.txt"
        text = cmake.read_text()
        for release, version in (("1.0", "2.3.1"), ("1.1", "2.4.0"), ("1.2", "2.4.0")):
            cmake.write_text(text.replace("(llama-shaped ", f"(llama-shaped VERSION {version} "))
            content = sdist(tmp_path, llama_tree, repository=False)
            index.files[f"{RELEASE}-{release}.tar.gz"] = content
            index.about[f"{RELEASE}-{release}.tar.gz"] = {}
        new("--root", PLACE, url=f"pypi:{RELEASE}==1.0")
        assert [*recipes(catalog)] == ["mini-llama-cpp-2.3.1.toml"]
        update = ("pin", "update", "--catalog", catalog)
        done = builder(*update, "mini-llama-cpp-2.3.1", "--to", "1.1")
        assert done.returncode == 0, done.stderr
        assert [*recipes(catalog)] == ["mini-llama-cpp-2.4.0.toml"]
        assert only(catalog)["source"]["version"] == "1.1"
        done = builder(*update, "mini-llama-cpp-2.4.0")
        assert done.returncode != 0
        assert "version: is still 2.4.0: the new tree tells no other" in done.stderr


def test_an_sdist_that_has_no_tree(
    new: Run, llama_tree: Upstream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with served() as index:
        monkeypatch.setenv("PIP_INDEX_URL", f"{index.url}/simple")
        content = sdist(tmp_path, llama_tree, repository=True)
        index.files[f"{RELEASE}-1.0.tar.gz"] = content
        index.about[f"{RELEASE}-1.0.tar.gz"] = {}
        assert "name the directory" in new(url=f"pypi:{RELEASE}==1.0", status=3)
        assert "no directory vendor/x" in new("--root", "vendor/x", url=f"pypi:{RELEASE}", status=5)
        assert f"no sdist of {RELEASE} 2.0" in new(url=f"pypi:{RELEASE}==2.0", status=5)
    assert "names no project" in new(url="pypi:", status=3)
    assert "with --ref x" in new("--ref", "x", url=f"pypi:{RELEASE}", status=3)
    assert "is a directory of an sdist" in new("--root", "x", status=3)


def test_without_tags_the_head_of_the_default_branch(
    new: Run, llama_tree: Upstream, catalog: Path
) -> None:
    said = new()
    found = only(catalog)
    assert f"commit {llama_tree.head()}: the head of main: there is no tag" in said
    assert found["version"] == llama_tree.head()[:7]
    assert found["source"]["ref"] == "main"
    assert found["track"] == {"branch": "main"}


def test_a_ref_is_a_tag_a_branch_or_a_commit(new: Run, llama_tree: Upstream, catalog: Path) -> None:
    llama_tree.git("tag", "b77")
    llama_tree.git("branch", "feature/x")
    for ref, table, tracked in (
        ("b77", {"ref": "b77"}, {"tag": "b[0-9]*"}),
        ("feature/x", {"ref": "feature/x"}, {"branch": "feature/x"}),
        (llama_tree.head()[:9], {}, None),
        (llama_tree.head(), {}, None),
    ):
        new("--ref", ref, "--name", "x-1", "--force")
        found = only(catalog)
        assert found["source"] == {"git": llama_tree.url, "commit": llama_tree.head(), **table}
        assert found.get("track") == tracked
    for ref, status in (("nowhere", 5), ("--upload-pack=x", 3), ("a b", 3), ("x..y", 3)):
        new("--ref", ref, status=status)


def test_a_recipe_is_not_replaced_unasked(new: Run, llama_tree: Upstream, catalog: Path) -> None:
    file = catalog / "recipes" / f"mini-llama-cpp-{llama_tree.head()[:7]}.toml"
    new("--dry-run")
    assert recipes(catalog) == {}
    file.write_text("mine")
    assert "exists already" in new(status=4)
    assert file.read_text() == "mine"
    new("--force")
    assert only(catalog)["engine"] == "mini-llama-cpp"


def test_names_are_given(new: Run, catalog: Path, llama_tree: Upstream) -> None:
    for name, engine, version in (
        ("fork-main-2.0", "fork-main", "2.0"),
        (f"fork-{llama_tree.head()[:7]}", "fork", llama_tree.head()[:7]),
        ("mini-llama-cpp-a-b", "mini-llama-cpp", "a-b"),
        ("fork", "fork", llama_tree.head()[:7]),
    ):
        new("--name", name, "--about", "a 'short' one")
        (text,) = recipes(catalog).values()
        found = tomllib.loads(text)
        assert (found["engine"], found["version"]) == (engine, version)
        assert found["summary"] == "a 'short' one"
        assert found["image"] == {"repository": engine}
        for file in (catalog / "recipes").glob("*.toml"):
            file.unlink()
    said = new("--name", "No Name-1", status=3)
    assert "engine: 'No Name': must be lower-case letters" in said


@pytest.mark.parametrize(
    ("files", "reason"),
    [
        ({"LICENSE": None}, "there is no license file at the top of the tree"),
        ({"LICENSE": MIT + "\nNot for robots.\n"}, "LICENSE: its text is none that is known"),
        ({"COPYING": dict(LICENSES)["Apache-2.0"]}, "COPYING: Apache-2.0\n  LICENSE: MIT"),
        ({"LICENSE": dict(LICENSES)["GPL-3.0"]}, "LICENSE: GPL-3.0-only or GPL-3.0-or-later"),
    ],
    ids=["none", "changed", "two", "GPL"],
)
def test_a_license_that_is_not_sure_is_asked_for(
    new: Run, llama_tree: Upstream, catalog: Path, files: dict[str, str | None], reason: str
) -> None:
    llama_tree.commit("license", **files)
    said = new(status=3)
    assert reason in said
    assert "--license" in said
    assert "SPDX" in new("--license", "My Own", status=3)
    new("--license", "Apache-2.0")
    assert only(catalog)["license"] == "Apache-2.0"


def test_a_tree_that_no_family_knows(new: Run, tmp_path: Path) -> None:
    other = Upstream(tmp_path / "other")
    other.commit("one", LICENSE=MIT, **{"CMakeLists.txt": "x\n"})
    said = new(url=other.url, status=3)
    assert "no family recognises main" in said
    line = "CMakeLists.txt; CUDA: none; servers: none; lacks: an option for CUDA"
    assert line in said
    assert "docs/recipes.md" in said
    empty = Upstream(tmp_path / "empty")
    said = new(url=empty.url, status=5)
    assert "no tag and no default branch" in said
    assert "git ls-remote" in said
    assert "--ref" not in said
    assert new(url=f"file://{tmp_path}/nothing", status=5)
    for url, status in (("./here", 5), ("ext::sh -c x", 5), ("--upload-pack=x", 2)):
        assert new(url=url, status=status)


def test_a_tree_with_ggml_inside(new: Run, tmp_path: Path, catalog: Path) -> None:
    """What is left to a person is the request, and the warning of `recipe check` says so."""
    tree = Upstream(tmp_path / "hears.cpp")
    files = {
        "CMakeLists.txt": "add_subdirectory(ggml)\n",
        "ggml/CMakeLists.txt": 'option(GGML_CUDA "x" OFF)\n',
        "ggml/src/ggml-cuda/CMakeLists.txt": "",
        "server/CMakeLists.txt": "add_executable(hears-server server.cpp)\n",
        "server/server.cpp": '"--host" "--port" "/health"\n',
    }
    tree.commit("one", LICENSE=MIT, **files)
    new(url=tree.url)
    written = only(catalog)
    assert (written["family"], written["cmake"]) == ("ggml", [{"targets": ["hears-server"]}])
    assert written["image"]["entrypoint"][0] == "/opt/engine/bin/hears-server"
    assert (written["image"]["port"], written["image"]["health"]) == (8080, "health")
    assert "-DGGML_CUDA=ON" in rendered(catalog, next(iter(recipes(catalog)))[: -len(".toml")]).text


def test_like_another_recipe_of_the_family(new: Run, catalog: Path) -> None:
    """Its definitions and settings; what the tree shows stays what the tree shows."""
    (catalog / "recipes" / "other-1.0.toml").write_text(
        LIKE.format(family="llama-cpp", more="[llama]\nbuild_number = 9\n\n", define="")
    )
    said = new("--like", "other", "--name", "fork-2")
    found = tomllib.loads((catalog / "recipes" / "fork-2.toml").read_text())
    assert found["cuda"] == {"arch": ["120"], "vmm": True, "driver": "580"}
    assert found["llama"] == {"build_number": 2, "ui": False, "cpu_variants": True}
    assert found["cmake"] == [{"targets": ["llama-server"], "define": {"CMAKE_C_FLAGS": "-g"}}]
    assert found["image"] == {
        "repository": "fork",
        "entrypoint": ["/opt/engine/bin/llama-server"],
        "port": 8081,
        "env": {"A": "b"},
    }
    assert found["build"] == {"disk": 3.0}
    options = [probe["option"] for probe in found["probe"]]
    assert options == ["--spec-type", "--cache-type-k", "--n-gpu-layers"]
    assert {"patch", "notes"}.isdisjoint(found)
    assert found["license"] == "MIT"
    assert "left out: the patch pull 7 of other-1.0" in said
    assert "left out: the probe of --not-in-the-tree of other-1.0" in said
    assert "left out: the definition X_COMMIT = '0123456789' of other-1.0" in said
    assert "left out: the definition FORK_X of other-1.0: no CMake file of this tree" in said
    assert "look over what it has from other: entrypoint, definitions," in said


def test_like_another_recipe_whose_family_reads_no_tree(
    new: Run, llama_tree: Upstream, catalog: Path
) -> None:
    """Its probes are taken, but for those that name its pin."""
    (catalog / "recipes" / "other-1.0.toml").write_text(OF_CMAKE)
    said = new("--like", "other", "--name", "other-2.0")
    text = (catalog / "recipes" / "other-2.0.toml").read_text()
    found = tomllib.loads(text)
    assert found["family"] == "cmake"
    assert found["image"]["repository"] == "other-images"
    assert found["probe"][0] == {"run": ["llama-server", "--version"], "contains": ["kept"]}
    assert [each.get("option") for each in found["probe"][1:]] == [
        "--n-gpu-layers",
        "--not-in-the-tree",
    ]
    assert "# As in other-1.0; the smoke test shows whether it holds here.\n[[probe]]" in text
    assert said.count("left out: a probe of other-1.0") == 2
    llama_tree.commit("moved", **{"CMakeLists.txt": None})
    said = new("--like", "other-1.0", "--name", "other-3.0", status=3)
    assert "cmake.0.source: the source has no ./CMakeLists.txt" in said


def test_a_checkout_gets_its_lock_and_what_its_tests_compare(
    builder: Builder,
    tmp_path: Path,
    own_cache: Path,  # noqa: ARG001
) -> None:
    """Locking the new recipe anew leaves the other's key alone; the golden files fit."""
    upstream = Upstream(tmp_path / "served" / "hellofork")
    shutil.copytree(REPOSITORY / "engines" / HELLO, upstream.folder, dirs_exist_ok=True)
    upstream.record("a")
    farm = tmp_path / "farm"
    shutil.copytree(REPOSITORY / "recipes", farm / "recipes")
    for name in ("dockerfiles", "engines", "patches"):
        (farm / name).symlink_to(REPOSITORY / name)
    data = farm / "tests" / "data"
    (data / "golden").mkdir(parents=True)
    old = "".join(f"{name:34}{KEY}\n" for name in ("a-1", "hellofork-3.0", "z-1"))
    (data / "keys.txt").write_text(old)
    words = (upstream.url, "--like", HELLO, "--name", "hellofork-3.0", "--license", "MIT")
    done = builder("--catalog", farm, "recipe", "new", *words)
    assert done.returncode == 0, done.stderr
    lock = "locks/hellofork-3.0.debian.toml"
    assert f'lock    = "{lock}"' in (farm / "recipes" / "hellofork-3.0.toml").read_text()
    of_like = (farm / "recipes" / "locks" / f"{HELLO}-0.1.0.debian.toml").read_text()
    own = (farm / "recipes" / lock).read_text()
    assert own == of_like.replace(f"pin lock {HELLO}-0.1.0`", "pin lock hellofork-3.0`")
    found = rendered(farm, "hellofork-3.0")
    assert (data / "golden" / "hellofork-3.0.Dockerfile").read_text() == found.text
    assert [line.split() for line in (data / "keys.txt").read_text().splitlines()] == [
        ["a-1", KEY],
        ["hellofork-3.0", found.key],
        ["z-1", KEY],
    ]
    written = ["recipes/hellofork-3.0.toml", f"recipes/{lock}"]
    golden = ["tests/data/golden/hellofork-3.0.Dockerfile", "tests/data/keys.txt"]
    assert done.stdout == "".join(f"written {farm / each}\n" for each in written + golden)


@pytest.mark.parametrize(
    ("old", "new_text", "missing"),
    [
        (
            "bin/llama-server",
            "bin/hello-server",
            "image.entrypoint: the tree makes no hello-server",
        ),
        (
            'run      = ["llama-server"',
            'run = ["a-check"',
            "probe.0.run: the tree makes no a-check",
        ),
        (
            'option = "--n-gpu-layers"',
            'library = "libx-cuda.so"\nneeds = ["libcudart.so.13"]',
            "probe.1.library: the tree makes no libx-cuda.so",
        ),
        ("GGML_CUDA = true, ", "", "CUDA code is compiled only with GGML_CUDA: set it"),
        ("GGML_CUDA = true, ", "GGML_CUDA = false, ", "CUDA code is compiled only with GGML_CUDA"),
    ],
)
def test_parts_of_another_engine_are_refused(
    new: Run, llama_tree: Upstream, catalog: Path, old: str, new_text: str, missing: str
) -> None:
    toolchain = "set(TARGET_DIR a)\nset( target aarch64-linux )\n"
    llama_tree.commit("toolchain", **{"cmake/aarch64.cmake": toolchain})
    text = OF_CMAKE
    assert old in text
    (catalog / "recipes" / "other-1.0.toml").write_text(text.replace(old, new_text))
    said = new("--like", "other", "--name", "fork-2", status=3)
    assert missing in said
    if "makes no" in missing:
        assert "programs in its CMake files: llama-" in said


def test_a_tree_that_is_not_tabbyapi(new: Run, catalog: Path) -> None:
    for name in ("tabbyapi-e632af4.toml", "bases/exllamav3-wheel-1.6.5.toml"):
        shutil.copy(REPOSITORY / "recipes" / name, catalog / "recipes" / name)
    said = new("--like", "tabbyapi", "--name", "fork-2", status=3)
    assert "the source is not TabbyAPI: it has no main.py" in said


def test_like_a_recipe_that_does_not_fit(new: Run, llama_tree: Upstream, catalog: Path) -> None:
    name = "vllm-0.21.0.toml"
    shutil.copy(REPOSITORY / "recipes" / name, catalog / "recipes" / name)
    assert "builds it from a package" in new("--like", "vllm", status=3)
    assert "no recipe is named" in new("--like", "nothing", status=3)
    (catalog / "recipes" / "other-1.0.toml").write_text(
        LIKE.format(family="llama-cpp", more="[llama]\nbuild_number = 9\n\n", define="")
    )
    llama_tree.commit("gone", **{"include/llama.h": None})
    assert "is no tree of the family llama-cpp" in new("--like", "other", status=3)


def test_a_recipe_without_a_probe_is_not_written(new: Run, catalog: Path) -> None:
    text = OF_CMAKE.replace('["kept"]', '["1.0"]')
    text = re.sub(r"\[\[probe\]\]\noption.*\n", "", text)
    (catalog / "recipes" / "other-1.0.toml").write_text(text)
    said = new("--like", "other", "--name", "fork-2", status=3)
    assert "the family cmake needs a [[probe]]" in said
    assert 'run = ["PROGRAM", "--version"]' in said


def test_an_image_of_another_recipe_is_not_taken(new: Run, catalog: Path) -> None:
    new("--name", "fork-1")
    file = catalog / "recipes" / "fork-1.toml"
    file.write_text(file.read_text().replace('repository = "fork"', 'repository = "two"'))
    assert "two" in file.read_text()
    said = new("--name", "two-1", status=3)
    assert "two:1 is also a tag of fork-1.toml" in said


def test_submodules_without_an_address_are_left_out(
    new: Run, llama_tree: Upstream, catalog: Path
) -> None:
    llama_tree.git(
        "update-index", "--add", "--cacheinfo", f"160000,{llama_tree.head()},reference/a"
    )
    llama_tree.git("commit", "--quiet", "--message", "a link without .gitmodules")
    new()
    (text,) = recipes(catalog).values()
    assert "submodules = false   # .gitmodules has no URL for reference/a\n" in text


def test_git_may_take_it_from_elsewhere(
    new: Run, llama_tree: Upstream, catalog: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tmp_path / "gitconfig"
    where = (
        f'[url "file://{llama_tree.folder.parent}/"]\n\tinsteadOf = https://example.invalid/x/\n'
    )
    config.write_text(f"{where}[protocol]\n\tallow = always\n")
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(config))
    url = "https://example.invalid/x/Mini_LLaMa.cpp"
    new(url=url)
    found = only(catalog)
    assert found["source"]["git"] == url


def test_a_fork_does_not_take_the_name_of_another_engine(
    new: Run, llama_tree: Upstream, catalog: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tmp_path / "gitconfig"
    where = "".join(
        f"\tinsteadOf = {url}\n"
        for url in ("https://example.invalid/x/", "https://example.invalid/Mainline/")
    )
    config.write_text(
        f'[url "file://{llama_tree.folder.parent}/"]\n{where}[protocol]\n\tallow = always\n'
    )
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(config))
    new("--name", "mainline-1", url="https://example.invalid/Mainline/Mini_LLaMa.cpp")
    file = catalog / "recipes" / "mainline-1.toml"
    text = file.read_text().replace('repository = "mainline"', 'repository = "mini-llama-cpp"')
    file.write_text(text)
    # Another source has this name for its images.
    new(url="https://example.invalid/x/Mini_LLaMa.cpp")
    version = llama_tree.head()[:7]
    found = tomllib.loads((catalog / "recipes" / f"x-mini-llama-cpp-{version}.toml").read_text())
    assert found["image"]["repository"] == found["engine"] == "x-mini-llama-cpp"
    assert found["summary"] == "Mini LLaMa, small"
    # The same source, in other words: its engine and its images.
    llama_tree.git("tag", "v3.0")
    new("--ref", "v3.0", url="https://example.invalid/Mainline/Mini_LLaMa.cpp/")
    found = tomllib.loads((catalog / "recipes" / "mainline-3.0.toml").read_text())
    assert found["image"]["repository"] == "mini-llama-cpp"
    # A path has no owner.
    said = new(status=3)
    assert "has the name of another engine of the catalog" in said
    assert "--name" in said
    said = new("--name", "mini-llama-cpp-9")
    assert "mini-llama-cpp is also a name of https://example.invalid/Mainline/" in said


def test_the_page_of_a_branch_is_no_repository(new: Run) -> None:
    said = new(url="https://example.invalid/o/r/tree/feature/x", status=3)
    assert "recipe new https://example.invalid/o/r --ref feature/x" in said


def test_tags_that_were_not_chosen_are_named(new: Run, llama_tree: Upstream, catalog: Path) -> None:
    llama_tree.git("tag", "v0.1.2")
    llama_tree.git("tag", "v0.1.1")
    commit = llama_tree.commit("three", **{"a.txt": "a"})
    for tag in ("b10901", "gguf-v0.18.0", "v0.3.0-rc1"):
        llama_tree.git("tag", tag)
    said = new("--dry-run")
    assert "the newest tag, " in said
    assert "v0.1.2 of " in said
    assert "v0.1.1" not in said
    llama_tree.git("tag", "-a", "-m", "x", "v0.5.1")  # a release wins over tags of its commit
    said = new()
    assert only(catalog)["source"] == {"git": llama_tree.url, "ref": "v0.5.1", "commit": commit}
    assert "b10901 of the same commit" in said
    assert "gguf-v0.18.0 of the same commit" in said


def test_a_tag_that_is_only_a_commit_tracks_no_tags(
    new: Run, llama_tree: Upstream, catalog: Path
) -> None:
    llama_tree.git("tag", "0badc0de", "main")
    new("--ref", "0badc0de")
    assert only(catalog)["source"]["ref"] == "0badc0de"
    assert "track" not in only(catalog)


@pytest.mark.parametrize(
    ("tag", "glob", "others"),
    [
        ("v0.2.0", "v[0-9]*", {"v0.10": True, "v1.0.0-beta": False, "v2-x": False, "b1": False}),
        ("b10018", "b[0-9]*", {"b9": True, "b99999999999x": False, "b1-mix-4b653db": False}),
        ("b10472-mix-4b653db", "b[0-9]*-mix-*", {"b1-mix-00aa00b": True, "b20000": False}),
        ("b10018-1.2.0", "b[0-9]*-[0-9]*", {"b1-0.1": True, "b10018": False}),
        ("main-b9351-4db14be", "main-b[0-9]*-*", {"main-b1-0badc0d": True, "v0.1.2": False}),
        ("v1.0.0-rc1", "v[0-9]*-rc[0-9]*", {"v1.0.0-rc10": True, "v1.0.0": False}),
        ("release", "release", {"release": True, "release2": False}),
        ("v*", None, {"v1.0.0-beta": True, "x": False}),
    ],
)
def test_tags_of_one_kind(tag: str, glob: str | None, others: dict[str, bool]) -> None:
    if glob is not None:
        assert track.glob_of(tag) == glob
        assert track.matches(tag, glob)
    for other, fits in others.items():
        assert track.matches(other, glob or tag) == fits, other


def test_texts_of_the_tree_stay_data(new: Run, llama_tree: Upstream, catalog: Path) -> None:
    fenced = "```\n# not this one\n```\n"
    heading = '# "A" \\ \x1b[31m\u202e${X} [b](http://c) <i>d</i> #\n'
    llama_tree.commit("readme", **{"README.md": fenced + heading})
    llama_tree.git("tag", "x\"'$(touch${IFS}y)")
    new()
    found = only(catalog)
    assert found["summary"] == '"A" \\ [31m${X} b d'.replace("[", "")
    assert found["version"] == "x-touch-IFS-y"
    assert found["source"]["ref"] == "x\"'$(touch${IFS}y)"
    assert "track" not in found


@pytest.mark.parametrize(
    ("tag", "version"),
    [
        ("v1.2.3", "1.2.3"),
        ("vanilla-1", "vanilla-1"),
        ("b9304", "b9304"),
        ("release/1.0+cu", "release-1.0-cu"),
        ("x--y__z", "x-y_z"),
    ],
)
def test_versions_of_tags(tag: str, version: str) -> None:
    assert default_version(NamedCommit(tag, "0" * 40, "tag")) == version
