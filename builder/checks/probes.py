"""Check: the probes of the recipe, and of its patches."""

from __future__ import annotations

import ast
import fnmatch
import posixpath
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from builder.checks import cuda
from builder.checks.subject import Context, guarded, of_option, of_run
from builder.checks.verdict import Check
from builder.image.contents import Contents, File, ReadOptions
from builder.recipes.probes import (
    FileProbe,
    LibraryProbe,
    OptionProbe,
    Probe,
    PythonProbe,
    RunProbe,
    pattern_names,
)
from builder.recipes.schema import Recipe

# Check: files of the image contain the texts and the Python code that the probes name.

SHOWN = 120  # characters of a piece of code in a table
Definition = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def at(contents: Contents, path: str) -> list[File]:
    """The files at ``path``, links followed; ``*`` and ``?`` are wildcards."""
    paths = [path]
    if "*" in path or "?" in path:
        paths = [there for there in contents.files if fnmatch.fnmatchcase(there, path)]
    resolved = {contents.resolve(each) for each in paths}
    found = [contents.files[each] for each in sorted(filter(None, resolved))]
    return [file for file in found if file.kind == "file"]


def check_file(probe: FileProbe, contents: Contents) -> Iterator[Check]:
    """The checks of a recipe's ``[[probe]] file``; every matching file must pass them."""
    found = at(contents, probe.file)
    there = ", ".join(file.path for file in found[:5]) or "no such file"
    if probe.absent:
        yield Check.of("file", probe.file, "does not exist", there, not found)
        return
    yield Check.of("file", probe.file, "exists", there, bool(found))
    for file in found:
        yield from _contents_of(probe, file)


def _contents_of(probe: FileProbe, file: File) -> Iterator[Check]:
    if probe.sha256 is not None:
        same = file.digest == probe.sha256
        yield Check.of("file", file.path, f"sha256 {probe.sha256}", file.digest, same)
    if probe.sha256_not is not None:
        other = file.digest != probe.sha256_not
        yield Check.of("file", file.path, f"not sha256 {probe.sha256_not}", file.digest, other)
    if (probe.has or probe.missing or probe.matches) and file.text is None:
        yield Check.of("file", file.path, "a text of at most 16 MiB", "is not one", False)
        return
    text = file.text or ""
    there = {piece: piece in text for piece in (*probe.has, *probe.missing)}
    yield from _pieces("file", file.path, probe, there)
    for name, pattern in zip(pattern_names(probe.matches), probe.matches, strict=True):
        match = re.search(pattern, text)
        found = match[0][:SHOWN] if match else "nothing matches"
        yield Check.of("file", file.path, f"matches {name}", found, match is not None)


def _pieces(
    kind: str, subject: str, probe: FileProbe | PythonProbe, there: Mapping[str, bool]
) -> Iterator[Check]:
    """A probe's pieces, by whether they are there."""
    for wanted, pieces in (("has", probe.has), ("does not have", probe.missing)):
        for piece in pieces:
            found = "has it" if there[piece] else "does not have it"
            passed = there[piece] is (wanted == "has")
            shown = piece if kind == "file" else piece[:SHOWN]
            yield Check.of(kind, subject, f"{wanted} {shown}", found, passed)


def check_python(probe: PythonProbe, contents: Contents) -> Iterator[Check]:
    """The checks of a recipe's ``[[probe]] python``, on the file's syntax tree."""
    found = at(contents, probe.python)
    if not found:
        yield Check.of("python", probe.python, "exists", "no such file", False)
    for file in found:
        try:
            tree: ast.AST | None = ast.parse(file.text or "", file.path)
        except (SyntaxError, ValueError) as error:
            yield Check.of("python", file.path, "is Python", f"it does not parse: {error}", False)
            continue
        subject = file.path
        if probe.inside is not None:
            subject = f"{file.path}, {probe.inside}"
            tree = definition(tree, probe.inside)
            there = "exists" if tree is not None else "no such class or function"
            yield Check.of("python", subject, "exists", there, tree is not None)
        if tree is not None:
            yield from _facts(probe, tree, subject)


