"""The simulator's libraries as the tests share them, and programs that run on simulated cards."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from builder.kernels import ledger
from builder.kernels.code_table import code_table
from builder.kernels.selection import Capability
from builder.simulator import build
from builder.simulator.cards import Card
from support.environment import SHARED_CACHE

Simulated = Callable[[str, str], tuple[Any, dict[str, Any]]]
"""Runs a Python program on simulated cards: (program, the file ``cards``) -> (result, report)."""

PRELUDE = """
import ctypes as c
import json

def library(name):
    return c.CDLL("/simulator/lib/" + name)

def out(kind, function, *arguments):
    "Calls a function whose first parameter is a result: (status, result)."
    value = kind()
    return [function(c.byref(value), *arguments), value.value]
"""


def code_of(files: Mapping[str, Path], card: Card) -> str:
    """The code table of files that are in no image; by their paths in the container."""
    capability = Capability.parse(card.capability)
    found = {}
    for path, file in files.items():
        with file.open("rb") as stream:
            found[path] = list(ledger.read(stream, capability))
    return code_table(found)


@pytest.fixture
def simulator_libraries(images: dict[str, str]) -> Path:
    """The directory of the simulated libraries: compiled once for all test runs."""
    return build.libraries(SHARED_CACHE, images["devel"], print)


@pytest.fixture
def simulated(images: dict[str, str], simulator_libraries: Path, tmp_path: Path) -> Simulated:
    """Runs programs in the image to compile in, with the simulated libraries and no network.

    What a program assigns to ``result`` is returned, with the report of its process.
    """

    def run(program: str, cards: str) -> tuple[Any, dict[str, Any]]:
        config, reports = tmp_path / "config", tmp_path / "report"
        config.mkdir()
        reports.mkdir()
        (config / "cards").write_text(cards)
        (config / "code").write_text("")
        whole = PRELUDE + program + "\nprint(json.dumps(result))\n"
        (tmp_path / "program.py").write_text(whole)
        volumes = {
            "/simulator/lib:ro": simulator_libraries,
            "/simulator/config:ro": config,
            "/simulator/report": reports,
            "/work:ro": tmp_path,
        }
        docker = ["docker", "run", "--rm", "--network=none"]
        docker += [f"--volume={folder}:{place}" for place, folder in volumes.items()]
        docker += ["--env=BUILDER_SIMULATOR=/simulator/config"]
        docker += [images["devel"], "python3", "/work/program.py"]
        done = subprocess.run(docker, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        (report,) = reports.glob("*.json")
        return json.loads(done.stdout), json.loads(report.read_text())

    return run
