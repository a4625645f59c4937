"""The abilities of a preset beside text, as far as its options show them.

llama.cpp, tools/server/README.md: ``--jinja`` is for tool calls, ``--mmproj`` for pictures,
``--reasoning-budget 0`` turns thinking off, and so does ``enable_thinking`` of a chat template.
vLLM, "Tool Calling" and "Reasoning Outputs": ``--enable-auto-tool-choice``, ``--reasoning-parser``.
"""

from __future__ import annotations

import json

from builder.presets import command
from builder.presets.schema import Preset

TOOLS = {"--jinja", "--enable-auto-tool-choice"}
TEMPLATE = "--chat-template-kwargs"


def of_preset(preset: Preset) -> tuple[str, ...]:
    """``vision``, ``tools``, and ``thinking`` or ``no thinking``; none that no option names."""
    options = {
        command.option_of(first): first.partition("=")[2] or " ".join(values)
        for first, *values in command.groups(preset.serve.arguments)
    }
    try:
        template = json.loads(options.get(TEMPLATE, ""))
    except ValueError:
        template = None
    off = isinstance(template, dict) and template.get("enable_thinking") is False
    found = ["vision"] if preset.mmproj is not None or "--mmproj" in options else []
    found += ["tools"] if TOOLS & options.keys() else []
    if options.get("--reasoning-budget") == "0" or off:
        found.append("no thinking")
    elif "--reasoning-parser" in options:
        found.append("thinking")
    return tuple(found)
