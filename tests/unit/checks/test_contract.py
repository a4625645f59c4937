"""An image that extends another one starts what that one starts."""

from __future__ import annotations

from typing import Any

import pytest

from builder.checks import contract
from builder.engines import layout
from builder.engines.layout import LAYOUT
from builder.image.contents import Contents, File, Layer
from support.smoke_tests import context_of, extended_image, hello_recipe

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
    config = {"Entrypoint": layout.command([])}
    contents = Contents(files, {"config": config}, (), 0)
    checks = contract.check(context_of(contents, recipe, extended=extended_image(1, before)))
    found = {check.subject: check for check in checks}
    assert found["words after the entrypoint"].passed is passes
    assert found["entrypoint"].passed


@pytest.mark.parametrize(
    ("wanted", "below", "own", "passes"),
    [
        ("gzip", "gzip", ("gzip", "tar"), True),  # any client reads both
        ("gzip", "gzip", ("gzip", "zstd"), False),
        ("zstd", "gzip", ("zstd", "zstd"), True),
        ("zstd", "gzip", ("zstd", "gzip"), False),
        ("gzip", "zstd", (), True),
    ],
)
def test_all_layers_that_an_image_adds_are_of_one_kind(
    wanted: str, below: str, own: tuple[str, ...], *, passes: bool
) -> None:
    recipe = hello_recipe()
    image = recipe.image.model_copy(update={"compression": wanted})
    kind = "application/vnd.oci.image.layer.v1.tar+"
    layers = [Layer("", 1, 1, 0, "", (), f"{kind}{each}") for each in (below, *own)]
    contents = Contents({}, {"config": {}}, tuple(layers), 0)
    changed = recipe.model_copy(update={"image": image})
    checks = contract.check(context_of(contents, changed, extended=extended_image(1, {})))
    (found,) = [check for check in checks if check.subject == "compression"]
    assert found.passed is passes
