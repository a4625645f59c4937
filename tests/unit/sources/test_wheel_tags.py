"""Which wheels fit linux x86_64, and which of them is best."""

from __future__ import annotations

import pytest

from builder.sources.releases import rank


@pytest.mark.parametrize(
    ("better", "worse"),
    [
        ("a-1-cp313-cp313-manylinux_2_28_x86_64.whl", "a-1-cp313-cp313-manylinux_2_17_x86_64.whl"),
        ("a-1-cp313-cp313-manylinux_2_17_x86_64.whl", "a-1-cp38-abi3-manylinux_2_35_x86_64.whl"),
        ("a-1-cp38-abi3-manylinux_2_35_x86_64.whl", "a-1-py3-none-any.whl"),
        ("a-1-2-py3-none-any.whl", "a-1-1-py3-none-any.whl"),
        ("a-1-py3-none-any.whl", None),
        ("a-1-cp313-cp313-manylinux2014_x86_64.manylinux_2_17_x86_64.whl", None),
    ],
)
def test_the_wheel_that_fits_best(better: str, worse: str | None) -> None:
    first = rank(better, "3.13")
    assert first is not None
    if worse is not None:
        second = rank(worse, "3.13")
        assert second is not None
        assert first < second


@pytest.mark.parametrize(
    "name",
    [
        "a-1-cp312-cp312-manylinux_2_28_x86_64.whl",
        "a-1-cp313-cp313t-manylinux_2_28_x86_64.whl",
        "a-1-cp313-cp313-manylinux_2_28_aarch64.whl",
        "a-1-cp313-cp313-musllinux_1_2_x86_64.whl",
        "a-1-cp313-cp313-win_amd64.whl",
        "a-1-cp313-cp313-manylinux_2_99_x86_64.whl",
        "a-1.tar.gz",
        "a.whl",
    ],
)
def test_a_wheel_that_does_not_fit(name: str) -> None:
    assert rank(name, "3.13") is None
