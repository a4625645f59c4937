"""The files of a pin: for every platform that a recipe has images for."""

from __future__ import annotations

import pytest

from builder.core.platforms import Architecture
from builder.upstream import locks
from support.catalogs import load
from support.environment import REPOSITORY


@pytest.mark.parametrize("machine", ["amd64", "arm64"])
def test_the_compiler_of_this_machine_and_the_libraries_of_each_target(
    machine: Architecture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(locks, "architecture", lambda: machine)
    base = load(REPOSITORY).base("cuda-13.0")
    wheels = {wheel.name: wheel.sha256 for wheel in base.recipe.wheel}
    both = {file.sha256 for file in locks.packages_of(base, ["amd64", "arm64"])}
    assert both == {digest for each in wheels.values() for digest in each.values()}
    alone = {file.sha256 for file in locks.packages_of(base, ["amd64"])}
    assert wheels["nvidia-cuda-nvcc"][machine] in alone
    assert wheels["nvidia-cublas"]["amd64"] in alone
    assert (wheels["nvidia-cublas"]["arm64"] in alone) == (machine == "arm64")
