"""Every import is of a distribution that pyproject.toml declares."""

from __future__ import annotations

import ast
import sys
import tomllib
from collections.abc import Iterable, Iterator
from importlib.metadata import packages_distributions, requires
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from support.environment import REPOSITORY

PROGRAMS = {"pip", "uv"}  # run, never imported
PROJECT = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]


def names(requirements: Iterable[str]) -> set[str]:
    return {canonicalize_name(Requirement(text).name) for text in requirements}


KNOWN = {*sys.stdlib_module_names, "_typeshed"}  # the latter is there for type checkers alone


def imported(files: Iterable[Path]) -> Iterator[str]:
    """Modules in full, as files name them, without those of Python itself."""
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
    files = (REPOSITORY / "builder").rglob("*.py")
    found = distributions(name for name in imported(files) if not name.startswith("builder."))
    assert found == names(PROJECT["dependencies"]) - PROGRAMS


def test_what_the_tests_import_is_declared() -> None:
    data = REPOSITORY / "tests/data"
    tests = [file for file in (REPOSITORY / "tests").rglob("*.py") if data not in file.parents]
    files = [*tests, *(REPOSITORY / "bench").glob("*.py")]
    ours = {"builder", "support", "ptxlab", *(file.stem for file in files)}
    found = distributions(name for name in imported(files) if name.split(".")[0] not in ours)
    extra = PROJECT["optional-dependencies"]
    assert found <= names([*PROJECT["dependencies"], *extra["dev"]])


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


def test_the_first_start_installs_what_builder_runs_with_and_no_more() -> None:
    extra = PROJECT["optional-dependencies"]
    runtime = needed([*PROJECT["dependencies"], *extra["farm"]])
    assert locked("requirements.lock") == runtime
    tests = needed(extra["dev"])
    assert locked("requirements-dev.lock") >= tests - runtime
    assert locked("requirements-dev.lock").isdisjoint(runtime)
