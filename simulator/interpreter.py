"""Kernels run by the program ``ptx`` (simulator/ptx), in a process of its own."""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
Argument = Array | bytes | int | None
"""Memory, a structure, an integer of 32 bits, or a null pointer."""
MOST = 50_000_000  # instructions of a warp: a kernel without an end is a fault
PLACE = re.compile(r"PTX line \d+: .+")


class KernelError(Exception):
    """The kernel ended early, or could not be run; the text has no addresses."""


@dataclass(frozen=True, slots=True)
class KernelLaunch:
    """A kernel of a module, with its grid, its block, and its dynamic shared memory in bytes."""

    ptx: Path
    kernel: str
    grid: tuple[int, int]
    block: tuple[int, int]
    shared: int = 0


def run(
    program: Path, launch: KernelLaunch, arguments: Sequence[Argument], outs: Sequence[int]
) -> list[Array]:
    """The bytes of the arguments ``outs`` after the launch.  Raises ``KernelError``."""
    with tempfile.TemporaryDirectory() as folder:
        files = Path(folder)
        command = [str(program), "run", str(launch.ptx), "--kernel", launch.kernel]
        command += ["--grid", ",".join(map(str, launch.grid))]
        command += ["--block", ",".join(map(str, launch.block))]
        command += ["--shared", str(launch.shared), "--most", str(MOST)]
        for out in outs:
            command += ["--save", f"{out}:{files}/out-{out}"]
        for index, argument in enumerate(arguments):
            command += ["--arg", _given(argument, files / f"{index}")]
        done = subprocess.run(
            command, capture_output=True, text=True, errors="replace", check=False
        )
        if done.returncode:
            raise KernelError(_reason(done.stderr))
        return [np.fromfile(files / f"out-{out}", np.uint8) for out in outs]


def _given(argument: Argument, file: Path) -> str:
    if argument is None:
        return "u64:0"
    if isinstance(argument, int):
        return f"s32:{argument}"
    if isinstance(argument, bytes):
        return f"hex:{argument.hex()}"
    argument.tofile(file)
    return f"file:{file}"


def _reason(output: str) -> str:
    """The kind of a fault and its instruction: addresses differ from run to run."""
    lines = output.splitlines()
    place = next((found for line in lines if (found := PLACE.search(line))), None)
    if place is None:  # the program's own words
        words = [line.removeprefix("ptx: ") for line in lines if not line.startswith("ptx: see ")]
        return f"not run: {words[0] if words else 'the interpreter ended without a message'}"
    at = next(index for index, line in enumerate(lines) if PLACE.search(line))
    return f"{lines[at - 1].partition(':')[0]}, {' '.join(place[0].split())}"
