"""The cost of a smoke test, as rows of studies/measurements.md.

    ./farm build hello-sm120 && .venv/bin/python studies/smoke.py [IMAGE...] [--json]

Static: the checks that read the layers, over a bare ``docker image save`` of the same image to
/dev/null, and the peak memory of their process.  Verdict: all checks without a GPU, including the
server's, by the recipe in the image's label.  Device: the checks on a simulated card, over all
other checks; and of the functions of CUDA that the simulator implements, those that were called.
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
from typing import Any

from builder.checks.check import check_layers, run_programs
from builder.checks.subject import Subject
from builder.docker import engine as docker

REPOSITORY = Path(__file__).resolve().parents[1]


def save(image: str) -> float:
    """Seconds of a bare ``docker image save``."""
    started = time.monotonic()
    command = [docker.executable(), "image", "save", image]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return time.monotonic() - started


def peak() -> float:
    """Peak memory of this process in MiB (proc(5), status, VmHWM)."""
    found = re.search(r"VmHWM:\s*(\d+) kB", Path("/proc/self/status").read_text("utf-8"))
    return int(found[1]) / 1024 if found else 0.0


def static_checks(image: str) -> dict[str, float]:
    """The static checks of an image, in this process."""
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        verdict = run_programs(check_layers(Subject(image, ""), Path(folder)))
    return {
        "seconds": time.monotonic() - started,
        "peak_mib": peak(),
        "unpacked": verdict.unpacked_size,
    }


def measure(image: str, catalog: Path) -> dict[str, Any]:
    """All figures of one image; the static checks run in their own process, for its memory."""
    alone = save(image)
    done = subprocess.run(
        [sys.executable, __file__, "--static", image], check=True, stdout=subprocess.PIPE
    )
    static = json.loads(done.stdout)
    started = time.monotonic()
    command = [sys.executable, "-m", "builder", "smoke", image, "--no-gpu", "--json"]
    command.append(f"--catalog={catalog}")
    smoked = subprocess.run(command, cwd=REPOSITORY, check=False, stdout=subprocess.PIPE)
    verdict = json.loads(smoked.stdout)["verdict"]
    checks, use = verdict["checks"], verdict["device"] or {"called": {}, "implemented": 0}
    device = sum(check["seconds"] for check in checks if check["kind"] == "device")
    others = sum(check["seconds"] for check in checks) - device
    return {
        "image": image,
        "unpacked_mb": round(static["unpacked"] / 1e6),
        "save_s": round(alone, 1),
        "static_s": round(static["seconds"], 1),
        "static_over_save": round(static["seconds"] / alone, 2),
        "peak_mib": round(static["peak_mib"]),
        "verdict_s": round(time.monotonic() - started, 1),
        "checks": len(checks),
        "device_s": round(device, 1),
        "device_over_others": round(device / others, 2),
        "functions_called": len(use["called"]),
        "functions_implemented": use["implemented"],
        "failed": sum(check["state"] in {"failed", "untried"} for check in checks),
    }


def rows(figures: dict[str, Any]) -> dict[str, str]:
    """The figures by the rows of studies/measurements.md that they belong to."""
    name = f"{figures['image']} ({figures['unpacked_mb']} MB)"
    static = f"{figures['static_s']} s; {figures['static_over_save']}; {figures['peak_mib']} MiB"
    return {
        f"static checks of {name}: seconds; over a bare `docker image save`; memory": static,
        f"all checks of {name} without a GPU": f"{figures['verdict_s']} s",
        f"checks of {name} on a simulated card; over all others": f"{figures['device_s']} s; "
        f"{figures['device_over_others']}",
        f"CUDA functions that {name} called; simulated": f"{figures['functions_called']}; "
        f"{figures['functions_implemented']}",
    }


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("images", nargs="*", default=["hello-sm120:0.1.0"])
    parser.add_argument("--catalog", type=Path, default=REPOSITORY)
    parser.add_argument("--json", action="store_true", help="print all figures")
    parser.add_argument("--static", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.static:
        print(json.dumps(static_checks(options.images[0])))
        return
    figures = [measure(image, options.catalog) for image in options.images]
    if options.json:
        print(json.dumps(figures, indent=2))
        return
    for found in figures:
        for row, figure in rows(found).items():
            print(f"| {row} | {figure} |")


if __name__ == "__main__":
    main()