def _facts(probe: PythonProbe, tree: ast.AST, subject: str) -> Iterator[Check]:
    for name in probe.defines:
        passed = definition(tree, name) is not None or _assigned(tree, name)
        found = "defines it" if passed else "does not define it"
        yield Check.of("python", subject, f"defines {name}", found, passed)
    there = {code: occurs(code, tree) for code in (*probe.has, *probe.missing)}
    yield from _pieces("python", subject, probe, there)


def definition(tree: ast.AST | None, dotted: str) -> ast.AST | None:
    """The class or function of that name, also inside if, try and with; None if there is none."""
    for name in dotted.split("."):
        tree = next((node for node in _scope(tree) if getattr(node, "name", None) == name), None)
    return tree


def _scope(tree: ast.AST | None) -> Iterator[ast.AST]:
    """The definitions of a module, class or function itself, also inside if, try and with."""
    for node in ast.iter_child_nodes(tree) if tree is not None else ():
        if isinstance(node, Definition):
            yield node
        elif isinstance(node, ast.stmt | ast.ExceptHandler | ast.match_case):
            yield from _scope(node)


def _assigned(tree: ast.AST, name: str) -> bool:
    return any(
        isinstance(node, ast.Name) and node.id == name and isinstance(node.ctx, ast.Store)
        for node in ast.walk(tree)
    )


def occurs(code: str, tree: ast.AST) -> bool:
    """Whether an expression or statement occurs in a tree, whatever its formatting."""
    [statement] = ast.parse(code).body
    wanted: ast.AST = statement.value if isinstance(statement, ast.Expr) else statement
    sought = _shape(wanted)
    return any(_shape(node) == sought for node in ast.walk(tree) if type(node) is type(wanted))


def _shape(node: ast.AST) -> str:
    """The tree of a node, without positions and without the context of names."""
    return re.sub(r", ctx=(?:Load|Store|Del)\(\)", "", ast.dump(node))


# All probes of a recipe.


def check(context: Context) -> Iterator[Check]:
    """The checks of every probe; a patch's have the kind ``patch``."""
    for probe in context.recipe.probe:
        yield from _checks(probe, context)
    for patch in context.recipe.patch:
        for each in _checks(patch.probe, context) if patch.probe is not None else ():
            yield replace(each, kind="patch", subject=f"{patch.name}: {each.subject}")


def _checks(probe: Probe, context: Context) -> Iterator[Check]:
    match probe:
        case RunProbe():
            subject, checks = " ".join(probe.run), of_run(probe, context)
        case OptionProbe():
            subject, checks = f"{probe.option} in --help", of_option(probe, context)
        case LibraryProbe():
            subject = probe.library
            checks = cuda.check_library(probe, context.contents)
        case FileProbe():
            subject, checks = probe.file, check_file(probe, context.contents)
        case PythonProbe():
            subject, checks = probe.python, check_python(probe, context.contents)
    return guarded(checks, "runs", subject)


def read_options(recipe: Recipe | None, options: ReadOptions) -> ReadOptions:
    """``options``, with the texts and symbols that the probes look at."""
    probes = _all(recipe)
    texts = {probe.file for probe in probes if isinstance(probe, FileProbe)}
    texts |= {probe.python for probe in probes if isinstance(probe, PythonProbe)}
    libraries = {posixpath.basename(name).partition(".so")[0] for name in _symbols_of(probes)}
    return replace(options, texts=options.texts | texts, symbols=options.symbols | libraries)


def behind_links(recipe: Recipe | None, contents: Contents, options: ReadOptions) -> ReadOptions:
    """``options``, with the targets of wanted files that are links."""
    targets = {contents.resolve(path) for path in options.texts}
    texts = {path for path in targets if path and not options.text(path)}
    libraries = {
        posixpath.basename(file.path)
        for name in _symbols_of(_all(recipe))
        for file, _ in cuda.matching(contents, name)
        if file.symbols is None
    }
    return replace(options, texts=options.texts | texts, symbols=options.symbols | libraries)


def _all(recipe: Recipe | None) -> list[Probe]:
    if recipe is None:
        return []
    return [*recipe.probe, *(patch.probe for patch in recipe.patch if patch.probe is not None)]


def _symbols_of(probes: Iterable[Probe]) -> list[str]:
    return [
        name
        for probe in probes
        if isinstance(probe, LibraryProbe)
        and (probe.symbols or probe.symbols_not or probe.symbols_at_least)
        for name in (probe.library, *probe.alternatives)
    ]
