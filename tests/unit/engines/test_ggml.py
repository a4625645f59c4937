"""Trees with ggml inside: what the family sets, what it refuses, what is read of a tree."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest

from builder.core.errors import RecipeError
from builder.engines import cmake_tree
from builder.engines.families import ENGINES, complete
from builder.engines.family import Draft
from builder.plan.plan import Plan, instructions
from builder.recipes.probes import LibraryProbe
from builder.recipes.schema import Cuda
from support.catalogs import load, rendered
from support.trees import Tree

RECIPE = """
engine  = "x"
version = "1"
summary = "x"
license = "MIT"
family  = "{family}"
base    = "cuda-13.0"
source  = {{ git = "https://git.example.invalid/x", commit = "{commit}", ref = "{ref}" }}
{more}

[[cmake]]
{cmake}

[image]
repository = "x"
{image}

[[probe]]
option = "--x"
"""
COMMIT = "0123456789" * 4
TARGETS = 'targets = ["x-server"]'
ENTRY = 'entrypoint = ["/opt/engine/bin/x-server"]'


def write(catalog: Path, **other: str) -> None:
    values = {"family": "ggml", "commit": COMMIT, "more": "", "cmake": TARGETS, "image": ENTRY}
    text = RECIPE.format(**({"ref": "v1", **values} | other))
    (catalog / "recipes" / "x-1.toml").write_text(text)


def commands(plan: Plan) -> list[list[str]]:
    found = instructions(plan.text)
    return [json.loads("[" + rest.partition("[")[2]) for word, rest in found if word == "RUN"]


def test_the_family_compiles_ggml_and_nothing_of_llama_cpp(catalog: Path) -> None:
    write(catalog, more='ggml = { switch = "X_CUDA" }')
    plan = rendered(catalog, "x-1")
    (configure,) = (each for each in commands(plan) if "-S" in each)
    assert {"-DGGML_CUDA=ON", "-DX_CUDA=ON", "-DGGML_CUDA_NO_VMM=ON", "-DGGML_NATIVE=OFF"} <= {
        *configure
    }
    assert {"-DGGML_AVX2=ON", "-DCMAKE_RUNTIME_OUTPUT_DIRECTORY=/build/1/bin"} <= {*configure}
    assert not [word for word in configure if "LLAMA" in word]
    (collect,) = (each for each in commands(plan) if "/inside/collect.py" in each)
    assert collect[-3:] == ["/build/1/bin", "/opt/engine/bin", "x-server"]
    assert ENGINES["ggml"].compiles_ggml(plan.recipe, plan.platforms)
    assert plan.code == ["sm_120a"]
    (probe, _) = complete(load(catalog).engine("x-1").recipe).probe
    assert isinstance(probe, LibraryProbe)
    assert (probe.library, probe.architectures) == ("libggml-cuda.so", ["sm_120a"])


@pytest.mark.parametrize(
    ("other", "message"),
    [
        ({"image": ""}, "needs an entrypoint"),
        ({"cmake": ""}, "name the targets to install"),
        ({"cmake": f'{TARGETS}\ninstall = "rules"'}, 'does not take install = "rules"'),
        ({"cmake": f"{TARGETS}\ndefine = {{ GGML_CUDA_NO_VMM = true }}"}, "use vmm in [cuda]"),
        ({"cmake": f"{TARGETS}\ndefine = {{ GGML_STATIC = true }}"}, "a library of its own"),
        ({"more": "llama = { build_number = 1 }"}, "has no use for [llama]"),
        ({"family": "cmake"}, 'leave targets out, or set install = "targets"'),
        ({"family": "cmake", "cmake": 'install = "targets"'}, "name the targets to install"),
        ({"family": "cmake", "more": 'ggml = { switch = "X" }'}, "has no use for [ggml]"),
        (
            {
                "family": "llama-cpp",
                "more": "llama = { build_number = 1 }",
                "cmake": 'targets = ["llama-server"]\ninstall = "targets"',
            },
            "does not take install",
        ),
    ],
)
def test_what_is_refused(catalog: Path, other: dict[str, str], message: str) -> None:
    write(catalog, **other)
    with pytest.raises(RecipeError) as caught:
        load(catalog).engine("x-1")
    assert message in caught.value.why


def test_a_plain_tree_is_installed_by_its_targets(catalog: Path) -> None:
    write(catalog, family="cmake", cmake=f'{TARGETS}\ninstall = "targets"')
    plan = rendered(catalog, "x-1")
    assert "collect.py" in plan.scripts
    (line,) = (line for line in plan.text.splitlines() if "/inside/collect.py" in line)
    assert "--mount=type=bind,from=inside,target=/inside" in line
    assert "cmake --install" not in plan.text
    write(catalog, family="cmake", cmake="")
    other = rendered(catalog, "x-1")
    assert "collect.py" not in other.scripts
    assert '["cmake", "--install", "/build/1"' in other.text


# The git of a build stage


def test_git_answers_about_the_pin_alone(catalog: Path, tmp_path: Path) -> None:
    more = 'llama = { build_number = 7, git = true }\ntrack = { tag = "v*" }'
    write(catalog, family="llama-cpp", more=more, cmake='targets = ["llama-server"]', ref="v'1;id")
    plan = rendered(catalog, "x-1")
    (write_it,) = (each for each in commands(plan) if "/usr/local/bin/git" in each)
    git = tmp_path / "git"
    subprocess.run([str(git) if "bin/git" in word else word for word in write_it], check=True)
    for asked, said in {
        "rev-parse --short HEAD": COMMIT[:9],
        "rev-list --count HEAD": "7",
        "describe --tags --abbrev=7 --dirty=+": "v'1;id",
        "-C /x rev-parse HEAD": COMMIT,
    }.items():
        done = subprocess.run([git, *asked.split()], capture_output=True, text=True, check=True)
        assert done.stdout == f"{said}\n"
    version = subprocess.run([git, "--version"], capture_output=True, text=True, check=True)
    assert version.stdout.startswith("git version 2.")
    for asked in ("log", "rev-list --count main", "status", ""):
        assert subprocess.run([git, *asked.split()], capture_output=True).returncode == 128


def test_git_answers_in_a_release_without_a_history(catalog: Path) -> None:
    """What trees write into C: ``int LLAMA_BUILD_NUMBER = @BUILD_NUMBER@;``."""
    write(catalog, family="llama-cpp", more="llama.git = true", cmake='targets = ["llama-server"]')
    file = catalog / "recipes" / "x-1.toml"
    sdist = f'pypi = "x", version = "1", sha256 = "{"0" * 64}", root = "x"'
    text = re.sub("source .*", f"source = {{ {sdist} }}", file.read_text())
    file.write_text(text)
    (lines,) = (each for each in commands(rendered(catalog, "x-1")) if "/usr/local/bin/git" in each)
    assert "'rev-list --count HEAD') echo 0 ;;" in lines
    assert "'rev-parse --short HEAD') echo unknown ;;" in lines


def test_without_being_asked_for_there_is_no_git(catalog: Path) -> None:
    more = "llama = { build_number = 7 }"
    write(catalog, family="llama-cpp", more=more, cmake='targets = ["llama-server"]')
    assert "local/bin/git" not in rendered(catalog, "x-1").text


# The tree


HEARS = Tree(
    {
        "CMakeLists.txt": "project(hears C CXX)\n# option(GGML_OLD_CUDA)\nadd_subdirectory(ggml)\n",
        "ggml/CMakeLists.txt": 'option(GGML_CUDA "x")\noption(GGML_CUDA_FORCE_CUBLAS "x" OFF)\n',
        "ggml/src/ggml-cuda/CMakeLists.txt": "",
        "examples/server/CMakeLists.txt": "set(TARGET hears-server)",
        "examples/cli/CMakeLists.txt": "add_executable(hears-cli x.cpp)",
        "tests/CMakeLists.txt": "add_executable(test-server x.cpp)",
        "examples/server/server.cpp": 'arg == "--host"; arg == "--port"; Get("/health", f)',
        "tests/server.cpp": '"--listen"',
    }
)


def read(tree: Tree) -> Draft | None:
    return ENGINES["ggml"].draft(tree, Cuda())


def values(found: Draft | None, table: str) -> dict[str, object]:
    assert found is not None
    return {line.key: line.value for each in found.tables[table] for line in each.lines}


def test_a_tree_with_a_server_is_read() -> None:
    found = read(HEARS)
    assert values(found, "cmake") == {"targets": ["hears-server"]}
    assert values(found, "ggml") == {}
    assert values(found, "cuda") == {"arch": ["120a"], "vmm": False}, "its cmake makes no 120a"
    server = "/opt/engine/bin/hears-server"
    assert values(found, "image") == {
        "entrypoint": [server, "--host", "0.0.0.0", "--port", "8080"],  # noqa: S104
        "port": 8080,
        "health": "health",
    }


def test_a_renamed_switch_and_a_submodule_are_read() -> None:
    files: dict[str, str | None] = dict.fromkeys(
        ("ggml/CMakeLists.txt", "ggml/src/ggml-cuda/CMakeLists.txt")
    )
    files["CMakeLists.txt"] = (
        'option(SD_CUDA "x" OFF)\noption(SD_BUILD_SHARED_GGML_LIB "x" OFF)\nset(GGML_CUDA ON)'
    )
    files[".gitmodules"] = '[submodule "ggml"]\n    path = ggml\n'
    found = read(Tree(HEARS.given | files))
    assert values(found, "ggml") == {"switch": "SD_CUDA"}
    assert values(found, "cmake")["define"] == {"SD_BUILD_SHARED_GGML_LIB": True}


def test_the_tests_of_the_same_ggml_are_read() -> None:
    """whisper.cpp has no kernel tests, and a file with the commit of ggml that it has."""
    commit = "1e33fed33e87c43aa4c4078e2a9c239d4c1f1bd3"
    synced = {"scripts/sync-ggml.last": f"{commit}\n"}
    wanted = {"git": "https://github.com/ggml-org/ggml", "commit": commit}
    assert values(read(Tree(HEARS.given | synced)), "ggml") == wanted
    own = {"ggml/tests/test-backend-ops.cpp": ""}
    assert values(read(Tree(HEARS.given | synced | own)), "ggml") == {}
    assert values(read(Tree(HEARS.given | {"scripts/sync-ggml.last": "main"})), "ggml") == {}


@pytest.mark.parametrize(
    ("cmake", "version"),
    [
        ('project("x" C)\nproject("x" VERSION 1.8.5)', "1.8.5"),
        ("project(x C CXX)\n# project(x VERSION 1.0)", ""),
        ("cmake_minimum_required(VERSION 3.5)\nproject(x)", ""),
        (
            "set(LLAMA_VERSION_MAJOR 0)\nset(LLAMA_VERSION_MINOR 5)\nset(LLAMA_VERSION_PATCH 0)\n"
            'option(LLAMA_BUILD_IS_DEV "x" ON)',
            "0.5.0-dev",
        ),
    ],
)
def test_the_version_of_a_tree_is_what_its_cmake_says(cmake: str, version: str) -> None:
    assert cmake_tree.own_version(Tree({"CMakeLists.txt": cmake})) == version


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ({"examples/server/CMakeLists.txt": None}, "servers: none; lacks: a program"),
        ({"examples/server/server.cpp": '"--port"'}, "lacks: a host in its sources, a health page"),
        (
            {"ggml/CMakeLists.txt": None, "CMakeLists.txt": "project(x LANGUAGES CXX CUDA)"},
            "CUDA: always compiled; servers: hears-server; lacks: a directory ggml",
        ),
        (
            {"ggml/CMakeLists.txt": 'option(X "y" ON)'},
            "CUDA: none; servers: hears-server; lacks: an",
        ),
        (
            {
                "ggml/CMakeLists.txt": None,
                "CMakeLists.txt": "project(x LANGUAGES CUDA)\n"
                "if(CMAKE_CUDA_COMPILER_VERSION VERSION_LESS 13.1)\n"
                "pkg_check_modules(FF REQUIRED IMPORTED_TARGET libavcodec>=60)",
            },
            "CUDA 13.1 or newer; libraries by pkg-config: libavcodec>=60; lacks: a directory ggml",
        ),
        (
            {"CMakeLists.txt": None, "Makefile": "all:\n"},
            "Makefile; lacks: CMakeLists.txt at its top",
        ),
    ],
)
def test_what_a_tree_lacks_is_said_in_one_line(files: dict[str, str | None], said: str) -> None:
    tree = Tree(HEARS.given | files)
    assert read(tree) is None
    described = cmake_tree.described(tree)
    assert said in described
    assert "\n" not in described


def test_of_two_servers_none_is_chosen() -> None:
    second = HEARS.files | {"tools/CMakeLists.txt": "add_executable(sees-server x)"}
    tree = Tree(second)
    assert read(tree) is None
    assert "servers: hears-server, sees-server" in cmake_tree.described(tree)
