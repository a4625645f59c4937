"""The key: everything that decides the image changes it, and nothing else does."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from builder.core.errors import FetchError, RecipeError
from builder.core.platforms import Platforms
from builder.plan.inputs import RegistryRoot
from builder.plan.resolver import plan
from support.catalogs import AMD64, load, mmdebstrap, rendered, write_lock
from support.environment import REPOSITORY

NAME = "hello-sm120-0.1.0"


@pytest.fixture
def root(catalog: Path) -> Path:
    shutil.copytree(REPOSITORY / "engines", catalog / "engines")
    shutil.copy(REPOSITORY / "recipes" / f"{NAME}.toml", catalog / "recipes")
    return catalog


def replaced(name: str, old: str, new: str) -> Callable[[Path], None]:
    def change(root: Path) -> None:
        file = root / name
        text = file.read_text()
        assert old in text
        file.write_text(text.replace(old, new, 1))

    return change


def other_versions(name: str) -> Callable[[Path], None]:
    def change(root: Path) -> None:
        text = (root / name).read_text()
        write_lock(root / name, text.replace('version = "', 'version = "1:', 1))

    return change


def put(file: Path) -> None:
    file.parent.mkdir()
    file.touch()


def require_another_key(root: Path, name: str, copy: Path, change: Callable[[Path], None]) -> None:
    """A change gives another key; the same change elsewhere gives the same other key."""
    before = rendered(root, name).key
    shutil.copytree(root, copy, copy_function=shutil.copy)  # with other times
    assert rendered(copy, name).key == before
    for each in (root, copy):
        change(each)
    assert rendered(root, name).key == rendered(copy, name).key != before


RECIPE = f"recipes/{NAME}.toml"
BASE = "recipes/bases/cuda-13.0.toml"
LOCKS = "recipes/bases/locks/"


@pytest.mark.parametrize(
    "change",
    [
        replaced("engines/hello-sm120/src/model.cpp", "\n", "\n\n"),
        lambda root: (root / "engines/hello-sm120/CMakeLists.txt").chmod(0o755),
        lambda root: (root / "engines/hello-sm120/new").touch(),
        replaced(RECIPE, "HELLO_BUILD_NUMBER = 1", "HELLO_BUILD_NUMBER = 2"),
        replaced(RECIPE, 'arch = ["120"]', 'arch = ["120a"]'),
        replaced(RECIPE, 'summary = "', 'summary = "Behold: '),
        replaced(RECIPE, "port       = 8080", "port       = 8081"),
        replaced(RECIPE, "[image]", '[image]\ncompression = "zstd"'),
        replaced(BASE, '"13.0.88"', '"13.0.89"'),
        replaced(BASE, 'sha256.amd64 = "5', 'sha256.amd64 = "6'),
        other_versions(LOCKS + "cuda-13.0.debian.toml"),
        other_versions(LOCKS + "debian-trixie.debian.toml"),
    ],
)
def test_what_decides_the_image_changes_the_key(
    root: Path, tmp_path: Path, change: Callable[[Path], None]
) -> None:
    require_another_key(root, NAME, tmp_path / "copy", change)


@pytest.mark.parametrize(
    "change",
    [
        replaced(RECIPE, 'tags       = ["0.1.0"]', 'tags       = ["0.1.0", "latest"]'),
        replaced(RECIPE, 'contains = ["version: 1', 'contains = ["Version: 1'),
        replaced(RECIPE, "disk = 3.0", "disk = 4.0"),
        replaced(RECIPE, "[image]", '[image]\ncompression = "gzip"'),
        replaced(RECIPE, "[budget]", "[budget]\nupdate = 9"),
        replaced(RECIPE, 'family  = "cmake"', 'family = "cmake"\nnotes = ["for people"]'),
        replaced(RECIPE, 'has    = ["auto", "cpu", "cuda"]', "has = []"),
        replaced("recipes/bases/cuda-13.0.toml", 'summary = "', 'summary = "Behold: '),
        replaced(RECIPE, "[cuda]", "# a comment\n[cuda]"),
        lambda root: put(root / "engines/hello-sm120/__pycache__/x.pyc"),
        lambda root: put(root / "engines/hello-sm120/.git/HEAD"),
        lambda root: os.utime(root / "engines/hello-sm120/CMakeLists.txt", (1, 1)),
    ],
)
def test_what_does_not_decide_the_image_leaves_the_key(
    root: Path, change: Callable[[Path], None]
) -> None:
    before = rendered(root, NAME).key
    change(root)
    assert rendered(root, NAME).key == before


def test_platform_and_root_are_part_of_the_key(root: Path) -> None:
    found = load(root)
    entry = found.engine(NAME)
    bootstrapped = mmdebstrap(found)
    registry = RegistryRoot("debian:trixie-slim", "sha256:" + "1" * 64)
    keys = {
        plan(found, entry, AMD64, bootstrapped).key,
        plan(found, entry, Platforms("arm64"), bootstrapped).key,
        plan(found, entry, AMD64, registry).key,
        plan(found, entry, AMD64, replace(registry, digest="sha256:" + "2" * 64)).key,
    }
    assert len(keys) == 4


PATCHED = """
engine  = "patched"
version = "1"
summary = "x"
license = "MIT"
family  = "llama-cpp"
base    = "cuda-13.0"

[source]
git    = "https://git.example.invalid/x"
commit = "1111111111111111111111111111111111111111"

[[patch]]
file = "x.patch"
why  = "because"

[[patch]]
pull = 6
base = "1111111111111111111111111111111111111111"
head = "2222222222222222222222222222222222222222"
why  = "because"

[[patch]]
why  = "because"

[patch.pick]
after = "1111111111111111111111111111111111111111"
to    = "3333333333333333333333333333333333333333"

