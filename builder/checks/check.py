"""All checks of an image: the table, and the verdict."""

from __future__ import annotations

import ast
import fnmatch
import posixpath
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from builder.checks import contract, cuda, device, folder_test, kernel_test, libraries, serves
from builder.checks.contract import check_entry, check_programs, check_static, check_steps
from builder.checks.cuda import check_architectures, check_code_paths
from builder.checks.libraries import (
    check_copies,
    check_elevated,
    check_leftovers,
    check_loads,
    check_writable,
)
from builder.checks.options import check_preset_options, of_option
from builder.checks.subject import Context, Subject, excerpt, guarded
from builder.checks.verdict import Check, Verdict, timed
from builder.core.errors import UntriedError
from builder.docker import containers
from builder.docker.containers import blobs_of
from builder.engines.layout import LAYOUT
from builder.image.code_paths import kernel_summary
from builder.image.contents import Contents, File, ReadOptions, read_contents
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
from simulator.selection import Capability

# Check: programs of the image run in a sandbox and print what the recipe's probes expect.


def of_run(probe: RunProbe, context: Context) -> Iterator[Check]:
    """The program's exit status, and the texts that it must and must not print."""
    program, *arguments = probe.run
    subject = " ".join(probe.run)
    done = context.run(program, arguments)
    ended = done.status == probe.status
    found = f"{done.status}" if ended else f"{done.status}: {excerpt(done.output)}"
    yield Check.of("runs", subject, f"exit status {probe.status}", found, ended)
    for text in probe.contains:
        passed = text in done.output
        found = text if passed else excerpt(done.output)
        yield Check.of("output", subject, f"contains {text}", found, passed)
    for name, pattern in zip(pattern_names(probe.matches), probe.matches, strict=True):
        match = re.search(pattern, done.output)
        found = excerpt(match[0] if match else done.output)
        yield Check.of("output", subject, f"matches {name}", found, match is not None)
    for text in probe.excludes:
        passed = text not in done.output
        found = "not there" if passed else text
        yield Check.of("output", subject, f"does not contain {text}", found, passed)


# Check: files of the image contain the texts and the Python code that the probes name.

SHOWN = 120  # characters of a piece of code in a table
Definition = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def files_at(contents: Contents, path: str) -> list[File]:
    """The files at ``path``, links followed; ``*`` and ``?`` are wildcards."""
    paths = [path]
    if "*" in path or "?" in path:
        paths = [there for there in contents.files if fnmatch.fnmatchcase(there, path)]
    resolved = {contents.resolve(each) for each in paths}
    found = [contents.files[each] for each in sorted(filter(None, resolved))]
    return [file for file in found if file.kind == "file"]


def check_file(probe: FileProbe, contents: Contents) -> Iterator[Check]:
    """The checks of a recipe's ``[[probe]] file``; every matching file must pass them."""
    found = files_at(contents, probe.file)
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
    found = files_at(contents, probe.python)
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
    stored = {
        node.id
        for node in ast.walk(tree)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
    }
    for name in probe.defines:
        passed = definition(tree, name) is not None or name in stored
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


def check_probes(context: Context) -> Iterator[Check]:
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


@dataclass(frozen=True, slots=True)
class Row:
    """A check of images."""

    kind: str
    """The word of ``[[accept]]`` and of reports; the checks of probes have kinds of their own."""
    check: Callable[[Context], Iterator[Check]]
    images: str
    """A key of ``APPLIES``."""
    version: int
    """The ``CHECKS_VERSION`` that it, or its last change, came with."""
    subject: str = "a program of the image"
    """The subject of the check that stands for all where no program answers."""

    def applies(self, context: Context) -> bool:
        """Whether the check is for an image."""
        return APPLIES[self.images](context)


def _own_code(context: Context) -> bool:
    """An image that extends another one has some where it adds GPU code."""
    extends, added = context.subject.extended, context.added.elves()
    return not _an_artifact(context) and (not extends or any(parsed.code for _, parsed in added))


def _an_artifact(context: Context) -> bool:
    return context.subject.recipe is not None and context.recipe.artifact is not None


def _on_a_gpu(context: Context) -> bool:
    recipe, test = context.subject.recipe, context.subject.gpu_test
    return recipe is not None and test is not None and test.due()


APPLIES: Mapping[str, Callable[[Context], bool]] = {
    "any image": lambda _: True,
    "any engine": lambda context: not _an_artifact(context),
    "a recipe": lambda context: context.subject.recipe is not None,
    "an engine": lambda context: bool(context.subject.recipe) and not _an_artifact(context),
    "a probed engine": lambda context: APPLIES["an engine"](context) and context.recipe.probe != [],
    "an artifact": _an_artifact,
    "an extension": lambda context: context.subject.extended is not None,
    "own code": _own_code,
    "a GPU": _on_a_gpu,
    "a card": lambda context: None not in (context.subject.recipe, context.subject.device_test),
}
"""The images that a check is for; "a card" is a simulated one."""


