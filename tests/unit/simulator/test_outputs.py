"""Two runs of a program, launch by launch."""

from __future__ import annotations

import pytest

from simulator.report import KernelUse, Output, Report, first_difference

SCALE, ADD = "_Z5scalePfi", "_Z3addPKfPfi"


def report(*launches: tuple[str, int]) -> Report:
    """The report of a process with these launches: kernel and checksum."""
    kernels = [*dict.fromkeys(kernel for kernel, _ in reversed(launches))]
    shape = (1, 1, 1)
    return Report.model_construct(
        launches=tuple(
            KernelUse.model_construct(kernel=kernel, card=0, count=1, grid=shape, block=shape)
            for kernel in kernels
        ),
        outputs=tuple(
            Output(launch=kernels.index(kernel), checksum=checksum) for kernel, checksum in launches
        ),
    )


@pytest.mark.parametrize(
    ("before", "after", "found"),
    [
        ([(SCALE, 1), (ADD, 2)], [(SCALE, 1), (ADD, 2)], ""),
        ([(SCALE, 1), (ADD, 2), (ADD, 3)], [(SCALE, 1), (ADD, 4), (ADD, 5)],
         "launch 2, add, stores other bytes"),
        ([(SCALE, 1), (ADD, 2)], [(ADD, 2), (SCALE, 1)],
         "launch 1 is of other kernels: scale, add"),
        ([(SCALE, 1), (ADD, 2)], [(SCALE, 1)], "launch 2 is of other kernels: add, none"),
        ([("__nv_static_9__abc_Z5scalePfi", 1)], [(SCALE, 1)], ""),
    ],
)  # fmt: skip
def test_the_first_launch_that_differs(
    before: list[tuple[str, int]], after: list[tuple[str, int]], found: str
) -> None:
    assert first_difference(report(*before), report(*after)) == found
