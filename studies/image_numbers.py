"""The time and the memory of the check ``numbers``, as rows of studies/measurements.md.

    ./farm build llama-cpp-python
    .venv/bin/python studies/image_numbers.py [RECIPE] [--card CARD] [--json]

Seconds: of the cases of test-backend-ops, and of the server's numbers, each with the start of its
containers.  Memory: the most of the processes of all containers during all checks, without files
(RssAnon).
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from fit import watched

REPOSITORY = Path(__file__).resolve().parents[1]
COVERAGE = "coverage"


def smoked(target: str, card: str | None) -> tuple[dict[str, Any], int]:
    """The verdict of ``smoke`` on a recipe or an image, and the memory of its containers in MiB."""
    command = [sys.executable, "-m", "builder", "smoke", target, "--no-gpu", "--json"]
    command += ["--card", card] if card else []
    with watched() as seen:
        run = subprocess.run(command, cwd=REPOSITORY, stdout=subprocess.PIPE, check=False)
    if not run.stdout:
        sys.exit(run.returncode)  # it has printed the reason
    verdict: dict[str, Any] = json.loads(run.stdout)["verdict"]
    return verdict, max(seen) // 1024


def measure(recipe: str, card: str | None) -> dict[str, Any]:
    """One run of the smoke test."""
    verdict, memory = smoked(recipe, card)
    checks = [each for each in verdict["checks"] if each["kind"] == "numbers"]
    ends = [index for index, each in enumerate(checks, 1) if each["subject"] == COVERAGE]
    of_cases = ends[0] if ends else 0
    return {
        "recipe": recipe,
        "seconds": round(sum(each["seconds"] for each in checks[:of_cases]), 1),
        "coverage": checks[of_cases - 1]["found"] if ends else "no cases",
        "server_seconds": round(sum(each["seconds"] for each in checks[of_cases:]), 1),
        "failed": [each["subject"] for each in checks if each["state"] == "failed"],
        "containers_mib": memory,
    }


def main() -> None:
    """Print the rows, or JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("recipe", nargs="?", default="llama-cpp-python")
    parser.add_argument("--card")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    found = measure(options.recipe, options.card)
    if options.json:
        print(json.dumps(found, indent=2))
        return
    print(f"| the numbers of {found['recipe']}: {found['coverage']} | {found['seconds']:.0f} s |")
    print(f"| its server's numbers: seconds | {found['server_seconds']:.0f} s |")
    print(f"| the same: memory of its containers | {found['containers_mib']} MiB |")


if __name__ == "__main__":
    main()
