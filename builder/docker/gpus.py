"""NVIDIA GPUs as nvidia-smi lists them, on this machine and in a container."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from typing import TYPE_CHECKING

from builder.core.errors import UntriedError, WorldError

if TYPE_CHECKING:
    from builder.docker.containers import Container

ALL = "all"
# nvidia-smi(1), --help-query-gpu; NVIDIA's runtime puts the program into the container.
FIELDS = ("name", "compute_cap", "driver_version", "memory.total")
COMMAND = ["nvidia-smi", f"--query-gpu={','.join(FIELDS)}", "--format=csv,noheader,nounits"]
TIMEOUT = 60.0  # seconds: the first call may start the driver
UNKNOWN = {"ERR!", "N/A", "UNKNOWN ERROR", "NOT SUPPORTED"}
"""Values that nvidia-smi does not know, where they stand without brackets."""
SHARES = re.compile(r"\b(GB10|Orin|Thor)\b")
"""Names of GPUs whose memory is the machine's."""


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU as a container sees it."""

    name: str
    capability: str
    """``12.0``; empty: not known."""
    driver: str
    """Empty: not known."""
    memory: int
    """MiB; 0: not known."""


def is_older(driver: str, oldest: str) -> bool:
    """Whether a driver is too old; not where one of the versions is not known."""
    known, needed = version_numbers(driver), version_numbers(oldest)
    return bool(known and needed) and known < needed


def version_numbers(version: str) -> list[int]:
    """``580.65.6`` as numbers, which compare as versions do; empty: it is no version."""
    parts = version.split(".")
    return [int(part) for part in parts] if all(part.isdecimal() for part in parts) else []


def on_host() -> str:
    """The output of ``COMMAND`` on this machine.  Raises ``WorldError`` where it lists no GPU."""
    if shutil.which(COMMAND[0]) is None:
        raise WorldError("this machine has no NVIDIA GPU", "there is no nvidia-smi")
    try:
        done = subprocess.run(COMMAND, capture_output=True, text=True, timeout=TIMEOUT, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise WorldError("nvidia-smi does not answer", str(error)) from error
    if done.returncode != 0:
        raise WorldError("nvidia-smi finds no GPU", (done.stderr or done.stdout).strip())
    return done.stdout


def visible_in(container: Container) -> tuple[Gpu, ...]:
    """The GPUs that a container sees.  Raises ``UntriedError`` where nvidia-smi fails in it."""
    done = container.execute(COMMAND, TIMEOUT)
    if done.status != 0:
        raise UntriedError(
            "nvidia-smi fails in the container",
            done.output.strip(),
            "check the NVIDIA driver and the NVIDIA Container Toolkit",
        )
    return read(done.output)


def read(table: str) -> tuple[Gpu, ...]:
    """The GPUs in the output of ``COMMAND``, of this machine.

    nvidia-smi writes ``[N/A]``, ``[Not Supported]`` or ``ERR!`` for a value that it does not know:
    a GB10 has no memory of its own (nvidia-smi 580.173.02, XuehaiPan/nvitop#208).  A name may
    have commas: the output quotes nothing.  Raises ``UntriedError`` for any other text.
    """
    try:
        rows = [row.rsplit(",", len(FIELDS) - 1) for row in table.splitlines() if row.strip()]
        return tuple(_gpu(*(cell.strip() for cell in row)) for row in rows)
    except (TypeError, ValueError) as error:
        raise UntriedError(
            "the output of nvidia-smi has an unknown format", table.strip()
        ) from error


def _gpu(name: str, capability: str, driver: str, memory: str) -> Gpu:
    known, version, size = map(_value, (capability, driver, memory))
    if version and not version_numbers(version):
        raise ValueError(f"{version} is no version")
    if not size and SHARES.search(name):
        mib = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") >> 20  # the machine's
        return Gpu(name, known, version, mib)
    return Gpu(name, known, version, int(size or 0))


def _value(cell: str) -> str:
    """The value of a cell; empty where nvidia-smi does not know it."""
    return "" if cell.startswith("[") or cell.upper() in UNKNOWN else cell
