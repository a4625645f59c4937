"""Check: programs of the image run in a sandbox and print what the recipe's probes expect."""

from __future__ import annotations

import re
from collections.abc import Iterator

from builder.checks import help_text
from builder.checks.subject import Context
from builder.checks.verdict import Check
from builder.core.errors import suggestion
from builder.recipes.probes import OptionProbe, RunProbe, pattern_names


def excerpt(text: str) -> str:
    """The output of a program, shortened for a table."""
    words = " ".join(text.split())
    return words if len(words) <= 300 else words[:150] + " ... " + words[-150:]


def of_run(probe: RunProbe, context: Context) -> Iterator[Check]:
    """The program's exit status, and the texts that it must and must not print."""
    program, *arguments = probe.run
    subject = " ".join(probe.run)
    done = context.run(program, arguments)
    ended = done.status == probe.status
    yield Check.of(
        "runs",
        subject,
        f"exit status {probe.status}",
        f"{done.status}" if ended else f"{done.status}: {excerpt(done.output)}",
        ended,
    )
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


def of_option(probe: OptionProbe, context: Context) -> Iterator[Check]:
    """``--help`` lists the option, with and without the values that the recipe names."""
    entrypoint = context.recipe.image.entrypoint if probe.program is None else [probe.program]
    help_output = context.help(entrypoint)
    text = help_text.option_text(help_output, probe.option)
    subject = f"{probe.option} in --help"
    listed = text is not None
    if probe.absent:
        yield Check.of(
            "option", subject, "is not listed", excerpt(text or "not listed"), not listed
        )
        return
    found, known = "is listed", help_text.options(help_output)
    if not listed and known:
        found = f"not one of its {len(known)} names{suggestion(probe.option, known)}"
    elif not listed:
        found = excerpt(help_output)
    yield Check.of("option", subject, "is listed", found, listed)
    values = help_text.values(text or "")
    shown = ", ".join(sorted(values)) if values else excerpt(text or "")
    for value in (*probe.has, *probe.missing):
        wanted = value in probe.has
        expected = f"{'has' if wanted else 'does not have'} {value}"
        passed = has_value(text, values, value) is wanted
        yield Check.of("option", subject, expected, shown, passed)


def has_value(text: str | None, values: frozenset[str] | None, value: str) -> bool:
    """Whether a value is listed; without a list, whether the option's text has the word."""
    if values is not None:
        return value in values
    return bool(text and re.search(rf"(?<![\w-]){re.escape(value)}(?![\w-])", text))
