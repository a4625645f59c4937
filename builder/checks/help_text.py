"""Reads the values of an option from ``--help``.

llama.cpp's trees (common/arg.cpp, tools/server) write them in several ways: in the signature,
``--flash-attn [on|off|auto]``, ``--rope-scaling {none,linear,yarn}`` or ``--spec-type
none,draft-mtp,draft-dflash``; or below it, ``allowed values: f32, f16, q8_0``, or ``one of:`` and
a line ``- none: ...`` for each.
"""

from __future__ import annotations

import re

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


def options(help_text: str) -> list[str]:
    """The names of all options, each once, in order."""
    lines = (line for line in help_text.splitlines() if OPTION_LINE.match(line))
    return [*dict.fromkeys(name for line in lines for name in _names(line))]


def placeholder(text: str) -> str:
    """The placeholder of an option's value: ``N`` of ``--threads N``; empty: there is none."""
    signature = END.split(text.split("\n", 1)[0].strip(), maxsplit=1)[0]
    found = PLACEHOLDER.search(signature)
    return found[1].rstrip(",") if found is not None else ""


def is_removed(text: str) -> bool:
    """Whether an option's text says that the engine refuses it."""
    return REMOVED in text


def values(text: str) -> frozenset[str] | None:
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
