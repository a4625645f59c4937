from __future__ import annotations

import ctypes.util
from pathlib import Path

import pytest

from simulator import elf, report
from simulator import report as frames


@pytest.fixture(scope="module")
def library() -> Path:
    """The C library of this machine: an ELF file with functions that everybody knows."""
    name = ctypes.util.find_library("c")
    assert name is not None
    maps = Path("/proc/self/maps").read_text().split()
    return Path(next(path for path in maps if path.endswith(f"/{name}")))


def test_a_frame_without_a_symbol_is_named_by_the_symbol_table_of_its_file(library: Path) -> None:
    with library.open("rb") as stream:
        places = {name: (start, end) for start, end, name in elf.read_functions(stream)}
    inside, after = places["qsort"]  # the simulator's addresses are within the call
    found = report.Report(
        version=1, stacks=((f"/lib/c.so+{inside:#x}", f"/lib/c.so+{after:#x}", "/x.so+0x10"),)
    )
    [stack] = frames.named(found, {"/lib/c.so": library}.get)
    assert stack[0] == frames.Frame("/lib/c.so", inside, "qsort")
    assert stack[1].function != "qsort"
    assert str(stack[2]) == "x.so+0x10"


def test_the_caller_is_the_innermost_function_with_a_name() -> None:
    stack = [
        frames.Frame("/a.so", 1, ""),
        frames.Frame("/a.so", 2, "ggml_cuda_malloc"),
        frames.Frame("/a.so", 3, "load"),
    ]
    assert frames.caller_of(stack) == "ggml_cuda_malloc"
    assert frames.caller_of(stack, ["ggml_"]) == "load"
    assert frames.caller_of(stack[:1]) == "a.so+0x1"
    assert frames.caller_of([]) == "unknown"
