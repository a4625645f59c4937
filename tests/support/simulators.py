"""The simulator's libraries as the tests share them, and programs that run on simulated cards."""

from __future__ import annotations

import hashlib
import json
import subprocess
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from builder.checks import simulated as build
from builder.checks import simulated as run_of
from builder.presets.cards import Card
from simulator import elf, fatbin, ledger
from simulator.fatbin import taken
from simulator.ledger import code_table
from simulator.receiver import Receiver, receiving
from simulator.selection import Capability
from support.environment import SHARED_CACHE
from support.smoke_tests import docker

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


_SCRIPT = """
/work/$0 $1 > /out/$0-$1.output
echo $? > /out/$0-$1.status
"""


@dataclass(frozen=True)
class Case:
    """What a program printed, in its order, how it ended, and its report."""

    lines: list[tuple[str, str]]
    status: int
    report: dict[str, Any]

    def told(self, name: str) -> str:
        [value] = [value for told, value in self.lines if told == name]
        return value

    def number(self, name: str) -> int:
        return int(self.told(name))

    def violations(self) -> list[tuple[str, str]]:
        return [(found["error"], found["why"]) for found in self.report["violations"]]


def run_cases(
    image: str,
    libraries: Path,
    programs: Path,
    files: Mapping[str, str],
    runs: Sequence[tuple[str, str]],
    folder: Path,
    *,
    ptx: Path | None = None,
) -> dict[tuple[str, str], Case]:
    """Run programs of the folder ``programs`` in one container without a GPU, each with a report.

    ``runs`` are pairs of a program and its argument; ``files`` configure the simulator; ``folder``
    is empty.
    """
    sockets, out = folder / "sockets", folder / "out"
    for each, mode in ((sockets, 0o755), (out, 0o777)):  # the container's user is another
        each.mkdir()
        each.chmod(mode)
    calls = [
        f"BUILDER_SIMULATOR_REPORT=/reports/{name}-{case} sh -c '{_SCRIPT}' {name} {case}"
        for name, case in runs
    ]
    sealed = ["--rm", "--network=none", "--user=10001:10001", "--read-only"]
    with ExitStack() as stack:
        simulation = run_of.simulation(libraries, files, folder / "simulation", ptx=ptx)
        mounts = stack.enter_context(simulation).mounts
        reports = {key: stack.enter_context(receiving(sockets, "-".join(key))) for key in runs}
        options = [f"--volume={programs}:/work:ro", f"--volume={sockets}:/reports:ro"]
        options += [f"--volume={out}:/out"]
        options += [f"--volume={path}:{at}:ro" for at, path in mounts.volumes.items()]
        options += [f"--env={name}={value}" for name, value in mounts.env.items()]
        docker("run", *sealed, *options, image, "sh", "-uc", "\n".join(calls))
        return {key: _read(out / "-".join(key), reports[key]) for key in runs}


def _read(file: Path, receiver: Receiver) -> Case:
    output = file.with_name(f"{file.name}.output").read_text()
    words = [line.rpartition(" ") for line in output.splitlines()]
    [report] = receiver.messages().values()
    status = int(file.with_name(f"{file.name}.status").read_text())
    return Case([(name, value) for name, _, value in words], status, json.loads(report))


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
        config = tmp_path / "config"
        config.mkdir()
        (config / "cards").write_text(cards)
        (config / "code").write_text("")
        whole = PRELUDE + program + "\nprint(json.dumps(result))\n"
        (tmp_path / "program.py").write_text(whole)
        volumes = {
            run_of.LIBRARIES: simulator_libraries,
            run_of.CONFIGURATION: config,
            run_of.SOCKET: tmp_path / "report",
            "/work": tmp_path,
        }
        command = ["docker", "run", "--rm", "--network=none"]
        command += [f"--volume={folder}:{place}:ro" for place, folder in volumes.items()]
        command += ["--env=BUILDER_SIMULATOR=/simulator/config"]
        command += [images["devel"], "python3", "/work/program.py"]
        with receiving(tmp_path, "report") as receiver:
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            (report,) = receiver.messages().values()
        assert done.returncode == 0, done.stdout + done.stderr
        return json.loads(done.stdout), json.loads(report)

    return run


def digest_of(file: Path) -> str:
    """The sha256 of the machine code of a program or a library with one source file.

    nvcc adds a small fat binary without kernels.
    """
    with file.open("rb") as stream:
        regions = [
            region
            for section in elf.loaded_fatbins(stream)
            for region in fatbin.regions(stream, section.offset, section.offset + section.size)
        ]
        codes = [taken(region.entries, Capability(12, 0)) for region in regions]
        payloads = [code.payload(stream) for code in codes if code is not None]
    return hashlib.sha256(max(payloads, key=len)).hexdigest()
