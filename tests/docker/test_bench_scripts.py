"""bench/overhead.py and bench/smoke.py run, for one iteration on a library of one file."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from support.environment import REPOSITORY
from support.variants import REPOSITORY_NAME

pytestmark = [pytest.mark.docker, pytest.mark.xdist_group("variant")]


def ran(script: str, *arguments: str | Path) -> Any:
    command = [sys.executable, f"bench/{script}.py", *map(str, arguments)]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.usefixtures("hello")  # it has the base built
def test_one_iteration(one_file: Path) -> None:
    where = ("--catalog", one_file)
    figures = json.loads(ran("overhead", "variant", *where, "--runs", "1", "--json"))
    assert figures["overhead"]["ratio"] > 0
    assert figures["unchanged"]["builds_started"] == 0
    assert {*figures["sizes"]} == {"variant-0.1.0", "cuda-13.0 (runtime)"}
    image = f"{REPOSITORY_NAME}:0.1.0"
    rows = ran("smoke", image, *where).splitlines()
    assert [row.count("|") for row in rows] == [3] * 4
    assert all(image in row for row in rows)