[[patch]]
why = "because"

[patch.script]
git       = "https://git.example.invalid/s"
commit    = "4444444444444444444444444444444444444444"
path      = "patch.py"
arguments = ["a"]

[cuda]
arch = ["120"]

[llama]
build_number = 1

[[cmake]]
targets = ["llama-server"]

[image]
repository = "patched"
tags       = ["1"]

[[probe]]
option = "--x"
"""
FILE = "recipes/patched-1.toml"


@pytest.fixture
def patched(catalog: Path) -> Path:
    (catalog / FILE).write_text(PATCHED)
    (catalog / "patches").mkdir()
    (catalog / "patches" / "x.patch").write_text("--- a/x\n+++ b/x\n@@ -1 +1 @@\n-a\n+b\n")
    return catalog


@pytest.mark.parametrize(
    "change",
    [
        replaced("patches/x.patch", "+b", "+c"),
        replaced(FILE, 'file = "x.patch"', 'file = "x.patch"\nleave_out = ["x"]'),
        replaced(FILE, 'head = "2', 'head = "3'),
        replaced(FILE, 'base = "1', 'base = "0'),
        replaced(FILE, 'to    = "3', 'to = "4'),
        replaced(FILE, 'after = "1', 'after = "2'),
        replaced(FILE, 'commit    = "4', 'commit    = "5'),
        replaced(FILE, '"patch.py"', '"other.py"'),
        replaced(FILE, 'arguments = ["a"]', 'arguments = ["a", "b"]'),
        replaced(FILE, 'arguments = ["a"]', 'arguments = ["a"]\nat = "/opt/x"'),
        replaced(FILE, 'commit = "1', 'submodules = false\ncommit = "1'),
        replaced(FILE, '[[patch]]\nfile = "x.patch"\nwhy  = "because"\n', ""),
        replaced(FILE, "build_number = 1", "build_number = 2"),
    ],
)
def test_what_decides_the_source_changes_the_key(
    patched: Path, tmp_path: Path, change: Callable[[Path], None]
) -> None:
    require_another_key(patched, "patched-1", tmp_path / "copy", change)


@pytest.mark.parametrize(
    "change",
    [
        replaced(FILE, '"because"', '"for another reason"'),
        replaced(FILE, '"because"', '"because"\ndrop_when = "never"\nupstream = "o/r#1"'),
        replaced(FILE, '"because"', '"because"\nprobe = { option = "--y" }'),
        replaced(FILE, "invalid/s", "invalid/mirror-of-s"),
        replaced(FILE, 'path      = "patch.py"', 'path      = "patch.py"\nseconds = 600'),
        replaced(FILE, "[cuda]", '[track]\ntag = "b*"\n[cuda]'),
        replaced(FILE, 'commit = "1', 'submodule = { x = "file:///y" }\ncommit = "1'),
    ],
)
def test_reasons_and_addresses_leave_the_key(patched: Path, change: Callable[[Path], None]) -> None:
    before = rendered(patched, "patched-1").key
    change(patched)
    assert rendered(patched, "patched-1").key == before


def test_the_order_of_patches_is_part_of_the_key(patched: Path) -> None:
    found = load(patched)
    planned = plan(found, found.engine("patched-1"), AMD64, mmdebstrap(found))
    other = replace(planned, patches=planned.patches[::-1])
    assert planned.key != other.key


def test_a_script_of_the_stages_is_part_of_the_key(root: Path) -> None:
    found = load(root)
    planned = plan(found, found.engine(NAME), AMD64, mmdebstrap(found))
    other = replace(planned, scripts={"jobs": "0" * 64})
    assert planned.key != other.key


def test_a_source_tree_that_is_not_there_is_named_with_its_line(root: Path) -> None:
    shutil.rmtree(root / "engines" / "hello-sm120")
    file = root / "recipes" / f"{NAME}.toml"
    line = file.read_text().splitlines().index('path = "engines/hello-sm120"') + 1
    with pytest.raises(FetchError) as caught:
        rendered(root, NAME)
    tree = root / "engines" / "hello-sm120"
    assert caught.value.why == f"{file}:{line}: source.path: there is no source tree {tree}"


def test_another_process_comes_to_the_same_key(root: Path) -> None:
    code = f"from support.catalogs import rendered; print(rendered({str(root)!r}, {NAME!r}).key)"
    code = "import sys; from pathlib import Path; sys.path.insert(0, sys.argv[1])\n" + code.replace(
        f"({str(root)!r}", f"(Path({str(root)!r})"
    )
    keys = {
        subprocess.run(
            [sys.executable, "-c", code, str(REPOSITORY / "tests")],
            env=os.environ | {"PYTHONHASHSEED": seed},
            cwd=root,
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()
        for seed in ("1", "2")
    }
    assert keys == {rendered(root, NAME).key}


@pytest.mark.parametrize(
    ("file", "old", "new", "said"),
    [
        (RECIPE, 'base    = "cuda-13.0"', 'base = "debian-trixie"', "has no stage devel"),
        (BASE, 'base    = "debian-trixie"', 'base = "other"', "has no stage root"),
    ],
)
def test_a_base_must_have_the_stages_that_are_needed(
    root: Path, file: str, old: str, new: str, said: str
) -> None:
    other = (root / BASE).read_text().replace('name    = "cuda-13.0"', 'name = "other"')
    (root / "recipes" / "bases" / "other.toml").write_text(other)
    replaced(file, old, new)(root)
    with pytest.raises(RecipeError, match=said) as error:
        rendered(root, NAME)
    assert f"{Path(file).name}:{error.value.problems[0].line}: base: " in str(error.value)
    assert error.value.problems[0].line > 1
