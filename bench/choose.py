"""The CPU time of ``builder choose`` over many presets, as a row of docs/measurements.md.

    .venv/bin/python bench/choose.py [--presets N] [--runs N] [--json]

The farm's presets are copied, under other names, into a farm of their own.  The user time and the
system time of one process are measured, since its wall time depends on what else runs.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]


def farm_of(folder: Path, count: int) -> None:
    """A farm with the recipes and cards of this one, and ``count`` copies of its presets."""
    for name in ("recipes", "cards", "patches", "engines"):
        shutil.copytree(REPOSITORY / name, folder / name)
    (folder / "presets").mkdir()
    # A preset that names a faster one would name none of the copies.
    known = [
        file
        for file in sorted((REPOSITORY / "presets").glob("*.toml"))
        if "loses_to" not in file.read_text()
    ]
    for number in range(count):
        file = known[number % len(known)]
        shutil.copyfile(file, folder / "presets" / f"{number}-{file.name}")


def cpu_seconds(folder: Path) -> float:
    """The CPU time of one ``builder choose``; seconds."""
    command = [sys.executable, "-m", "builder", "choose", "--card=5090", "--json"]
    with subprocess.Popen(
        [*command, f"--catalog={folder}"], cwd=REPOSITORY, stdout=subprocess.DEVNULL
    ) as process:
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0:
        raise SystemExit(f"builder choose ends with {process.returncode}")
    return used.ru_utime + used.ru_stime


def main() -> None:
    """Print the figure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--presets", type=int, default=100)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        farm_of(Path(folder), given.presets)
        cpu_seconds(Path(folder))  # compiles the modules
        seconds = min(cpu_seconds(Path(folder)) for _ in range(given.runs))
    if given.json:
        print(json.dumps({"presets": given.presets, "cpu_seconds": round(seconds, 2)}))
    else:
        print(f"| `choose` over {given.presets} presets | {seconds:.2f} s of CPU time |")


if __name__ == "__main__":
    main()
