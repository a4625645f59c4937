"""The time and the memory of ``builder fit``, as rows of studies/measurements.md.

    ./farm build llama-cpp-python
    .venv/bin/python studies/fit.py [RECIPE|IMAGE] [--card CARD] [--json] [-- OPTION...]

A dense 27B in 4 bits, with real shapes and a hole for its weights, at four contexts on a card with
24 GB.  Seconds: from the start of the command to its verdict, without the search.  Memory: the most
of the command, and of the processes of all containers, without files (RssAnon).
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Event, Thread
from typing import Any

from builder.core.errors import FitError
from builder.presets import made_models

REPOSITORY = Path(__file__).resolve().parents[1]
DEFAULT = (
    "--logits_all",
    "false",
    "--flash_attn",
    "true",
)  # else llama-cpp-python keeps all logits
CONTEXTS = "32K,64K,128K,262K"


def containers() -> int:
    """KiB of anonymous memory of the processes of all containers that builder runs now."""
    listed = docker("ps", "--quiet", "--filter=label=builder.owner")
    first = docker("inspect", "--format={{.State.Pid}}", *listed) if listed else []
    found = {pid: status for pid, status in processes() if status.get("PPid")}
    total, waiting = 0, first
    while waiting:
        pid = waiting.pop()
        total += int(found.get(pid, {}).get("RssAnon", "0").split()[0])
        waiting += [child for child, status in found.items() if status["PPid"] == pid]
    return total


def docker(*arguments: str) -> list[str]:
    """The words of a command's output; none where a container has ended meanwhile."""
    done = subprocess.run(["docker", *arguments], capture_output=True, text=True, check=False)
    return done.stdout.split()


def processes() -> Iterator[tuple[str, dict[str, str]]]:
    """All processes with their figures (proc(5), status)."""
    for file in Path("/proc").glob("[0-9]*/status"):
        with suppress(OSError):  # it has ended
            lines = (line.partition(":") for line in file.read_text().splitlines())
            yield file.parent.name, {name: value.strip() for name, _, value in lines}


@contextmanager
def watched() -> Iterator[list[int]]:
    """The KiB that ``containers`` had every second of the block; the first is 0."""
    seen, done = [0], Event()

    def watch() -> None:
        while not done.wait(1.0):
            seen.append(containers())

    watcher = Thread(target=watch)
    watcher.start()
    try:
        yield seen
    finally:
        done.set()
        watcher.join()


def verdict(
    target: str, model: Path, card: str, contexts: str, options: Sequence[str]
) -> dict[str, Any]:
    """What ``builder fit --json`` prints; where it fails, this script ends with its exit code."""
    command = [sys.executable, "-m", "builder", "fit", target, "--model", str(model)]
    command += ["--card", card, "--context", contexts, "--no-search", "--json", "--", *options]
    run = subprocess.run(command, cwd=REPOSITORY, stdout=subprocess.PIPE, check=False)
    if run.returncode not in {0, FitError.exit_code}:
        sys.exit(run.returncode)  # it has printed the reason
    found: dict[str, Any] = json.loads(run.stdout)
    return found


def measure(target: str, model: Path, card: str, options: Sequence[str]) -> dict[str, Any]:
    """One run of the command."""
    with watched() as seen:
        started = time.monotonic()
        found = verdict(target, model, card, CONTEXTS, options)
        seconds = time.monotonic() - started
    return {
        "target": target,
        "seconds": round(seconds, 1),
        "fits": {trial["context"]: trial["fits"] for trial in found["trials"]},
        "command_mib": resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss // 1024,
        "containers_mib": max(seen) // 1024,
    }


def split(words: list[str]) -> tuple[list[str], list[str]]:
    """The words before --, and those after it."""
    place = words.index("--") if "--" in words else len(words)
    return words[:place], words[place + 1 :]


def main() -> None:
    """Print the rows, or JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("target", nargs="?", default="llama-cpp-python")
    parser.add_argument("--card", default="5090-laptop")
    parser.add_argument("--json", action="store_true")
    ours, theirs = split(sys.argv[1:])
    options = parser.parse_args(ours)
    with tempfile.TemporaryDirectory() as folder:
        model = made_models.write_shape("qwen3.6-27b", Path(folder) / "qwen3.6-27b.gguf")
        found = measure(options.target, model, options.card, theirs or DEFAULT)
    if options.json:
        print(json.dumps(found, indent=2))
        return
    memory = f"{found['command_mib']} MiB, {found['containers_mib']} MiB"
    print(f"| `fit` of a 27B at four contexts: seconds | {found['seconds']:.0f} s |")
    print(f"| the same: memory of the command, of its containers | {memory} |")


if __name__ == "__main__":
    main()
