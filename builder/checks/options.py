"""Options of engines, by their own ``--help``: what it lists, and whether arguments fit it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from builder.checks.subject import Context, excerpt, guarded
from builder.checks.verdict import Check
from builder.core.errors import suggestion
from builder.presets import command
from builder.presets.schema import Preset
from builder.recipes.probes import OptionProbe

# Reads the values of an option from ``--help``.
#
# llama.cpp's trees (common/arg.cpp, tools/server) write them in several ways: in the signature,
# ``--flash-attn [on|off|auto]``, ``--rope-scaling {none,linear,yarn}`` or ``--spec-type
# none,draft-mtp,draft-dflash``; or below it, ``allowed values: f32, f16, q8_0``, or ``one of:``
# and a line ``- none: ...`` for each.

OPTION_LINE = re.compile(r"^\s{0,8}-{1,2}[A-Za-z0-9]|^-{3,} ")  # an option, or a section's title
# A name with its placeholder; a comma leads to the next name of the same option.
NAME = re.compile(r"\s*(--?[A-Za-z0-9][\w-]*)(?: [^\s,-][^\s,]*)?(,)?")
# The end of the names of an option: its description follows behind two spaces.
END = re.compile(r"(?<![,\s])\s{2,}")
PLACEHOLDER = re.compile(r"--?[A-Za-z0-9][\w-]* ([^\s,-]\S*)")
REMOVED = "argument has been removed"  # llama.cpp, common/arg.cpp
BRACKETED = re.compile(r"[\[{<]([\w.+-]+(?:\s*[|,]\s*[\w.+-]+)+)[\]}>]")
BARE = re.compile(r"--?[A-Za-z0-9][\w-]* ([\w.+-]+(?:,[\w.+-]+)+)(?:\s|$)")
BELOW = re.compile(r"(?:allowed values|possible values|one of|choices)\s*(?:are)?\s*:", re.I)
BULLET = re.compile(r"\s*- ([\w.+-]+)")
VALUE = re.compile(r"[\"'`]?([\w.+-]*\w)[\"'`]?(?:\s*\([^)]*\))?")
SEPARATOR = re.compile(r"\s*(?:,\s*or\s+|,|\||\bor\b)\s*")


def option_text(help_text: str, option: str) -> str | None:
    """The lines of ``--help`` about ``option``, up to the next option; None if there are none."""
    found: list[str] = []
    for line in help_text.splitlines():
        if OPTION_LINE.match(line):
            if found:
                break
            if option in _names(line):
                found.append(line)
        elif found:
            found.append(line)
    return "\n".join(found) if found else None


def _names(line: str) -> list[str]:
    names, at = [], 0
    while match := NAME.match(line, at):
        names.append(match[1])
        if not match[2]:
            break
        at = match.end()
    return names


def help_options(help_text: str) -> list[str]:
    """The names of all options, each once, in order."""
    lines = (line for line in help_text.splitlines() if OPTION_LINE.match(line))
    return [*dict.fromkeys(name for line in lines for name in _names(line))]


def placeholder_of(text: str) -> str:
    """The placeholder of an option's value: ``N`` of ``--threads N``; empty: there is none."""
    signature = END.split(text.split("\n", 1)[0].strip(), maxsplit=1)[0]
    found = PLACEHOLDER.search(signature)
    return found[1].rstrip(",") if found is not None else ""


def option_values(text: str) -> frozenset[str] | None:
    """The values that an option's text lists; None if it lists none.

    A list below the signature takes precedence: the signature may be shortened.
    """
    below = BELOW.search(text)
    if below is not None:
        found = _listed(text[below.end() :])
        if found:
            return found
    signature = text.split("\n", 1)[0]
    within = BRACKETED.search(signature) or BARE.search(signature)
    return frozenset(re.split(r"\s*[|,]\s*", within[1])) if within is not None else None


def _listed(text: str) -> frozenset[str]:
    bullets = [match[1] for line in text.splitlines() if (match := BULLET.match(line))]
    if bullets and not text.split("\n", 1)[0].strip():
        return frozenset(bullets)
    found = []
    at = len(text) - len(text.lstrip())
    while match := VALUE.match(text, at):
        found.append(match[1])
        separator = SEPARATOR.match(text, match.end())
        if separator is None:
            break
        at = separator.end()
    return frozenset(found)


