"""All checks of an image: the table, and the verdict."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from builder.checks import (
    contract,
    cuda,
    device,
    gpu,
    imports,
    kernel_test,
    libraries,
    logit_test,
    preset_trial,
    probes,
    serves,
)
from builder.checks.contract import check_entry, check_programs, check_static, check_steps
from builder.checks.cuda import check_architectures, check_code_paths
from builder.checks.libraries import (
    check_copies,
    check_elevated,
    check_leftovers,
    check_loads,
    check_writable,
)
from builder.checks.preset_trial import check_preset_options
from builder.checks.subject import Context, Subject, guarded
from builder.checks.verdict import Check, Verdict, timed
from builder.core.errors import UntriedError
from builder.docker import containers
from builder.docker.containers import blobs_of
from builder.engines.layout import LAYOUT
from builder.image.code_paths import KernelSummary, kernel_summary
from builder.image.contents import Contents, ReadOptions, read_contents
from simulator.selection import Capability


@dataclass(frozen=True, slots=True)
class Row:
    """A check of images."""

    kind: str
    """The word of ``[[accept]]`` and of reports; the checks of probes have kinds of their own."""
    check: Callable[[Context], Iterator[Check]]
    applies: Callable[[Context], bool]
    version: int
    """The ``CHECKS_VERSION`` that it, or its last change, came with."""
    subject: str = "a program of the image"
    """The subject of the check that stands for all where no program answers."""


def _any_image(_: Context) -> bool:
    return True


def _any_engine(context: Context) -> bool:
    return not _an_artifact(context)


def _a_recipe(context: Context) -> bool:
    return context.subject.recipe is not None


def _an_engine(context: Context) -> bool:
    return _a_recipe(context) and _any_engine(context)


def _a_probed_engine(context: Context) -> bool:
    return _an_engine(context) and bool(context.recipe.probe)


def _an_artifact(context: Context) -> bool:
    return _a_recipe(context) and context.recipe.artifact is not None


def _an_extension(context: Context) -> bool:
    return context.subject.extended is not None


def _own_code(context: Context) -> bool:
    """An image that extends another one has some where it adds GPU code."""
    adds = not _an_extension(context) or any(parsed.code for _, parsed in context.added.elves())
    return adds and _any_engine(context)


def _on_a_gpu(context: Context) -> bool:
    test = context.subject.gpu_test
    return _a_recipe(context) and test is not None and test.due()


def _on_a_simulated_card(context: Context) -> bool:
    return _a_recipe(context) and context.subject.device_test is not None


CHECKS_OF_LAYERS = (
    Row("extended", contract.check_extended, _an_extension, 16),
    Row("architectures", check_architectures, _own_code, 16),
    Row("code paths", check_code_paths, _any_image, 16),
    Row("cuda", cuda.check, _any_image, 16),
    Row("closure", libraries.check, _any_engine, 16),
    Row("run paths", libraries.check_run_paths, _any_engine, 4),
    Row("leftovers", check_leftovers, _any_image, 16),
    Row("leftovers", device.check_absent, _any_image, 5),
    Row("copies", check_copies, _any_image, 4),
    Row("set-uid", check_elevated, _any_image, 16),
    Row("world-writable", check_writable, _any_image, 16),
    Row("contract", contract.check_texts, _any_image, 4),
    Row("secrets", contract.check_secrets, _any_image, 4),
    Row("times", contract.check_times, _a_recipe, 8),
    Row("layers", contract.check_layers, _any_image, 4),
    Row("budget", contract.check_budget, _a_recipe, 4),
    Row("contract", contract.check, _a_recipe, 4),
    Row("entrypoint", check_static, _an_engine, 6),
    Row("entrypoint", check_programs, _any_engine, 16),
)
"""No program of the image is run."""
CHECKS_OF_PROGRAMS = (
    Row("probe", probes.check, _a_recipe, 4),
    Row("entrypoint", check_entry, _a_probed_engine, 6, "a start without a card"),
    Row("imports", imports.check, _an_engine, 16, "the server's modules"),
    Row("preset", check_preset_options, _a_recipe, 9),
    Row("start", check_steps, _a_recipe, 4, "the steps before the engine"),
    Row("loads", check_loads, _an_artifact, 4, "LD_PRELOAD"),
    Row("serves", serves.check, _a_recipe, 4),
    Row("gpu", gpu.check, _on_a_gpu, 16),
    Row("device", device.check_device, _on_a_simulated_card, 15),
    Row("preset", preset_trial.check, _on_a_simulated_card, 15),
    Row(
        "numbers",
        kernel_test.check_kernels,
        _on_a_simulated_card,
        11,
        "kernels on a simulated card",
    ),
    Row("numbers", logit_test.check, _on_a_simulated_card, 13, "the server's numbers"),
    Row("accept", lambda context: context.rules.unused(), _a_recipe, 4),  # when all rules are used
)
"""Programs of the image are run, in containers."""
CHECKS_VERSION = max(row.version for row in (*CHECKS_OF_LAYERS, *CHECKS_OF_PROGRAMS))
"""Images whose verdict is of an earlier version are smoke-tested again."""


def check_image(subject: Subject, work: Path) -> Verdict:
    """Run all checks of an image without its numbers and without network; with a GPU only if
    ``gpu_test`` asks for it.

    ``work`` is a directory for temporary files.  Raises ``UntriedError`` if the image itself cannot
    be read.
    """
    return run_programs(check_layers(subject, work))


def check_layers(subject: Subject, work: Path) -> Context:
    """Read an image, and run the checks that run no program of it.  Raises like ``check_image``."""
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
    """Run the other checks of an image, and conclude."""
    subject, contents = context.subject, context.contents
    with containers.removed_together(), containers.of_platform(contents.platform):
        context.checks.extend(timed(_run(context, CHECKS_OF_PROGRAMS)))
    return Verdict(
        subject.digest,
        tuple(context.checks),
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
    try:
        found = list(contents.libraries())
    except UntriedError:  # a check says so
        return None
    card = _card(subject)
    return kernel_summary(found, card) if found and card else None


def _card(subject: Subject) -> Capability | None:
    return Capability.of_arch(subject.recipe.cuda.arch[0]) if subject.recipe else None


def options_for(subject: Subject) -> ReadOptions:
    """The parts that every image is read for."""
    recipe = subject.recipe
    published = subject.published
    return ReadOptions(
        texts=frozenset({LAYOUT.needs, *([LAYOUT.start_plan] if recipe and recipe.start else [])}),
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
    contents = read_contents(blobs, work, options, subject.cache)
    more = probes.behind_links(recipe, contents, options)
    if more == options:
        return contents
    return read_contents(blobs, work, more, subject.cache)
