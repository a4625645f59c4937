"""Machine code for the cards of a recipe: the engine's own code, and the code of its base."""

from __future__ import annotations

import pytest

from builder.contents.contents import Contents, File
from builder.smoke.architectures import check
from builder.tools.elf import ElfFile
from builder.tools.fatbin import Code, Modules
from support.smoke_tests import context_of, of_arch


def file_with(path: str, *code: Code) -> File:
    modules = (Modules(code, (1,) * len(code), 1),)
    return File(path, "file", elf=ElfFile("x86-64", "dyn", path, (), (), (), None, modules))


@pytest.mark.parametrize(
    ("arch", "cublas", "good"),
    [
        ("120a", Code("elf", 120), True),
        ("121", Code("elf", 120), True),
        ("121", Code("elf", 121), True),
        ("121", Code("elf", 120, "f"), True),
        ("121", Code("elf", 120, "a"), False),
        ("121", Code("ptx", 120), False),
        ("121", Code("elf", 100), False),
        ("120", Code("elf", 121), False),
    ],
)
def test_a_library_of_the_base_needs_code_that_the_card_runs(
    arch: str, cublas: Code, good: bool
) -> None:
    digits = arch.rstrip("a")
    own = Code("elf", int(digits), arch.removeprefix(digits))
    files = [
        file_with("/opt/engine/lib/libx.so", own),
        file_with("/usr/local/cuda/lib/libcublas.so.13", cublas),
    ]
    contents = Contents({file.path: file for file in files}, {}, (), 0)
    engine, base = check(context_of(contents, of_arch(arch)))
    assert (engine.passed, base.passed) == (True, good)


def test_the_engine_needs_code_of_its_own() -> None:
    file = file_with("/opt/engine/lib/libx.so", Code("elf", 120))
    contents = Contents({file.path: file}, {}, (), 0)
    (found,) = check(context_of(contents, of_arch("121")))
    assert found.state == "failed"