def of_option(probe: OptionProbe, context: Context) -> Iterator[Check]:
    """``--help`` lists the option, with and without the values that the recipe names."""
    entrypoint = context.recipe.image.entrypoint if probe.program is None else [probe.program]
    help_output = context.help(entrypoint)
    text = option_text(help_output, probe.option)
    subject = f"{probe.option} in --help"
    listed = text is not None
    if probe.absent:
        shown = excerpt(text or "not listed")
        yield Check.of("option", subject, "is not listed", shown, not listed)
        return
    found, known = "is listed", help_options(help_output)
    if not listed and known:
        found = f"not one of its {len(known)} names{suggestion(probe.option, known)}"
    elif not listed:
        found = excerpt(help_output)
    yield Check.of("option", subject, "is listed", found, listed)
    values = option_values(text or "")
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


# Check: the image's engine has every option of a preset, and takes its value.
#
# The engine's own ``--help`` decides, as for the recipe's probes of options.

# vLLM (vllm/entrypoints: VLLM_SUBCMD_PARSER_EPILOG): --help alone names the groups of options.
ALL_GROUPS = "--help=all"
VARIABLE = re.compile(r"\(env: (\w+)\)")  # llama.cpp, common/arg.cpp
OPTION_VARIABLE = "LLAMA_ARG_"
NUMBER = re.compile(r"-?\d+(\.\d+)?")
NUMBERS = {"N", "n", "<n>"}  # placeholders for a number in llama.cpp's --help


def check_preset_options(context: Context) -> Iterator[Check]:
    """One check of all options of each preset."""
    before = context.subject.extended.config if context.subject.extended else {}
    entrypoint = (*(context.recipe.image.entrypoint or before.get("Entrypoint") or []),)
    for name, preset in context.subject.presets.items():
        checks = _check_preset_options(f"{name}: options", preset, context, entrypoint)
        yield from guarded(checks, "preset", name)


def _check_preset_options(
    subject: str, preset: Preset, context: Context, entrypoint: tuple[str, ...]
) -> Iterator[Check]:
    expected = "each is in --help and takes its value"
    text = context.help(entrypoint)
    if ALL_GROUPS in text:
        text = context.help(entrypoint, ALL_GROUPS)
    if not help_options(text):
        yield Check.skipped("preset", subject, expected, "its --help lists no option")
        return
    words = command.arguments(preset, context.recipe, {each: each.upper() for each in preset.files})
    wrong = option_faults(words, preset.serve.environment, text)
    found = "; ".join(wrong) or f"all {len(_groups(words))}"
    yield Check.of("preset", subject, expected, found, not wrong)


def option_faults(words: Sequence[str], environment: Mapping[str, str], text: str) -> list[str]:
    """The problems of arguments and variables, by the engine's ``--help``, ``text``."""
    found = [fault for group in _groups(words) for fault in _faults(group, text)]
    known = set(VARIABLE.findall(text))
    ours = [each for each in environment if each.startswith(OPTION_VARIABLE)]
    return found + [f"{each} is the variable of no option" for each in ours if each not in known]


def _groups(words: Sequence[str]) -> list[list[str]]:
    """Each option with its values; a model without an option, as vLLM takes it, is left out."""
    return [group for group in command.groups(words) if command.option_of(group[0])]


def _faults(group: Sequence[str], text: str) -> Iterator[str]:
    name, joined, value = group[0].partition("=")
    values = [value] if joined else group[1:]
    about = option_text(text, name)
    placeholder = placeholder_of(about or "")
    if about is None:
        yield f"{name} is not listed{suggestion(name, help_options(text))}"
    elif REMOVED in about:
        yield f"{name} was removed: {excerpt(about)}"
    elif values and not placeholder:
        yield f"{name} takes no value, and gets {' '.join(values)}"
    elif placeholder and not values and not placeholder.startswith("["):
        yield f"{name} gets no value for {placeholder}"
    else:
        yield from (fault for each in values for fault in _value_fault(name, each, about))


def _value_fault(name: str, value: str, about: str) -> Iterator[str]:
    """Why the option whose text is ``about`` does not take a value.  Only words are compared."""
    if NUMBER.fullmatch(value) or value.startswith("{"):
        return
    listed = option_values(about)
    placeholder = placeholder_of(about)
    if listed is not None:
        lacking = [part for part in value.split(",") if part not in listed]
        if lacking:
            yield f"{name} does not have {', '.join(lacking)}, only {', '.join(sorted(listed))}"
    elif placeholder in NUMBERS and not has_value(about, None, value):
        yield f"{name} gets {value} for the number {placeholder}"
