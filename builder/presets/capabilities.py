"""The abilities of a preset beside text, as far as its options show them.

llama.cpp, tools/server/README.md: ``--jinja`` is for tool calls, ``--mmproj`` for pictures,
``--reasoning-budget 0`` turns thinking off, and so does ``enable_thinking`` of a chat template.
vLLM, "Tool Calling" and "Reasoning Outputs": ``--enable-auto-tool-choice``, ``--reasoning-parser``.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

from builder.presets import command
from builder.presets.schema import Preset

TOOLS = {"--jinja", "--enable-auto-tool-choice"}
TEMPLATE = "--chat-template-kwargs"


def of_preset(preset: Preset) -> tuple[str, ...]:
    """``vision``, ``tools``, and ``thinking`` or ``no thinking``; none that no option names."""
    groups = command.groups(preset.serve.arguments)
    options = {command.option_of(group[0]): _value(group) for group in groups}
    return tuple(_named(preset, options))


def _named(preset: Preset, options: dict[str, str]) -> Iterator[str]:
    if preset.mmproj is not None or "--mmproj" in options:
        yield "vision"
    if TOOLS & options.keys():
        yield "tools"
    if options.get("--reasoning-budget") == "0" or _off(options.get(TEMPLATE, "")):
        yield "no thinking"
    elif "--reasoning-parser" in options:
        yield "thinking"


def _value(group: list[str]) -> str:
    return group[0].partition("=")[2] or " ".join(group[1:])


def _off(arguments: str) -> bool:
    try:
        found = json.loads(arguments)
    except ValueError:
        return False
    return isinstance(found, dict) and found.get("enable_thinking") is False
