"""CUDA's libraries in an image: one version of each, also below an engine of wheels."""

from __future__ import annotations

import pytest

from builder.contents.contents import Contents, File, Layer
from builder.smoke.leftovers import check_copies
from builder.smoke.verdict import Check
from builder.tools.elf import ElfFile
from support.smoke_tests import context_of, extended_image, hello_recipe

PARSED = ElfFile("x86-64", "dyn", "libcublas.so.13", (), (), (), None, ())
BELOW = File("/usr/local/cuda/lib/libcublas.so.13", "file", elf=PARSED, digest="1")
ABOVE = File("/opt/engine/nvidia/lib/libcublas.so.13", "file", elf=PARSED, digest="2")


@pytest.mark.parametrize(("devel", "passes"), [(None, True), ("devel", False)])
def test_a_second_version_in_a_base_of_ours_is_found(devel: str | None, *, passes: bool) -> None:
    layers = tuple(Layer("", 1, 1, 0, "", (file,)) for file in (BELOW, ABOVE))
    files = {file.path: file for file in (BELOW, ABOVE)}
    contents = Contents(files, {"config": {}}, layers, 0)
    context = context_of(contents, hello_recipe(), extended=extended_image(1, {}), devel=devel)
    found: dict[str, Check] = {check.subject: check for check in check_copies(context)}
    assert found["one version of each CUDA library"].passed is passes
