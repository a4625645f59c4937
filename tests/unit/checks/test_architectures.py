"""Machine code of the engine for the cards of a recipe."""

from __future__ import annotations

import pytest

from builder.checks.cuda import check_architectures
from builder.image.contents import Contents, File
from simulator.elf import ElfFile
from simulator.fatbin import Modules
from simulator.selection import Code
from support.smoke_tests import context_of, of_arch


def file_with(path: str, *code: Code) -> File:
    modules = (Modules(code, (1,) * len(code), 1),)
    return File(path, "file", elf=ElfFile("x86-64", "dyn", path, (), (), (), None, modules))


@pytest.mark.parametrize(
    ("arch", "own", "good"),
    [
        ("120a", Code("elf", 120, "a"), True),
        ("120a", Code("elf", 120), False),
        ("120", Code("elf", 120, "a"), True),
        ("120", Code("ptx", 120), False),
    ],
)
def test_the_engine_has_the_variant_of_the_recipe(arch: str, own: Code, good: bool) -> None:
    files = [
        file_with("/opt/engine/lib/libx.so", own),
        file_with("/usr/local/cuda/lib/libcublas.so.13", Code("elf", 90)),  # not the engine's
    ]
    contents = Contents({file.path: file for file in files}, {}, (), 0)
    (engine,) = check_architectures(context_of(contents, of_arch(arch)))
    assert engine.passed is good


def test_the_engine_needs_code_of_its_own() -> None:
    file = file_with("/opt/engine/lib/libx.so", Code("elf", 120))
    contents = Contents({file.path: file}, {}, (), 0)
    (found,) = check_architectures(context_of(contents, of_arch("121")))
    assert found.state == "failed"