CHECKS_OF_LAYERS = (
    Row("extended", contract.check_extended, "an extension", 16),
    Row("architectures", check_architectures, "own code", 16),
    Row("code paths", check_code_paths, "any image", 16),
    Row("cuda", cuda.check, "any image", 16),
    Row("closure", libraries.check, "any engine", 16),
    Row("run paths", libraries.check_run_paths, "any engine", 4),
    Row("leftovers", check_leftovers, "any image", 16),
    Row("leftovers", device.check_absent, "any image", 5),
    Row("copies", check_copies, "any image", 4),
    Row("set-uid", check_elevated, "any image", 16),
    Row("world-writable", check_writable, "any image", 16),
    Row("contract", contract.check_texts, "any image", 4),
    Row("secrets", contract.check_secrets, "any image", 4),
    Row("times", contract.check_times, "a recipe", 8),
    Row("layers", contract.check_layers, "any image", 4),
    Row("budget", contract.check_budget, "a recipe", 4),
    Row("contract", contract.check, "a recipe", 4),
    Row("entrypoint", check_static, "an engine", 6),
    Row("entrypoint", check_programs, "any engine", 16),
)
"""No program of the image is run."""
CHECKS_OF_PROGRAMS = (
    Row("probe", check_probes, "a recipe", 4),
    Row("entrypoint", check_entry, "a probed engine", 6, "a start without a card"),
    Row("imports", contract.check_imports, "an engine", 16, "the server's modules"),
    Row("preset", check_preset_options, "a recipe", 9),
    Row("start", check_steps, "a recipe", 4, "the steps before the engine"),
    Row("loads", check_loads, "an artifact", 4, "LD_PRELOAD"),
    Row("serves", serves.check, "a recipe", 17),
    Row("gpu", serves.check_gpu, "a GPU", 16),
    Row("device", device.check_device, "a card", 15),
    Row("preset", device.check_preset, "a card", 15),
    Row("numbers", kernel_test.check_kernels, "a card", 18, "kernels on a simulated card"),
    Row("numbers", folder_test.check, "a card", 17, "the server's numbers"),
    Row("accept", lambda context: context.rules.unused(), "a recipe", 4),  # when all rules are used
)
"""Programs of the image are run, in containers."""
CHECKS_VERSION = max(row.version for row in (*CHECKS_OF_LAYERS, *CHECKS_OF_PROGRAMS))
"""Images whose verdict is of an earlier version are smoke-tested again."""


def check_layers(subject: Subject, work: Path) -> Context:
    """Read an image, and run the checks that run no program of it.

    ``work`` is a directory for temporary files.  Raises ``UntriedError`` if the image itself cannot
    be read.
    """
    containers.remove_orphans()
    started = time.monotonic()
    contents = read(subject, work)
    found = f"{len(contents.layers)} layers, {len(contents.files)} files"
    readable = Check.of("image", "its layers", "can be read", found, True)
    context = Context(subject, contents, work)
    context.checks.append(replace(readable, seconds=round(time.monotonic() - started, 3)))
    context.checks.extend(timed(_run(context, CHECKS_OF_LAYERS)))
    return context


def run_programs(context: Context) -> Verdict:
    """Run the other checks of an image without network, and conclude; with a GPU only if
    ``gpu_test`` asks for it."""
    subject, contents = context.subject, context.contents
    with containers.removed_together(), containers.of_platform(contents.platform):
        context.checks.extend(timed(_run(context, CHECKS_OF_PROGRAMS)))
    kernels, card = None, _card(subject)
    with suppress(UntriedError):  # a check says so
        if (found := list(contents.libraries())) and card:
            kernels = kernel_summary(found, card)
    return Verdict(
        subject.digest,
        tuple(context.checks),
        contents.download_size,
        contents.unpacked_size,
        kernels,
        context.device,
        context.presets,
        context.code if subject.recipe else (),
        context.errors,
    )


def _run(context: Context, rows: Sequence[Row]) -> Iterator[Check]:
    for row in rows:
        if row.applies(context):
            yield from guarded(row.check(context), row.kind, row.subject)


def _card(subject: Subject) -> Capability | None:
    return Capability.of_arch(subject.recipe.cuda.arch[0]) if subject.recipe else None


def options_for(subject: Subject) -> ReadOptions:
    """The parts that an image is read for: of every one, and those that its probes look at."""
    recipe, published, probes = subject.recipe, subject.published, _all(subject.recipe)
    texts = {LAYOUT.needs, *([LAYOUT.start_plan] if recipe and recipe.start else [])}
    texts |= {probe.file for probe in probes if isinstance(probe, FileProbe)}
    texts |= {probe.python for probe in probes if isinstance(probe, PythonProbe)}
    libraries = (posixpath.basename(name).partition(".so")[0] for name in _symbols_of(probes))
    return ReadOptions(
        texts=frozenset(texts),
        symbols=frozenset(libraries),
        card=_card(subject),
        # A simulated card needs the code of all layers; an image on a published base has no card.
        code_above=published.layers if published else 0,
        code_outside=LAYOUT.cuda,
    )


def read(subject: Subject, work: Path) -> Contents:
    """The contents of the image; read twice if the file of a probe is a link.

    ``work`` is a directory for temporary files.  Raises ``UntriedError``.
    """
    options = options_for(subject)
    blobs = blobs_of(subject.reference, work, subject.digest)
    contents = read_contents(blobs, work, options, subject.cache)
    more = behind_links(subject.recipe, contents, options)
    return contents if more == options else read_contents(blobs, work, more, subject.cache)
