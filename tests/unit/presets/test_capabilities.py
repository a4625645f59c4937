"""What presets can do, by their options."""

from __future__ import annotations

from typing import Any

import pytest

from builder.presets.choose import capabilities
from builder.presets.schema import Preset
from support.shipped import PRESETS


def can(*arguments: str, **keys: Any) -> tuple[str, ...]:
    given = {"recipe": "a-1", "summary": "a", "card": "5090", "model": {"name": "A"}, **keys}
    serve = {"arguments": [*arguments]}
    return capabilities(Preset.model_validate({**given, "serve": serve}))


@pytest.mark.parametrize(
    ("arguments", "names"),
    [
        ((), ()),
        (("--jinja",), ("tools",)),
        (("--enable-auto-tool-choice", "--tool-call-parser", "qwen3_coder"), ("tools",)),
        (("--reasoning-parser", "qwen3"), ("thinking",)),
        (("--mmproj", "{mmproj}"), ("vision",)),
        (("--chat-template-kwargs", '{"enable_thinking": false}'), ("no thinking",)),
        (('--chat-template-kwargs={"enable_thinking":false}',), ("no thinking",)),
        (("--chat-template-kwargs", '{"enable_thinking": true}'), ()),
        (("--chat-template-kwargs", "[1]"), ()),
        (("--chat-template-kwargs", "not JSON"), ()),
        (("--jinja", "--reasoning-budget", "0"), ("tools", "no thinking")),
        (("--reasoning-budget", "-1"), ()),
    ],
)
def test_options_say_what_a_preset_can(arguments: tuple[str, ...], names: tuple[str, ...]) -> None:
    assert can(*arguments) == names


def test_a_projector_is_for_pictures() -> None:
    assert can(mmproj={"repository": "a/b", "file": "mmproj.gguf"}) == ("vision",)


def test_published_presets() -> None:
    found = {entry.name: capabilities(entry.preset) for entry in PRESETS.valid()}
    assert found["qwen3.6-27b-autoround-mtp@5090-laptop"] == ("tools", "thinking")
    assert found["qwen3.6-27b-dflash-buun@5090-laptop"] == ("tools", "no thinking")
    assert found["gemma-4-e4b-mtp@5090-laptop"] == ()
