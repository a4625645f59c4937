"""Proof: the programs of the image answer, sealed off, and say what the recipe says they do."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from builder.schema import OptionProbe, Recipe, RunProbe
from builder.smoke.verdict import Check
from builder.tools import docker

TIMEOUT = 120.0  # seconds for a program to answer
OPTION_LINE = re.compile(r"^\s{0,8}-{1,2}[A-Za-z0-9]|^-{3,} ")  # an option, or a section's title


class Sealed:
    """Runs programs of one image, sealed off; each ``--help`` is asked for once."""

    def __init__(self, reference: str, driver_stub: Path | None) -> None:
        self.reference = reference
        self.driver_stub = driver_stub
        self._helps: dict[tuple[str, ...], str] = {}

    def run(self, program: str, arguments: list[str]) -> docker.Finished:
        """Run a program; raises ``UntriedError``."""
        return docker.run(
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


def prove_run(probe: RunProbe, sealed: Sealed) -> Iterator[Check]:
    """Run the program; its exit status, and each text that it must or must not print."""
    program, *arguments = probe.run
    subject = " ".join(probe.run)
    done = sealed.run(program, arguments)
    ended = done.status == probe.status
    yield Check(
        "runs",
        subject,
        f"exit status {probe.status}",
        f"{done.status}" if ended else f"{done.status}: {excerpt(done.output)}",
        ended,
    )
    for text in probe.says:
        passed = text in done.output
        yield Check("says", subject, text, text if passed else excerpt(done.output), passed)
    for pattern in probe.matches:
        found = re.search(pattern, done.output)
        said = excerpt(found[0] if found else done.output)
        yield Check("says", subject, f"/{pattern}/", said, found is not None)
    for text in probe.says_not:
        passed = text not in done.output
        yield Check("says not", subject, text, "not there" if passed else text, passed)


def option_text(help_text: str, option: str) -> str | None:
    """The lines of ``--help`` that belong to ``option``: its own, and those up to the next one."""
    found: list[str] = []
    for line in help_text.splitlines():
        if OPTION_LINE.match(line):
            if found:
                break
            names = re.findall(r"(?<![\w-])(--?[A-Za-z0-9][\w-]*)", line.split("   ")[0])
            if option in names or option in line.split():
                found.append(line)
        elif found:
            found.append(line)
    return "\n".join(found) if found else None


def prove_option(probe: OptionProbe, recipe: Recipe, sealed: Sealed) -> Iterator[Check]:
    """The option is in ``--help``, with the values that the recipe names and without others."""
    entrypoint = recipe.image.entrypoint if probe.program is None else [probe.program]
    said = sealed.help(tuple(entrypoint))
    text = option_text(said, probe.option)
    subject = f"{probe.option} in --help"
    yield Check("option", subject, "is there", "is there" if text else excerpt(said), bool(text))
    for value in probe.has:
        yield Check("option", subject, f"has {value}", excerpt(text or ""), _has(text, value))
    for value in probe.lacks:
        yield Check("option", subject, f"lacks {value}", excerpt(text or ""), not _has(text, value))


def _has(text: str | None, value: str) -> bool:
    return bool(text and re.search(rf"(?<![\w-]){re.escape(value)}(?![\w-])", text))
