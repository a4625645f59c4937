"""All checks of an image: the table, and the verdict."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from builder.contents import reading
from builder.contents.contents import Contents
from builder.contents.options import ReadOptions
from builder.errors import UntriedError
from builder.families.layout import LAYOUT
from builder.kernels.selection import Capability
from builder.kernels.summary import KernelSummary, summary
from builder.smoke import (
    architectures,
    closure,
    code_paths,
    contract,
    cuda_stack,
    device,
    entry,
    gpu,
    imports,
    leftovers,
    loads,
    numbers,
    preset_options,
    preset_trial,
    probes,
    server_numbers,
    serves,
    starts,
)
from builder.smoke.context import Context, guarded
from builder.smoke.subject import Subject
from builder.smoke.verdict import Check, Verdict, timed
from builder.tools.docker import containers
from builder.tools.docker.blobs import blobs_of


@dataclass(frozen=True, slots=True)
class Row:
    """A check of images."""

    kind: str
    """The word of ``[[accept]]`` and of reports; the checks of probes have kinds of their own."""
    check: Callable[[Context], Iterator[Check]]
    applies: Callable[[Context], bool]
    """Whether it is made of an image."""
    version: int
    """The ``CHECKS_VERSION`` that it, or its last change, came with."""
    subject: str = "a program of the image"
    """The subject of the check that stands for all where no program answers."""


def any_image(_: Context) -> bool:
    """Every image, also without a recipe."""
    return True


def any_engine(context: Context) -> bool:
    """Every image, except artifacts."""
    return not an_artifact(context)


def a_recipe(context: Context) -> bool:
    """The image of a recipe."""
    return context.subject.recipe is not None


def an_engine(context: Context) -> bool:
    """The image of a recipe, except artifacts."""
    return a_recipe(context) and any_engine(context)


def a_probed_engine(context: Context) -> bool:
    """``an_engine``, where its recipe has probes."""
    return an_engine(context) and bool(context.recipe.probe)


def an_artifact(context: Context) -> bool:
    """The image of a recipe with ``[artifact]``: files alone."""
    recipe = context.subject.recipe
    return recipe is not None and recipe.artifact is not None


def an_extension(context: Context) -> bool:
    """An image that extends a published one."""
    return context.subject.extended is not None


def own_code(context: Context) -> bool:
    """``any_engine``, but an image that extends another one only where it adds GPU code."""
    adds = not an_extension(context) or any(parsed.code for _, parsed in context.added.elves())
    return adds and any_engine(context)


def on_a_gpu(context: Context) -> bool:
    """The image of a recipe, where a GPU is offered or required."""
    test = context.subject.gpu_test
    return a_recipe(context) and test is not None and test.due()


def with_numbers(context: Context) -> bool:
    """``on_a_simulated_card``, where the kernels' numbers can be compared."""
    return on_a_simulated_card(context) and context.subject.numbers is not None


def on_a_simulated_card(context: Context) -> bool:
    """The image of a recipe, where simulated cards are asked for."""
    return a_recipe(context) and context.subject.device_test is not None


