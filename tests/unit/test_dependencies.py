"""Every import is of a distribution that pyproject.toml declares."""

from __future__ import annotations

import ast
import subprocess
import sys
import tomllib
from collections.abc import Iterable, Iterator
from importlib.metadata import packages_distributions, requires
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from support.cubins import Function, cubin
from support.environment import REPOSITORY
from support.fatbins import ELF, LZ4, entry, library, region

PROGRAMS = {"pip"}  # run, never imported
PROJECT = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]


def names(requirements: Iterable[str]) -> set[str]:
    return {canonicalize_name(Requirement(text).name) for text in requirements}


# _typeshed is there for type checkers alone; studies import simulator/ptx/real/ggml.py by its path.
KNOWN = {*sys.stdlib_module_names, "_typeshed", "ggml"}


def imported(files: Iterable[Path]) -> Iterator[str]:
    """Modules in full, as files name them, without Python's own."""
    for file in files:
        for node in ast.walk(ast.parse(file.read_text())):
            found: list[str] = []
            if isinstance(node, ast.Import):
                found = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                assert node.level == 0, f"{file} has a relative import"
                found = [f"{node.module}.{alias.name}" for alias in node.names]
            yield from (name for name in found if name.split(".")[0] not in KNOWN)


def distributions(modules: Iterable[str]) -> set[str]:
    """The distributions that bring modules."""
    brought = packages_distributions()
    found: set[str] = set()
    for module in modules:
        top, _, rest = module.partition(".")
        if top == "backports":  # of several distributions, and not there on a newer Python
            found.add(f"backports-{rest.split('.')[0]}")
        else:
            named = brought.get(top, [f"nothing brings {module}"])
            found |= {canonicalize_name(name) for name in named}
    return found


def test_what_builder_imports_is_what_it_declares() -> None:
    files = [*(REPOSITORY / "builder").rglob("*.py"), *(REPOSITORY / "simulator").glob("*.py")]
    own = ("builder.", "simulator.")
    found = distributions(name for name in imported(files) if not name.startswith(own))
    declared = [*PROJECT["dependencies"], *PROJECT["optional-dependencies"]["build"]]
    assert found == names(declared) - PROGRAMS


def test_what_the_tests_import_is_declared() -> None:
    data = REPOSITORY / "tests/data"
    tests = [file for file in (REPOSITORY / "tests").rglob("*.py") if data not in file.parents]
    files = [*tests, *(REPOSITORY / "studies").glob("*.py")]
    real = (REPOSITORY / "simulator/ptx/real").glob("*.py")  # which studies import
    ours = {"builder", "simulator", "support", "ptxlab", *(file.stem for file in (*files, *real))}
    found = distributions(name for name in imported(files) if name.split(".")[0] not in ours)
    extra = PROJECT["optional-dependencies"]
    assert found <= names([*PROJECT["dependencies"], *extra["build"], *extra["dev"]])


def locked(name: str) -> set[str]:
    """The packages of a lock."""
    lines = (REPOSITORY / name).read_text().splitlines()
    return {canonicalize_name(line.partition("==")[0]) for line in lines if "==" in line}


def needed(requirements: Iterable[str]) -> set[str]:
    """The packages that requirements need here, and those that these need, and so on."""
    found: set[str] = set()
    todo = [Requirement(text) for text in requirements]
    while todo:
        one = todo.pop()
        name = canonicalize_name(one.name)
        if name in found or (one.marker and not one.marker.evaluate({"extra": ""})):
            continue
        found.add(name)
        todo += [Requirement(text) for text in requires(name) or ()]
    return found


def test_each_lock_installs_what_the_one_before_lacks() -> None:
    extra = PROJECT["optional-dependencies"]
    runtime = needed([*PROJECT["dependencies"], *extra["farm"]])
    assert locked("requirements.lock") == runtime
    build = needed(extra["build"]) - runtime
    assert locked("requirements-build.lock") == build
    tests = needed(extra["dev"])
    assert locked("requirements-dev.lock") >= tests - runtime - build
    assert locked("requirements-dev.lock").isdisjoint(runtime | build)


@pytest.fixture
def without_build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes do not find the packages of the extra ``build``."""
    missing = names(PROJECT["optional-dependencies"]["build"])
    modules = [name.replace("-", "_") for name in missing]
    code = f"import sys\nfor name in {modules}: sys.modules[name] = None\n"
    (tmp_path / "sitecustomize.py").write_text(code)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))


def builder(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "builder", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=REPOSITORY)


@pytest.mark.usefixtures("without_build")
@pytest.mark.parametrize(
    "command",
    [
        "--help",
        "list",
        "list --presets",
        "show hello-sm120",
        "show qwen3.6-27b-dflash@5090-laptop",
        "choose --card 5090",
        "recipe explain beellama-0.1.1",
        "receipts",
        "run qwen3.6-27b-dflash@5090-laptop --dry-run",
        "ci matrix --json",
        "ci matrix hello-sm120 --json --changed-since HEAD",
    ],
)
def test_commands_that_print_need_no_extra(command: str) -> None:
    done = builder(*command.split())
    assert done.returncode == 0, done.stderr


@pytest.mark.usefixtures("without_build")
def test_a_command_that_needs_the_extra_says_how_to_install_it(tmp_path: Path) -> None:
    files = [tmp_path / name for name in ("a.so", "b.so")]
    for file in files:
        code = entry(ELF, 120, LZ4, cubin(Function(file.stem)))
        file.write_bytes(library(region(code)).getvalue())
    done = builder("compare", *map(str, files))
    assert done.returncode == 4
    assert "the packages for builds and tests of images are not installed" in done.stderr
    assert "-> install builder with its extra `build`" in done.stderr
