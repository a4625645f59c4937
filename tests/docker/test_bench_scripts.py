"""studies/overhead.py and studies/smoke.py run, for one iteration on a library of one file."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from builder.build import ccache
from support.ccaches import records_of
from support.commands import Builder
from support.environment import REPOSITORY
from support.variants import REPOSITORY_NAME

pytestmark = [pytest.mark.docker, pytest.mark.xdist_group("variant")]


def ran(script: str, *arguments: str | Path) -> Any:
    command = [sys.executable, f"studies/{script}.py", *map(str, arguments)]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.usefixtures("hello")  # it has the base built
def test_one_iteration(builder: Builder, one_file: Path) -> None:
    where = ("--catalog", one_file)
    before = records_of(ccache.ID)
    figures = json.loads(ran("overhead", "variant", *where, "--runs", "1", "--json"))
    assert before <= records_of(ccache.ID), "a compile that runs beside it keeps its compiler cache"
    cost = figures["overhead"]
    assert cost["builder_s"] > cost["of_which_smoke_s"] > 0
    assert cost["ratio"] == pytest.approx(cost["builder_s"] / cost["bare_buildx_s"], rel=0.05)
    assert figures["unchanged"]["builds_started"] == 0
    assert {*figures["sizes"]} == {"variant-0.1.0", "cuda-13.0 (runtime)"}
    assert all(download < unpacked for download, unpacked in figures["sizes"].values())
    image = f"{REPOSITORY_NAME}:0.1.0"
    (smoked,) = json.loads(ran("smoke", image, *where, "--json"))
    verdict = json.loads(builder("smoke", image, *where, "--no-gpu", "--json").stdout)["verdict"]
    assert (smoked["checks"], smoked["failed"]) == (len(verdict["checks"]), 0)
    assert smoked["unpacked_mb"] == round(verdict["unpacked_size"] / 1e6)