CHECKS_OF_LAYERS = (
    Row("extended", contract.check_extended, an_extension, 16),
    Row("architectures", architectures.check, own_code, 16),
    Row("code paths", code_paths.check, any_image, 16),
    Row("cuda", cuda_stack.check, any_image, 16),
    Row("closure", closure.check, any_engine, 16),
    Row("run paths", closure.check_run_paths, any_engine, 4),
    Row("leftovers", leftovers.check, any_image, 16),
    Row("leftovers", device.check_absent, any_image, 5),
    Row("copies", leftovers.check_copies, any_image, 4),
    Row("set-uid", leftovers.check_elevated, any_image, 16),
    Row("world-writable", leftovers.check_writable, any_image, 16),
    Row("contract", contract.check_texts, any_image, 4),
    Row("secrets", contract.check_secrets, any_image, 4),
    Row("times", contract.check_times, a_recipe, 8),
    Row("layers", contract.check_layers, any_image, 4),
    Row("budget", contract.check_budget, a_recipe, 4),
    Row("contract", contract.check, a_recipe, 4),
    Row("entrypoint", entry.check_static, an_engine, 6),
    Row("entrypoint", entry.check_programs, any_engine, 16),
)
"""No program of the image is run."""
CHECKS_OF_PROGRAMS = (
    Row("probe", probes.check, a_recipe, 4),
    Row("entrypoint", entry.check, a_probed_engine, 6, "a start without a card"),
    Row("imports", imports.check, an_engine, 16, "the server's modules"),
    Row("preset", preset_options.check, a_recipe, 9),
    Row("start", starts.check, a_recipe, 4, "the steps before the engine"),
    Row("loads", loads.check, an_artifact, 4, "LD_PRELOAD"),
    Row("serves", serves.check, a_recipe, 4),
    Row("gpu", gpu.check, on_a_gpu, 16),
    Row("device", device.check, on_a_simulated_card, 15),
    Row("preset", preset_trial.check, on_a_simulated_card, 15),
    Row("numbers", numbers.check, with_numbers, 11, "kernels on a simulated card"),
    Row("numbers", server_numbers.check, with_numbers, 13, "the server's numbers"),
    Row("accept", lambda context: context.rules.unused(), a_recipe, 4),  # when all rules are used
)
"""Programs of the image are run, in containers."""
CHECKS_VERSION = max(row.version for row in (*CHECKS_OF_LAYERS, *CHECKS_OF_PROGRAMS))
"""Images whose verdict is of an earlier version are smoke-tested again."""


def check_image(
    subject: Subject, work: Path, before_programs: Callable[[], None] = lambda: None
) -> Verdict:
    """Run all checks of an image, without network; with a GPU only if ``gpu_test`` asks for it.

    ``work`` is a directory for temporary files; ``before_programs`` is called before the first
    program of the image is run.  Raises ``UntriedError`` if the image itself cannot
    be read.
    """
    containers.remove_orphans()
    started = time.monotonic()
    contents = read(subject, work)
    found = f"{len(contents.layers)} layers, {len(contents.files)} files"
    readable = Check.of("image", "its layers", "can be read", found, True)
    seconds = round(time.monotonic() - started, 3)
    context = Context(subject, contents, work)
    with containers.removed_together(), containers.of_platform(contents.platform):
        checks = [replace(readable, seconds=seconds), *timed(_run(context, CHECKS_OF_LAYERS))]
        before_programs()
        checks += timed(_run(context, CHECKS_OF_PROGRAMS))
    return Verdict(
        subject.digest,
        tuple(checks),
        contents.download_size,
        contents.unpacked_size,
        _kernels(subject, contents),
        context.device,
        context.presets,
        context.code if subject.recipe else (),
    )


def _run(context: Context, rows: Sequence[Row]) -> Iterator[Check]:
    for row in rows:
        if row.applies(context):
            yield from guarded(row.check(context), row.kind, row.subject)


def _kernels(subject: Subject, contents: Contents) -> KernelSummary | None:
    """The engine's own kernels; None where it has none, or they cannot be read: a check says so."""
    try:
        found = list(contents.libraries())
    except UntriedError:
        return None
    card = _card(subject)
    return summary(found, card) if found and card else None


def _card(subject: Subject) -> Capability | None:
    return Capability.of_arch(subject.recipe.cuda.arch[0]) if subject.recipe else None


def options_for(subject: Subject) -> ReadOptions:
    """The parts that every image is read for."""
    recipe = subject.recipe
    published = subject.published
    return ReadOptions(
        texts=frozenset({LAYOUT.needs, *([starts.PLAN] if recipe and recipe.start else [])}),
        card=_card(subject),
        # A simulated card needs the code of all layers; an image on a published base has no card.
        code_above=published.layers if published else 0,
        code_outside=LAYOUT.cuda,
    )


def read(subject: Subject, work: Path) -> Contents:
    """The contents of the image; read twice if the file of a probe is a link.

    ``work`` is a directory for temporary files.  Raises ``UntriedError``.
    """
    recipe = subject.recipe
    options = probes.read_options(recipe, options_for(subject))
    blobs = blobs_of(subject.reference, work, subject.digest)
    contents = reading.read(blobs, work, options, subject.cache)
    more = probes.behind_links(recipe, contents, options)
    if more == options:
        return contents
    return reading.read(blobs, work, more, subject.cache)
