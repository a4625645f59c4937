"""How large the farm is, and how much of it one command reaches: the table behind builder/SIZE.

    .venv/bin/python studies/house.py            # prints the table
    .venv/bin/python studies/house.py --write    # writes builder/SIZE, the ratchet of the tests
    .venv/bin/python studies/house.py --classes  # names the classes that one place constructs
    .venv/bin/python studies/house.py --single   # names the modules that one other imports

Lines are all lines of a file.  A command reaches what its module imports, and so on, imports within
functions included.  A class is constructed where its name is called.
"""

from __future__ import annotations

import argparse
import ast
from collections import Counter
from collections.abc import Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

REPOSITORY = Path(__file__).parents[1]
SIZE = REPOSITORY / "builder" / "SIZE"
PACKAGES = ("builder", "simulator")
COMMANDS = ("build", "show", "choose", "push")


@cache
def modules() -> dict[str, Path]:
    """Every module of the farm and of the simulator's Python half, by its dotted name."""
    found = {}
    for package in PACKAGES:
        folder = REPOSITORY / package
        for file in sorted(folder.rglob("*.py")):
            path = file.relative_to(REPOSITORY).with_suffix("")
            if package == "simulator" and file.parent != folder:
                continue  # programs of a build, tests: no part of the half
            parts = path.parts[:-1] if path.name == "__init__" else path.parts
            found[".".join(parts)] = file
    return found


@cache
def lines(module: str) -> int:
    """The lines of a module."""
    return len(modules()[module].read_text("utf-8").splitlines())


@cache
def parsed(module: str) -> ast.Module:
    """A module's syntax."""
    return ast.parse(modules()[module].read_text("utf-8"))


def _checked_only(tree: ast.Module) -> set[int]:
    """The nodes that only a type checker sees, by identity."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING"):
            found |= {id(each) for child in node.body for each in ast.walk(child)}
    return found


def _named(node: ast.Import | ast.ImportFrom) -> Iterator[str]:
    if isinstance(node, ast.Import):
        yield from (each.name for each in node.names)
    elif node.level == 0 and node.module:
        for each in node.names:
            inner = f"{node.module}.{each.name}"
            yield inner if inner in modules() else node.module


@cache
def imports(module: str) -> frozenset[str]:
    """The farm's modules that one imports, packages on the way included."""
    tree = parsed(module)
    hidden = _checked_only(tree)
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom) and id(node) not in hidden:
            for name in _named(node):
                parts = name.split(".")
                found |= {".".join(parts[:count]) for count in range(1, len(parts) + 1)}
    return frozenset(found & {*modules()} - {module})


def reach(module: str) -> frozenset[str]:
    """All modules that one module leads to, itself included."""
    seen: set[str] = set()
    waiting = [module]
    while waiting:
        name = waiting.pop()
        if name not in seen:
            seen.add(name)
            waiting += imports(name)
    return frozenset(seen)


def circle() -> list[str]:
    """Modules that import each other in a circle as they are loaded; empty: there is none."""
    graph = {}
    for module, file in modules().items():
        if file.name != "__init__.py":
            body = parsed(module).body
            found = [each for each in body if isinstance(each, ast.Import | ast.ImportFrom)]
            graph[module] = {name for each in found for name in _named(each)} - {module}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return [*error.args[1]]
    return []


def command_module(command: str) -> str:
    """The module that holds a command's function: the one whose name is the command's."""
    for name in sorted(modules()):
        if name.startswith("builder.cli.") and any(
            isinstance(node, ast.FunctionDef) and node.name == command for node in parsed(name).body
        ):
            return name
    raise SystemExit(f"studies/house.py: builder/cli has no function {command}: name the command")


def classes() -> dict[str, str]:
    """Every class by its module and name."""
    return {
        f"{module}.{node.name}": node.name
        for module in modules()
        for node in ast.walk(parsed(module))
        if isinstance(node, ast.ClassDef)
    }


def constructed() -> Counter[str]:
    """How many places construct a class, by its name, whatever module it is of."""
    found: Counter[str] = Counter()
    for module in modules():
        for node in ast.walk(parsed(module)):
            if isinstance(node, ast.Call):
                word = node.func
                name = word.attr if isinstance(word, ast.Attribute) else getattr(word, "id", "")
                found[name] += 1
    return found


def once_made() -> list[str]:
    """The dataclasses that at most one place constructs."""
    made = constructed()
    return sorted(
        f"{module}.{node.name}"
        for module in modules()
        for node in ast.walk(parsed(module))
        if isinstance(node, ast.ClassDef)
        and any("dataclass" in ast.unparse(each) for each in node.decorator_list)
        and made[node.name] <= 1
    )


def single() -> dict[str, str]:
    """The modules that exactly one other imports, with that other."""
    users: dict[str, list[str]] = {}
    for module in modules():
        for name in imports(module):
            users.setdefault(name, []).append(module)
    return {
        name: found[0]
        for name, found in sorted(users.items())
        if len(found) == 1 and modules()[name].name != "__init__.py"
    }


def packages() -> dict[str, list[str]]:
    """The modules of each room: the packages directly in builder, and the simulator's half."""
    found: dict[str, list[str]] = {}
    for module, file in modules().items():
        found.setdefault(str(file.parent.relative_to(REPOSITORY)), []).append(module)
    return dict(sorted(found.items()))


def table() -> dict[str, tuple[int, ...]]:
    """What ``builder/SIZE`` holds: modules and lines by room and by command, and the classes."""
    rooms = {name: (len(held), sum(map(lines, held))) for name, held in packages().items()}
    found: dict[str, tuple[int, ...]] = {
        "all": (len(modules()), sum(map(lines, modules()))),
        **rooms,
    }
    for command in COMMANDS:
        reached = reach(command_module(command))
        found[f"reach {command}"] = (len(reached), sum(map(lines, reached)))
    found["classes"] = (len(classes()),)
    found["classes made once"] = (len(once_made()),)
    return found


def text(found: dict[str, tuple[int, ...]]) -> str:
    """The table as the text of ``builder/SIZE``: a name, then modules and lines, or one count."""
    width = max(map(len, found)) + 2
    rows = [
        f"{name:{width}}" + "".join(f"{count:8}" for count in counts)
        for name, counts in found.items()
    ]
    head = "# Modules and lines. A change that lets one grow writes it anew, and says why:\n"
    return head + "# .venv/bin/python studies/house.py --write\n" + "\n".join(rows) + "\n"


def read(file: Path = SIZE) -> dict[str, tuple[int, ...]]:
    """The table that ``builder/SIZE`` holds."""
    found = {}
    for line in file.read_text("utf-8").splitlines():
        if not line.startswith("#"):
            words = line.split()
            count = sum(word.isdigit() for word in words)
            found[" ".join(words[:-count])] = tuple(map(int, words[-count:]))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--write", action="store_true", help="write builder/SIZE")
    parser.add_argument("--classes", action="store_true", help="name the classes made once")
    parser.add_argument("--single", action="store_true", help="name the modules with one user")
    options = parser.parse_args()
    if options.write:
        SIZE.write_text(text(table()), "utf-8")
    elif options.classes:
        print("\n".join(once_made()))
    elif options.single:
        print("\n".join(f"{name:56} {user}" for name, user in single().items()))
    else:
        print(text(table()), end="")


if __name__ == "__main__":
    main()
