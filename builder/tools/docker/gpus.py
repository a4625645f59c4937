"""NVIDIA GPUs: whether the engine has NVIDIA's runtime, and which GPUs a container sees."""

from __future__ import annotations

from dataclasses import dataclass

from builder.errors import UntriedError
from builder.tools.docker import engine as docker
from builder.tools.docker.containers import Container

ALL = "all"
# nvidia-smi(1), --help-query-gpu; NVIDIA's runtime puts the program into the container.
FIELDS = ("name", "compute_cap", "driver_version", "memory.total")
COMMAND = ["nvidia-smi", f"--query-gpu={','.join(FIELDS)}", "--format=csv,noheader,nounits"]
TIMEOUT = 60.0  # seconds: the first call may start the driver


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU as a container sees it."""

    name: str
    capability: str
    """``12.0``."""
    driver: str
    memory: int
    """MiB."""


def has_runtime() -> bool:
    """Whether the engine has NVIDIA's runtime.  Raises ``WorldError`` where it does not answer."""
    return "nvidia" in docker.engine().runtimes


def has_cdi() -> bool:
    """Whether the engine's CDI directories describe GPUs of NVIDIA's.

    ``docker info`` names the directories where CDI is enabled (docs.docker.com, "Container Device
    Interface"); nvidia-ctk writes ``nvidia.yaml`` there.  Raises ``WorldError`` where the engine
    does not answer.
    """
    folders = docker.engine().cdi
    return any(any(folder.glob("nvidia*")) for folder in folders)


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
    """The GPUs in the output of ``COMMAND``.  Raises ``UntriedError`` for any other text."""
    try:
        rows = [[cell.strip() for cell in row.split(",")] for row in table.splitlines() if row]
        return tuple(Gpu(name, cap, driver, int(memory)) for name, cap, driver, memory in rows)
    except ValueError as error:
        raise UntriedError(
            "the output of nvidia-smi has an unknown format", table.strip()
        ) from error
