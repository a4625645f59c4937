"""One run of an image on simulated cards: the files and settings of its container, and its report.

The libraries come first on LD_LIBRARY_PATH.  Files with DT_RPATH look there first (ld.so(8)), so
for images that have such files the libraries are loaded into every program (LD_PRELOAD).  One
library always is: it keeps programs from reading whole model files ahead.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from builder.checks.server import Mounts
from builder.core.errors import UntriedError
from simulator import report
from simulator.errors import SimulatorError
from simulator.receiver import Receiver, receiving
from simulator.report import Report

LIBRARIES, CONFIGURATION, SOCKET = "/simulator/lib", "/simulator/config", "/simulator/report"
PTX = "/simulator/ptx"
SETTLE = 0.5  # seconds until a report is complete: twice the pause of its thread
VARIABLE = "BUILDER_SIMULATOR"
RUNTIME = "libcudart.so.13"
"""The library without which there is nothing to simulate: the base's CUDA runtime."""
PAGES = "libpages.so"
_OF_CUDA = ("libcudart", "libcublas", "libcublasLt")
STAND_INS = (*(f"{name}.so.{major}" for major in (13, 12) for name in _OF_CUDA), "libcuda.so.1")


@dataclass(frozen=True, slots=True)
class Simulation:
    """The files and settings by which a container runs on simulated cards, and its reports.

    A simulation is good for one container: ``receiver`` has the reports of one.
    """

    mounts: Mounts
    receiver: Receiver

    def report(self) -> Report | None:
        """All processes' reports as they are now; raises ``UntriedError``."""
        try:
            return report.read(self.receiver.messages())
        except SimulatorError as error:
            raise UntriedError(*error.args) from error

    def settled(self) -> Report | None:
        """All processes' reports, with all that happened until now; raises ``UntriedError``."""
        time.sleep(SETTLE)
        return self.report()


@contextmanager
def simulation(
    libraries: Path,
    files: Mapping[str, str],
    work: Path,
    *,
    search_path: str = "",
    preload: bool = False,
    ptx: Path | None = None,
) -> Iterator[Simulation]:
    """Write the configuration, ``files`` by name (``config.files``), below the directory ``work``,
    and receive reports.

    ``libraries`` come from ``build.libraries``; ``search_path`` is the image's own
    LD_LIBRARY_PATH; ``ptx`` is a directory that the container has as ``PTX``.
    """
    configuration = work / "config"
    configuration.mkdir(parents=True)
    configuration.chmod(0o755)  # the image's own user reads it
    for name, text in files.items():
        (configuration / name).write_text(text, "utf-8")
        (configuration / name).chmod(0o644)
    preloaded = (PAGES, *(STAND_INS if preload else ()))
    env = {
        VARIABLE: CONFIGURATION,
        "LD_LIBRARY_PATH": ":".join(filter(None, (LIBRARIES, search_path))),
        "LD_PRELOAD": ":".join(f"{LIBRARIES}/{name}" for name in preloaded),
    }
    volumes = {LIBRARIES: libraries, CONFIGURATION: configuration, SOCKET: work / "report"}
    if ptx is not None:
        volumes[PTX] = ptx
    with receiving(work, "report") as receiver:
        yield Simulation(Mounts(volumes, env), receiver)
