"""Two ledgers compared."""

from __future__ import annotations

from dataclasses import replace

import pytest

from builder.kernels.compare import Totals, compare, library_name
from builder.kernels.ledger import FatBinary, Library
from builder.tools.cubin import Kernel


def kernel(name: str, spills: int | None = 0, registers: int = 32, code: str = "same") -> Kernel:
    local = 16 if spills else 0
    return Kernel(name, registers, 0, local, spills, spills and 0, 0, 0, 128, code)


def library(*modules: list[Kernel], path: str = "/opt/lib/libggml-cuda.so.0.9.4") -> Library:
    return Library(
        path, tuple(FatBinary(0x100 * n, "sm_120a", tuple(m)) for n, m in enumerate(modules))
    )


def test_added_gone_changed_and_equal() -> None:
    before = library([kernel("_Z4samePf"), kernel("_Z4gonePf", 8), kernel("_Z5worsePf", 4)])
    after = library(
        [kernel("_Z4samePf"), kernel("_Z5worsePf", 100, code="new")],
        [kernel("_Z5addedPf", 20), kernel("_Z4gonePi")],
        path="/usr/lib/libggml-cuda.so.1",
    )
    (found,) = compare([before], [after])
    assert found.library == "libggml-cuda.so"
    assert (found.before, found.after) == (Totals(3, 2, 12, 384), Totals(4, 2, 120, 512))
    assert [(each.state, each.name, each.spills) for each in found.changes] == [
        ("changed", "worse(float*)", 96),
        ("added", "added(float*)", 20),
        ("added", "gone(int*)", 0),
        ("gone", "gone(float*)", -8),
    ]
    assert [found.count(state) for state in ("added", "gone", "changed")] == [2, 1, 1]


def test_a_template_of_several_modules_is_compared_by_what_differs() -> None:
    first, second, third = (kernel("_Z1kv", registers=n, code=str(n)) for n in (10, 20, 30))
    (found,) = compare([library([first, second], [second])], [library([second], [second, third])])
    (change,) = found.changes
    assert (change.before, change.after, change.registers) == (first, third, 20)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("__nv_static_25__4164b598_4_k_cu_acc5__Z4privPf", "__nv_static_9__ffff_x__Z4privPf"),
        ("_ZN13_GLOBAL__N__14mineEPf", "_ZN13_GLOBAL__N__24mineEPf"),
    ],
)
def test_a_name_with_a_hash_is_the_same_kernel(before: str, after: str) -> None:
    (found,) = compare([library([kernel(before)])], [library([kernel(after)])])
    assert found.changes == ()


def test_a_library_that_only_one_image_has() -> None:
    other = library([kernel("_Z1av")], path="/opt/libother.so")
    found = compare([library([kernel("_Z1av")])], [other])
    assert [(each.library, each.count("added"), each.count("gone")) for each in found] == [
        ("libggml-cuda.so", 0, 1),
        ("libother.so", 1, 0),
    ]


def test_unknown_spills_are_no_change() -> None:
    was = kernel("_Z1av", None)
    now = replace(was, spill_stores=0, spill_loads=0)
    (found,) = compare([library([was])], [library([now])])
    assert found.changes == ()


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("/opt/engine/lib/libggml-cuda.so", "libggml-cuda.so"),
        ("/lib/libcublas.so.13.0.2", "libcublas.so"),
        ("/opt/engine/bin/server", "server"),
        ("/x/_C.cpython-312-x86_64-linux-gnu.so", "_C.cpython-312-x86_64-linux-gnu.so"),
    ],
)
def test_library_names(path: str, name: str) -> None:
    assert library_name(path) == name
