"""CUDA's libraries in an image: one version of each, also below an engine of wheels."""

from __future__ import annotations

import pytest

from builder.checks.libraries import check_copies
from builder.checks.verdict import Check
from builder.image.contents import Contents, File, Layer
from simulator.elf import ElfFile
from support.smoke_tests import context_of, extended_image, hello_recipe

PARSED = ElfFile("x86-64", "dyn", "libcublas.so.13", (), (), (), None, ())
TOOLKIT, WHEEL, OTHER_WHEEL = (
    File(f"{folder}/libcublas.so.13", "file", elf=PARSED, digest=folder)
    for folder in ("/usr/local/cuda/lib", "/opt/engine/nvidia/lib", "/opt/engine/other/lib")
)


@pytest.mark.parametrize(
    ("below", "devel", "passes"),
    [
        (TOOLKIT, "devel", False),
        (OTHER_WHEEL, "devel", True),  # a package has several, and finds its own
        (TOOLKIT, None, True),  # in a published image
    ],
)
def test_a_second_version_beside_the_toolkit_of_our_base_is_found(
    below: File, devel: str | None, *, passes: bool
) -> None:
    files = {file.path: file for file in (below, WHEEL)}
    layers = (Layer("", 1, 1, 0, "", tuple(files.values())), Layer("", 1, 1, 0, "", ()))
    contents = Contents(files, {"config": {}}, layers, 0)
    context = context_of(contents, hello_recipe(), extended=extended_image(1, {}), devel=devel)
    found: dict[str, Check] = {check.subject: check for check in check_copies(context)}
    assert found["one version of each CUDA library"].passed is passes
