"""Imports point the way of the data: nothing knows what comes after it."""

from __future__ import annotations

import ast
from pathlib import Path

import builder

ROOT = Path(builder.__file__).parent
DATA = {"schema", "positions", "recipe", "catalogue", "lock", "platforms", "errors"}
LAST = {
    "cli",
    "cli_bake",
    "cli_bench",
    "cli_bisect",
    "cli_hub",
    "cli_ccache",
    "cli_locks",
    "cli_matrix",
    "cli_nights",
    "cli_proofs",
    "cli_prune",
    "cli_publish",
    "cli_sbom",
    "cli_sources",
    "command",
    "__main__",
}
IN_ORDER = [
    *("errors", "schema", "recipe", "catalogue", "plan", "dockerfile"),
    *("checkout", "patches", "sources", "context"),
]


def imports() -> dict[str, set[str]]:
    """Each module of ours, and the modules of ours that it imports, by their dotted names."""
    names = {
        ".".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): file
        for file in ROOT.rglob("*.py")
        if "inside" not in file.parts
    }
    found: dict[str, set[str]] = {}
    for name, file in names.items():
        used = found[name] = set()
        for node in ast.walk(ast.parse(file.read_text())):
            if (
                isinstance(node, ast.ImportFrom)
                and node.module
                and node.module.startswith("builder")
            ):
                module = node.module.removeprefix("builder").lstrip(".")
                for alias in node.names:
                    inner = f"{module}.{alias.name}".lstrip(".")
                    used.add(inner if inner in names else module or "__init__")
    return found


def test_who_may_know_whom() -> None:
    found = imports()
    assert found["errors"] == set()
    for name, used in found.items():
        if name.startswith("tools."):
            assert {u for u in used if u != "errors" and not u.startswith("tools")} == set(), name
        if name in DATA or name.startswith("schema."):
            assert not [u for u in used if u.startswith(("tools", "families"))], name
        if name not in LAST:
            assert not used & {*LAST, "console"}, name
        if name in IN_ORDER:
            after = set(IN_ORDER[IN_ORDER.index(name) + 1 :])
            assert not used & after, f"{name} knows {used & after}"


def test_there_is_no_circle() -> None:
    waiting = {name: used - {name, "__init__"} for name, used in imports().items()}
    while waiting:
        free = {name for name, used in waiting.items() if not used & waiting.keys()}
        assert free, f"these import each other: {sorted(waiting)}"
        waiting = {name: used for name, used in waiting.items() if name not in free}


def test_only_the_command_line_prints_and_exits() -> None:
    for file in ROOT.rglob("*.py"):
        if file.stem in {"cli", "console", "machine"} or "inside" in file.parts:
            continue
        for node in ast.walk(ast.parse(file.read_text())):
            called = node.func if isinstance(node, ast.Call) else None
            assert not (isinstance(called, ast.Name) and called.id in {"print", "exit"}), file
            assert not (isinstance(called, ast.Attribute) and called.attr == "exit"), file


def test_imports_have_the_one_form_that_is_read_above() -> None:
    for file in ROOT.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Import):
                assert not [a for a in node.names if a.name.split(".")[0] == "builder"], file
            assert not (isinstance(node, ast.ImportFrom) and node.level), file
