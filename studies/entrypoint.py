"""The cost of the entrypoint at an engine's start, as rows of studies/measurements.md.

    .venv/bin/python studies/entrypoint.py [--runs N] [--json]

The engine is /bin/true; the driver is a library that answers at once, so that NVIDIA's own time is
not counted.  Each figure is a median.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
ENGINE = "/bin/true"


def compiled(folder: Path) -> None:
    """The programs, with ``folder`` for ``/``, and the driver's library in ``folder``/lib."""
    sources = REPOSITORY / "dockerfiles" / "entrypoint"
    make = ["make", "-s", "-C", str(sources), f"OUT={folder}", f"ROOT={folder}"]
    subprocess.run(make, check=True)
    (folder / "opt/builder").mkdir(parents=True)
    shutil.move(folder / "probe", folder / "opt/builder/probe")
    (folder / "opt/builder/needs").write_text("recipe x-1\ncode sm_120a\ncuda 13.0\ndriver 580\n")
    (folder / "lib").mkdir()
    driver = REPOSITORY / "tests/data/driver/libcuda.c"
    library = folder / "lib/libcuda.so.1"
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", str(library), str(driver)], check=True)


def median(command: Sequence[str | Path], env: Mapping[str, str], runs: int) -> float:
    """Milliseconds of a command that succeeds."""
    found = []
    for _ in range(runs):
        started = time.perf_counter()
        subprocess.run(command, env={**os.environ, **env}, check=True)
        found.append(1000 * (time.perf_counter() - started))
    return statistics.median(found)


def measure(runs: int) -> dict[str, float]:
    """Milliseconds of the engine alone, behind the entrypoint on a card, and on the CPU."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        compiled(folder)
        start: list[str | Path] = [folder / "entrypoint", ENGINE, "--"]
        card = {"LD_LIBRARY_PATH": str(folder / "lib"), "DRIVER_CARDS": "12.0:33680457728:card"}
        return {
            "alone": median([ENGINE], {}, runs),
            "card": median(start, card, runs),
            "cpu": median(start, {"BUILDER_CPU": "1"}, runs),
            "bytes": (folder / "entrypoint").stat().st_size,
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    found = measure(options.runs)
    if options.json:
        print(json.dumps(found))
        return
    for name, place in (("card", "with a card"), ("cpu", "with BUILDER_CPU=1")):
        more, ratio = found[name] - found["alone"], found[name] / found["alone"]
        print(f"| the entrypoint before the engine {place}; over /bin/true alone | ", end="")
        print(f"{more:.1f} ms; {ratio:.1f} |")


if __name__ == "__main__":
    main()
