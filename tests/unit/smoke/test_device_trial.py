"""What the checks on a simulated card say of a report."""

from __future__ import annotations

import pytest

from builder.simulator.report import CardUse, KernelUse, Report, UnknownCode
from builder.smoke.device_trial import check_kernels

CARD = CardUse(name="", memory=1, context=0, used=0, peak=0)


def launch(code: str) -> KernelUse:
    return KernelUse(
        kernel="_Z5scalePf",
        file="/opt/engine/lib/libggml-cuda.so",
        code=code,
        card=0,
        count=3,
        grid=(1, 1, 1),
        block=(32, 1, 1),
        shared=0,
    )


@pytest.mark.parametrize(
    ("code", "passed", "found"),
    [
        ("sm_120a", True, "3 launches of 1 kernels from sm_120a"),
        (
            "compute_90",
            False,
            "3 launches of 1 kernels from compute_90; the driver would compile scale at first use",
        ),
    ],
)
def test_kernels_are_launched_as_machine_code(code: str, passed: bool, found: str) -> None:
    check = check_kernels(Report(version=1, cards=(CARD,), launches=(launch(code),)))
    assert (check.passed, check.found) == (passed, found)


def test_code_that_the_driver_compiles_is_named_where_it_is_no_fault() -> None:
    report = Report(version=1, cards=(CARD,), launches=(launch("compute_80"),))
    check = check_kernels(report, compiled_too=True)
    assert check.passed
    assert check.found.endswith("from compute_80; the driver would compile scale at first use")


def test_no_launch_fails() -> None:
    assert check_kernels(Report(version=1)).state == "failed"
    assert check_kernels(Report(version=1), compiled_too=True).state == "failed"


def test_kernels_of_code_that_was_not_read_are_named_with_its_file() -> None:
    unread = (
        UnknownCode(file="made at run time", kernels=("_Z3addPf",)),
        UnknownCode(file="/usr/lib/libother.so", kernels=("_Z3mulPf",)),
    )
    check = check_kernels(
        Report(version=1, cards=(CARD,), launches=(launch("unknown"),), unknown_code=unread)
    )
    assert check.found.endswith(
        "; registers not known (made at run time): add"
        "; registers not known (/usr/lib/libother.so): mul"
    )
