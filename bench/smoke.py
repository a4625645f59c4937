"""The cost of a smoke test: seconds and memory, as ratios of one run.

    ./farm build hello-sm120 && .venv/bin/python bench/smoke.py [IMAGE...] [--json]

Static: everything that is read from the layers, over a bare ``docker image save`` of the same
image into nothing; peak memory of the process that does it.  Verdict: all checks without a GPU,
the server's among them, by the recipe that the image's label names.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from builder import smoke
from builder.tools.docker import engine as docker

REPOSITORY = Path(__file__).resolve().parents[1]


def save(image: str) -> float:
    """Seconds of a bare ``docker image save``."""
    started = time.monotonic()
    command = [docker.executable(), "image", "save", image]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return time.monotonic() - started


def peak() -> float:
    """MiB that this process has had at most (proc(5), status, VmHWM)."""
    found = re.search(r"VmHWM:\s*(\d+) kB", Path("/proc/self/status").read_text("utf-8"))
    return int(found[1]) / 1024 if found else 0.0


def static(image: str) -> dict[str, float]:
    """The static checks of an image, in this process."""
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        verdict = smoke.check_image(smoke.Subject(image, ""), Path(folder))
    return {
        "seconds": time.monotonic() - started,
        "peak_mib": peak(),
        "unpacked": verdict.unpacked_size,
    }


def measure(image: str) -> dict[str, object]:
    """All figures of one image; the static checks in a process of their own, for its memory."""
    alone = save(image)
    done = subprocess.run(
        [sys.executable, __file__, "--static", image], check=True, stdout=subprocess.PIPE
    )
    static = json.loads(done.stdout)
    started = time.monotonic()
    command = [sys.executable, "-m", "builder", "smoke", image, "--no-gpu", "--json"]
    whole = subprocess.run(command, cwd=REPOSITORY, check=False, stdout=subprocess.PIPE)
    checks = json.loads(whole.stdout)["verdict"]["checks"]
    return {
        "image": image,
        "unpacked_mb": round(static["unpacked"] / 1e6),
        "save_s": round(alone, 1),
        "static_s": round(static["seconds"], 1),
        "static_over_save": round(static["seconds"] / alone, 2),
        "peak_mib": round(static["peak_mib"]),
        "verdict_s": round(time.monotonic() - started, 1),
        "checks": len(checks),
        "failed": sum(check["passed"] is not True for check in checks),
    }


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("images", nargs="*", default=["hello-sm120:0.1.0"])
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--static", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.static:
        print(json.dumps(static(options.images[0])))
        return
    rows = [measure(image) for image in options.images]
    if options.json:
        print(json.dumps(rows, indent=2))
        return
    for row in rows:
        print("  ".join(f"{name} {value}" for name, value in row.items()))


if __name__ == "__main__":
    main()
