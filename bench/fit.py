"""The time and the memory of ``builder fit``, as rows of docs/measurements.md.

    ./farm build llama-cpp-python && .venv/bin/python bench/fit.py [RECIPE|IMAGE] [--json]

A dense 27B in 4 bits, with real shapes and a hole for its weights, at four contexts on a card with
24 GB.  Seconds: from the start of the command to its verdict, without the search.  Memory: the most
of the command, with its children, and of each container without the page cache (cgroup v2).
"""

from __future__ import annotations

import argparse
import importlib
import json
import re
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from threading import Event, Thread
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[1]
CONTEXTS = "32K,64K,128K,262K"
MIB = 1 << 20


def containers() -> int:
    """Bytes of anonymous memory of all containers that builder runs now."""
    command = ["docker", "ps", "--quiet", "--filter=label=builder.owner", "--no-trunc"]
    listed = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
    groups = [group for each in listed for group in Path("/sys/fs/cgroup").rglob(f"*{each}*")]
    total = 0
    for group in groups:
        try:
            text = (group / "memory.stat").read_text()
        except OSError:
            continue  # it has ended
        found = re.search(r"^anon (\d+)$", text, re.M)
        total += int(found[1]) if found else 0
    return total


def watched(most: list[int], done: Event) -> None:
    """Keep the most memory of containers until ``done``."""
    while not done.wait(1.0):
        most.append(containers())


def measure(target: str, model: Path, card: str) -> dict[str, Any]:
    """One run of the command."""
    most, done = [0], Event()
    watcher = Thread(target=watched, args=(most, done))
    watcher.start()
    command = [sys.executable, "-m", "builder", "fit", target, "--model", str(model)]
    command += ["--card", card, "--context", CONTEXTS, "--no-search", "--json"]
    started = time.monotonic()
    try:
        run = subprocess.run(command, cwd=REPOSITORY, stdout=subprocess.PIPE, check=False)
    finally:
        seconds = time.monotonic() - started
        done.set()
        watcher.join()
    found = json.loads(run.stdout)
    return {
        "target": target,
        "seconds": round(seconds, 1),
        "fits": {trial["context"]: trial["fits"] for trial in found["trials"]},
        "command_mib": resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss // 1024,
        "containers_mib": max(most) // MIB,
    }


def main() -> None:
    """Print the rows, or JSON."""
    sys.path.insert(0, str(REPOSITORY / "tests"))
    models = importlib.import_module("support.models")  # the shapes are those of the tests
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("target", nargs="?", default="llama-cpp-python")
    parser.add_argument("--card", default="5090-laptop")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        model = models.write(models.DENSE_27B, Path(folder) / "dense-27b.gguf")
        found = measure(options.target, model, options.card)
    if options.json:
        print(json.dumps(found, indent=2))
        return
    memory = f"{found['command_mib']} MiB, {found['containers_mib']} MiB"
    print(f"| `fit` of a 27B at four contexts: seconds | {found['seconds']:.0f} s |")
    print(f"| the same: memory of the command, of its containers | {memory} |")


if __name__ == "__main__":
    main()
