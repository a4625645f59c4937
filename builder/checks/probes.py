"""Check: the probes of the recipe, and of its patches."""

from __future__ import annotations

import posixpath
from collections.abc import Iterable, Iterator
from dataclasses import replace

from builder.checks import architectures, files, smoke_answers
from builder.checks.subject import Context, guarded
from builder.checks.verdict import Check
from builder.image.contents import Contents
from builder.image.options import ReadOptions
from builder.recipes.probes import (
    FileProbe,
    LibraryProbe,
    OptionProbe,
    Probe,
    PythonProbe,
    RunProbe,
)
from builder.recipes.schema import Recipe


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
            subject, checks = " ".join(probe.run), smoke_answers.of_run(probe, context)
        case OptionProbe():
            subject, checks = f"{probe.option} in --help", smoke_answers.of_option(probe, context)
        case LibraryProbe():
            subject = probe.library
            checks = architectures.check_library(probe, context.contents)
        case FileProbe():
            subject, checks = probe.file, files.check_file(probe, context.contents)
        case PythonProbe():
            subject, checks = probe.python, files.check_python(probe, context.contents)
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
        for file, _ in architectures.matching(contents, name)
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
