"""Check: the programs of the image answer, sealed off, and say what the recipe says they do."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from builder.recipes.schema import (
    FileProbe,
    LibraryProbe,
    OptionProbe,
    Probe,
    PythonProbe,
    Recipe,
    RunProbe,
)
from builder.smoke import help_text
from builder.smoke.verdict import Check
from builder.tools.docker import containers

TIMEOUT = 120.0  # seconds for a program to answer


class Sandbox:
    """Runs programs of one image, sealed off; each ``--help`` is asked for once."""

    def __init__(self, reference: str, driver_stub: Path | None) -> None:
        self.reference = reference
        self.driver_stub = driver_stub
        self._helps: dict[tuple[str, ...], str] = {}

    def run(self, program: str, arguments: list[str]) -> containers.Finished:
        """Run a program; raises ``UntriedError``."""
        return containers.run(
            self.reference,
            arguments,
            entrypoint=program,
            timeout=TIMEOUT,
            driver_stub=self.driver_stub,
        )

    def help(self, entrypoint: tuple[str, ...]) -> str:
        """What ``--help`` prints; raises ``UntriedError``."""
        if entrypoint not in self._helps:
            program, *arguments = entrypoint
            self._helps[entrypoint] = self.run(program, [*arguments, "--help"]).output
        return self._helps[entrypoint]


def excerpt(text: str, limit: int = 300) -> str:
    """What a program printed, shortened for a table."""
    words = " ".join(text.split())
    return words if len(words) <= limit else words[: limit // 2] + " ... " + words[-limit // 2 :]


def subject_of(probe: Probe) -> str:
    """What a probe is called in a table."""
    match probe:
        case RunProbe():
            return " ".join(probe.run)
        case OptionProbe():
            return f"{probe.option} in --help"
        case LibraryProbe():
            return probe.library
        case FileProbe():
            return probe.file
        case PythonProbe():
            return probe.python


def check_run(probe: RunProbe, sealed: Sandbox) -> Iterator[Check]:
    """Run the program; its exit status, and each text that it must or must not print."""
    program, *arguments = probe.run
    subject = subject_of(probe)
    done = sealed.run(program, arguments)
    ended = done.status == probe.status
    yield Check(
        "runs",
        subject,
        f"exit status {probe.status}",
        f"{done.status}" if ended else f"{done.status}: {excerpt(done.output)}",
        ended,
    )
    for text in probe.contains:
        passed = text in done.output
        yield Check("says", subject, text, text if passed else excerpt(done.output), passed)
    for pattern in probe.matches:
        found = re.search(pattern, done.output)
        said = excerpt(found[0] if found else done.output)
        yield Check("says", subject, f"/{pattern}/", said, found is not None)
    for text in probe.excludes:
        passed = text not in done.output
        yield Check("says not", subject, text, "not there" if passed else text, passed)


def check_option(probe: OptionProbe, recipe: Recipe, sealed: Sandbox) -> Iterator[Check]:
    """The option is in ``--help``, with the values that the recipe names and without others."""
    entrypoint = recipe.image.entrypoint if probe.program is None else [probe.program]
    said = sealed.help(tuple(entrypoint))
    text = help_text.option_text(said, probe.option)
    subject = subject_of(probe)
    there = text is not None
    if probe.absent:
        yield Check("option", subject, "is not there", excerpt(text or "not there"), not there)
        return
    yield Check("option", subject, "is there", "is there" if text else excerpt(said), there)
    listed = help_text.values(text or "")
    shown = ", ".join(sorted(listed)) if listed else excerpt(text or "")
    for value in probe.has:
        yield Check("option", subject, f"has {value}", shown, _has(text, listed, value))
    for value in probe.missing:
        yield Check("option", subject, f"lacks {value}", shown, not _has(text, listed, value))


def _has(text: str | None, listed: frozenset[str] | None, value: str) -> bool:
    """Whether a value is listed; where there is no list, whether its text has the word."""
    if listed is not None:
        return value in listed
    return bool(text and re.search(rf"(?<![\w-]){re.escape(value)}(?![\w-])", text))
