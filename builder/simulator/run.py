"""One run of an image on simulated cards: what its container gets, and the report that it writes.

The libraries come first on LD_LIBRARY_PATH.  Files with DT_RPATH look there first (ld.so(8)), so
for images that have such files the libraries are loaded into every program (LD_PRELOAD).  One
library always is: it keeps programs from reading whole model files ahead.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from builder.servers.server import Mounts
from builder.simulator import report
from builder.simulator.report import Report

LIBRARIES, CONFIGURATION, REPORTS = "/simulator/lib", "/simulator/config", "/simulator/report"
VARIABLE = "BUILDER_SIMULATOR"
RUNTIME = "libcudart.so.13"
"""The library without which there is nothing to simulate: that of the base's CUDA."""
PAGES = "libpages.so"
STAND_INS = (RUNTIME, "libcublas.so.13", "libcublasLt.so.13", "libcuda.so.1")


@dataclass(frozen=True, slots=True)
class Simulation:
    """What a container gets to run on simulated cards, and where its processes report.

    A simulation is good for one container: ``reports`` has the reports of one.
    """

    mounts: Mounts
    reports: Path

    def report(self) -> Report | None:
        """All processes' reports as they are now; raises ``UntriedError``."""
        return report.read(self.reports)

    def settled(self) -> Report | None:
        """All processes' reports, with all that happened until now; raises ``UntriedError``."""
        return report.settled(self.reports)


def prepare(
    libraries: Path,
    files: Mapping[str, str],
    work: Path,
    *,
    search_path: str = "",
    preload: bool = False,
) -> Simulation:
    """Write the configuration, ``files`` by name (``config.files``), below the directory ``work``.

    ``libraries`` are those of ``build.libraries``; ``search_path`` is the image's own
    LD_LIBRARY_PATH.
    """
    configuration, reports = work / "config", work / "report"
    configuration.mkdir(parents=True)
    configuration.chmod(0o755)  # the image's own user reads it
    for name, text in files.items():
        (configuration / name).write_text(text, "utf-8")
        (configuration / name).chmod(0o644)
    reports.mkdir()
    reports.chmod(0o777)  # the image's own user writes there
    preloaded = (PAGES, *(STAND_INS if preload else ()))
    env = {
        VARIABLE: CONFIGURATION,
        "LD_LIBRARY_PATH": ":".join(filter(None, (LIBRARIES, search_path))),
        "LD_PRELOAD": ":".join(f"{LIBRARIES}/{name}" for name in preloaded),
    }
    volumes = {LIBRARIES: libraries, CONFIGURATION: configuration}
    return Simulation(Mounts(volumes, {REPORTS: reports}, env), reports)
