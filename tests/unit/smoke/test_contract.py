"""An image that extends another one starts what that one starts."""

from __future__ import annotations

from typing import Any

import pytest

from builder.families import entrypoint
from builder.families.layout import LAYOUT
from builder.smoke import contract
from builder.smoke.contents import Contents, ExtendedImage, File
from support.smoke_tests import hello_recipe

BEFORE = {"Entrypoint": ["vllm", "serve"], "Cmd": ["--default"]}
KEPT = "entrypoint vllm\nentrypoint serve\ncommand --default\n"


@pytest.mark.parametrize(
    ("before", "needs", "passes"),
    [
        (BEFORE, KEPT, True),
        (BEFORE, "recipe x-1\n" + KEPT, True),
        (BEFORE, KEPT.replace("serve", "bench"), False),
        (BEFORE, "", False),
        ({"Cmd": ["vllm"]}, "command vllm\n", True),
    ],
)
def test_what_follows_the_entrypoint(before: dict[str, Any], needs: str, passes: bool) -> None:
    recipe = hello_recipe()
    recipe = recipe.model_copy(update={"image": recipe.image.model_copy(update={"entrypoint": []})})
    files = {LAYOUT.needs: File(LAYOUT.needs, "file", text=needs)}
    config = {"Entrypoint": entrypoint.command([])}
    contents = Contents(files, {"config": config}, (), 0)
    checks = contract.check(recipe, {}, contents, ExtendedImage(1, before))
    found = {check.subject: check for check in checks}
    assert found["what follows the entrypoint"].passed is passes
    assert found["entrypoint"].passed
