"""Check: the programs that an image starts exist; the first is the entrypoint, which refuses to run
without a card; the steps that patch the engine at start succeed."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from itertools import takewhile
from typing import Literal

from pydantic import BaseModel, ValidationError

from builder.checks.programs import followed
from builder.checks.subject import Context
from builder.checks.verdict import Check
from builder.docker import containers
from builder.engines import entrypoint
from builder.engines.families import ENGINES
from builder.engines.layout import LAYOUT
from builder.image.contents import Contents

KIND = "entrypoint"
TIMEOUT = 60.0  # seconds, beside the time of the steps at start
STEPS_ONLY = "BUILDER_START=only"
SAYS = "start: stopping before"  # the interpreter of the steps, at their end
LINES = 3  # what is missing, what to do, how to use the CPU
(CPU,) = (f"{name}={value}" for name, value in entrypoint.CPU.items())
# Where NVIDIA's runtime is the engine's default, "void" makes it leave the container alone
# (NVIDIA Container Toolkit, "Specialized Configurations with Docker").
NO_GPU = "--env=NVIDIA_VISIBLE_DEVICES=void"


class _Needs(BaseModel):
    recipe: str | None
    code: tuple[str, ...]
    driver: str | None


class _Report(BaseModel):
    """The output of ``--check --json``, as far as it is looked at here."""

    version: Literal[1]
    usable: bool
    lines: tuple[str, ...]
    image: _Needs


def check_static(context: Context) -> Iterator[Check]:
    """The entrypoint needs no library of the image."""
    file = context.contents.files.get(LAYOUT.entrypoint)
    parsed = file.elf if file else None
    if parsed is None:
        found = "no such program"
    else:
        libraries = ", ".join(filter(None, [parsed.interpreter, *parsed.needed]))
        found = f"it needs {libraries}" if libraries else "a static program"
    passed = found == "a static program"
    yield Check.of(KIND, LAYOUT.entrypoint, "a static program", found, passed)


def engine_of(contents: Contents) -> list[str]:
    """The words that start the engine, without the entrypoint of ours (``entrypoint.c``)."""
    config = contents.config
    words, command = config.get("Entrypoint") or [], config.get("Cmd") or []
    if words[:1] != [LAYOUT.entrypoint]:
        return [*words, *command]
    engine = list(takewhile(lambda word: word != entrypoint.SEPARATOR, words[1:]))
    if not engine:
        needs = contents.files.get(LAYOUT.needs)
        lines = [line.partition(" ") for line in ((needs and needs.text) or "").splitlines()]
        engine = [word for kind, _, word in lines if kind == "entrypoint"]
        command = command or [word for kind, _, word in lines if kind == "command"]
    return [*engine, *command]


def check_programs(context: Context) -> Iterator[Check]:
    """The programs of the entrypoint, of the steps at start and of the health check can be
    started."""
    contents, config = context.contents, context.contents.config
    engine = engine_of(contents)
    if (config.get("Entrypoint") or [""])[0] == LAYOUT.entrypoint:
        for each in (LAYOUT.entrypoint, LAYOUT.probe):
            yield from _started(context, each, [each])
    if engine or context.subject.recipe is not None:
        first = (config.get("Entrypoint") or [""])[0] != LAYOUT.entrypoint
        yield from _started(context, "the engine's program", engine, by_docker=first)
    if engine[1:2] == [LAYOUT.start] and (plan := contents.files.get(LAYOUT.start_plan)):
        words = json.loads(plan.text or "{}").get("entrypoint") or []
        yield from _started(context, "the program after the steps", words)
    kind, *test = (config.get("Healthcheck") or {}).get("Test") or ["NONE"]
    if kind != "NONE":
        words = ["/bin/sh", "-c", *test] if kind == "CMD-SHELL" else test
        yield from _started(context, "the health check's program", words, by_docker=True)


def _started(
    context: Context, subject: str, words: Sequence[str], *, by_docker: bool = False
) -> Iterator[Check]:
    start = followed(words, context.contents, by_docker=by_docker)
    faults = [(start.at, start.fault)] if start.fault else []
    chain = " starts ".join(start.chain)
    expected = "exists, and the image's user can execute it"
    yield context.rules.check(KIND, subject, expected, faults, chain)
    if start.unknown:
        yield Check.skipped(KIND, f"{subject}: what follows it", "is known", start.unknown)


def check(context: Context) -> Iterator[Check]:
    """Start the image without a GPU, and let it print its findings.  Raises ``UntriedError``.

    It decides on a card with ``--check`` as it does before it starts the engine, except where
    BUILDER_CPU is set: one container answers both questions.
    """
    contents, reference = context.contents, context.subject.reference
    words = contents.config.get("Entrypoint") or []
    if words[:1] != [LAYOUT.entrypoint]:
        expected = f"starts with {LAYOUT.entrypoint}"
        yield Check.of(KIND, "the image", expected, " ".join(words) or "no entrypoint", False)
        return
    program, *engine = words
    arguments = [*engine, "--check", "--json"]
    done = containers.run(reference, arguments, entrypoint=program, timeout=TIMEOUT, extra=[NO_GPU])
    try:
        report = _Report.model_validate_json(done.output)
    except ValidationError as error:
        why = f"{error.error_count()} faults in: {done.output.strip()[:200]}"
        yield Check.of(KIND, "--check --json", "a report of the entrypoint", why, False)
        return
    found = f"exit status {done.status}: {' | '.join(report.lines)}"
    if report.usable:
        found += "; it claims that a card is there"
    cpu = CPU in (contents.config.get("Env") or [])
    if cpu:
        found += f"; the image sets {CPU}"
    lines = len(report.lines) == LINES
    passed = done.status == entrypoint.NO_CARD and lines and not report.usable and not cpu
    expected = f"exit status {entrypoint.NO_CARD} and {LINES} lines"
    yield Check.of(KIND, "a start without a card", expected, found, passed)
    recipe, image = context.recipe, report.image
    code = tuple(ENGINES[recipe.family].machine_code(recipe))
    expected = _needs(recipe.name, code, recipe.cuda.driver)
    driver = image.driver if recipe.cuda.driver else None
    found = _needs(image.recipe or "no recipe", image.code, driver)
    yield Check.of(KIND, "--check --json", expected, found, found == expected)


def _needs(name: str, code: Sequence[str], driver: str | None) -> str:
    parts = [name, f"code {' '.join(code) or 'not known'}"]
    return ", ".join([*parts, *([f"driver {driver}"] if driver else [])])


def check_steps(context: Context) -> Iterator[Check]:
    """The entrypoint after the steps is the engine's own, and the steps pass without a GPU."""
    recipe, extended = context.recipe, context.subject.extended
    if not recipe.start:
        return
    file = context.contents.files.get(LAYOUT.start_plan)
    plan = json.loads(file.text or "{}") if file else {}
    expected = (extended.config if extended else {}).get("Entrypoint") or []
    found = plan.get("entrypoint") or []
    shown = json.dumps(expected), json.dumps(found)
    yield Check.of("start", "the entrypoint after the steps", *shown, found == expected)
    started = containers.run(
        context.subject.reference,
        recipe.image.entrypoint[1:],
        entrypoint=recipe.image.entrypoint[0],
        timeout=TIMEOUT + sum(step.seconds for step in recipe.start),
        # The patches are written into the container's own layer.
        extra=("--read-only=false", f"--env={STEPS_ONLY}"),
    )
    lines = started.output.strip().splitlines()
    found_status = f"exit status {started.status}: {' | '.join(lines[-3:])}"
    passed = started.status == 0 and SAYS in started.output
    yield Check.of("start", "the steps before the engine", "exit status 0", found_status, passed)
