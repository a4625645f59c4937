"""Two ELF files that gcc makes: how they link, their symbols, their sections."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from builder.image.compare import Difference, ElfDifference, compare_elf

SOURCE = "#include <stdlib.h>\nint first(void) { return 1; }\n"


def library(folder: Path, name: str, source: str, *flags: str) -> Path:
    (folder / "source.c").write_text(source)
    command = ["gcc", "-shared", "-nostartfiles", "-fPIC", "-O1", "source.c", "-o", name, *flags]
    subprocess.run(command, cwd=folder, check=True)
    return folder / name


def compared(before: Path, after: Path) -> ElfDifference:
    with before.open("rb") as old, after.open("rb") as new:
        return compare_elf(old, new)


def test_what_differs_of_two_libraries(tmp_path: Path) -> None:
    before = library(
        tmp_path, "before.so", SOURCE, "-Wl,-soname,libx.so.1", "-Wl,-rpath,$ORIGIN",
        "-Wl,--build-id=0xaa", "-Wl,--as-needed",
    )  # fmt: skip
    more = SOURCE.replace("return 1", "return rand()") + "int second(void) { return 2; }\n"
    after = library(
        tmp_path, "after.so", more.replace("first", "other"), "-Wl,-soname,libx.so.2",
        "-Wl,--build-id=0xbb", "-Wl,--no-as-needed", "-lm",
    )  # fmt: skip
    found = compared(before, after)
    assert {each.name: (each.before, each.after) for each in found.values} == {
        "soname": (("libx.so.1",), ("libx.so.2",)),
        "needed": ((), ("libm.so.6", "libc.so.6")),
        "runpath": (("$ORIGIN",), ()),
        "build id": (("aa",), ("bb",)),
    }
    assert found.symbols_removed == ("first",)
    assert {each.partition("@")[0] for each in found.symbols_added} == {"other", "second", "U rand"}
    sizes = {each.name: (each.before, each.after) for each in found.sections}
    assert sizes[".text"][0] != sizes[".text"][1]
    assert ".comment" not in sizes


@pytest.mark.parametrize("change", ["same", "bytes", "section"])
def test_a_section_with_other_bytes_or_one_that_is_missing(tmp_path: Path, change: str) -> None:
    text = '__asm__(".section .note.mine\\n.ascii \\"{}\\"\\n.text");\n'
    sources = {"same": text.format("one"), "bytes": text.format("two"), "section": ""}
    before = library(tmp_path, "a.so", SOURCE + sources["same"], "-Wl,--build-id=none", "-s")
    after = library(tmp_path, "b.so", SOURCE + sources[change], "-Wl,--build-id=none", "-s")
    found = compared(before, after)
    mine = [each for each in found.sections if each.name == ".note.mine"]
    expected = {
        "same": [],
        "bytes": [Difference(".note.mine", 3, 3)],
        "section": [Difference(".note.mine", 3, None)],
    }
    assert mine == expected[change]
    assert found.values == ()
