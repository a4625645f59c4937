"""NVIDIA's GPUs: whether the engine offers them to containers, and what a container sees."""

from __future__ import annotations

from dataclasses import dataclass

from builder.errors import UntriedError
from builder.tools.docker import engine as docker
from builder.tools.docker.containers import Container

ALL = "all"
# nvidia-smi(1), --help-query-gpu; NVIDIA's runtime puts the program into the container.
FIELDS = ("name", "compute_cap", "driver_version", "memory.total")
ASK = ["nvidia-smi", f"--query-gpu={','.join(FIELDS)}", "--format=csv,noheader,nounits"]
PATIENCE = 60.0  # seconds: the first call may wake a driver


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU as a container sees it."""

    name: str
    capability: str
    """``12.0``."""
    driver: str
    memory: int
    """MiB."""


def offered() -> bool:
    """Whether the engine has NVIDIA's runtime; raises ``WorldError`` where no engine answers."""
    return "nvidia" in docker.engine().runtimes


def seen(container: Container) -> tuple[Gpu, ...]:
    """The GPUs that a container sees; raises ``UntriedError`` where it cannot be asked."""
    done = container.execute(ASK, PATIENCE)
    if done.status != 0:
        raise UntriedError("nvidia-smi tells nothing in the container", done.output.strip())
    return read(done.output)


def read(table: str) -> tuple[Gpu, ...]:
    """What nvidia-smi prints for ``ASK``; raises ``UntriedError`` where it is something else."""
    try:
        rows = [[cell.strip() for cell in row.split(",")] for row in table.splitlines() if row]
        return tuple(Gpu(name, cap, driver, int(memory)) for name, cap, driver, memory in rows)
    except ValueError as error:
        raise UntriedError("nvidia-smi prints something unknown", table.strip()) from error
