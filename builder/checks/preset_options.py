"""Check: the image's engine has every option of a preset, and takes its value.

The engine's own ``--help`` decides, as for the recipe's probes of options.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from builder.checks import help_text
from builder.checks.smoke_answers import excerpt, has_value
from builder.checks.subject import Context, guarded
from builder.checks.verdict import Check
from builder.core.errors import suggestion
from builder.presets import command, model_files
from builder.presets.schema import Preset

# vLLM (vllm/entrypoints: VLLM_SUBCMD_PARSER_EPILOG): --help alone names the groups of options.
ALL_GROUPS = "--help=all"
VARIABLE = re.compile(r"\(env: (\w+)\)")  # llama.cpp, common/arg.cpp
OPTION_VARIABLE = "LLAMA_ARG_"
NUMBER = re.compile(r"-?\d+(\.\d+)?")
NUMBERS = {"N", "n", "<n>"}  # placeholders for a number in llama.cpp's --help


def check(context: Context) -> Iterator[Check]:
    """One check of all options of each preset."""
    before = context.subject.extended.config if context.subject.extended else {}
    entrypoint = (*(context.recipe.image.entrypoint or before.get("Entrypoint") or []),)
    for name, preset in context.subject.presets.items():
        checks = _check(f"{name}: options", preset, context, entrypoint)
        yield from guarded(checks, "preset", name)


def _check(
    subject: str, preset: Preset, context: Context, entrypoint: tuple[str, ...]
) -> Iterator[Check]:
    expected = "each is in --help and takes its value"
    text = context.help(entrypoint)
    if ALL_GROUPS in text:
        text = context.help(entrypoint, ALL_GROUPS)
    if not help_text.options(text):
        yield Check.skipped("preset", subject, expected, "its --help lists no option")
        return
    places = {place: place.upper() for place in model_files.of_preset(preset)}
    words = command.arguments(preset, context.recipe, places)
    wrong = faults(words, preset.serve.environment, text)
    found = "; ".join(wrong) or f"all {len(_groups(words))}"
    yield Check.of("preset", subject, expected, found, not wrong)


def faults(words: Sequence[str], environment: Mapping[str, str], text: str) -> list[str]:
    """The problems of arguments and variables, by the engine's ``--help``, ``text``."""
    found = [fault for group in _groups(words) for fault in _faults(group, text)]
    return found + _unknown_variables(environment, text)


def _groups(words: Sequence[str]) -> list[list[str]]:
    """Each option with its values; a model without an option, as vLLM takes it, is left out."""
    return [group for group in command.groups(words) if command.option_of(group[0])]


def _faults(group: Sequence[str], text: str) -> Iterator[str]:
    name, joined, value = group[0].partition("=")
    values = [value] if joined else group[1:]
    about = help_text.option_text(text, name)
    if about is None:
        yield f"{name} is not listed{suggestion(name, help_text.options(text))}"
        return
    if help_text.is_removed(about):
        yield f"{name} was removed: {excerpt(about)}"
        return
    placeholder = help_text.placeholder(about)
    if values and not placeholder:
        yield f"{name} takes no value, and gets {' '.join(values)}"
    elif placeholder and not values and not placeholder.startswith("["):
        yield f"{name} gets no value for {placeholder}"
    else:
        yield from (fault for each in values for fault in _value_fault(name, each, about))


def _value_fault(name: str, value: str, about: str) -> Iterator[str]:
    """Why the option whose text is ``about`` does not take a value.  Only words are compared."""
    if NUMBER.fullmatch(value) or value.startswith("{"):
        return
    listed = help_text.values(about)
    placeholder = help_text.placeholder(about)
    if listed is not None:
        lacking = [part for part in value.split(",") if part not in listed]
        if lacking:
            yield f"{name} does not have {', '.join(lacking)}, only {', '.join(sorted(listed))}"
    elif placeholder in NUMBERS and not has_value(about, None, value):
        yield f"{name} gets {value} for the number {placeholder}"


def _unknown_variables(environment: Mapping[str, str], text: str) -> list[str]:
    known = set(VARIABLE.findall(text))
    return [
        f"{name} is the variable of no option"
        for name in environment
        if name.startswith(OPTION_VARIABLE) and name not in known
    ]
