"""The cost of the watch: lane instructions per second with and without it, in one run.

    ./farm ptx llama-cpp-0.5.0-dev --output DIRECTORY
    .venv/bin/python studies/watch.py DIRECTORY [--runs 5]

The kernels are the same as in studies/mutants.py.  Seconds are the processor's; each figure is the
best of some runs, which take turns.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np
from mutants import Case, recorded

from ptxlab.build import build
from ptxlab.interpreter import Library, PtxFaultError

WAYS: dict[str, dict[str, Any]] = {
    "without": {},
    "races": {"races": 1},
    "races and uninitialized": {"races": 1, "uninitialized": 1},
}


def seconds(library: Library, case: Case, options: dict[str, Any]) -> tuple[int, float]:
    """Lane instructions of a case, and its seconds; a finding does not end the kernel."""
    arguments = [a.copy() if isinstance(a, np.ndarray) else a for a in case.arguments]
    module = library.load(case.text)
    try:
        run = module.run(case.kernel, arguments, threads=1, **case.options, **options)
    except PtxFaultError as found:
        return found.result.lane_instructions, found.result.cpu_seconds
    return run.lane_instructions, run.cpu_seconds


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--library", type=Path)
    given = parser.parse_args()
    library = Library(given.library or build() / "libptx.so")
    print(f"| | lane instructions | {' | '.join(f'{way}, 1e6/s' for way in WAYS)} | times |")
    print(f"|---|---:|{'---:|' * len(WAYS)}---:|")
    total, count = dict.fromkeys(WAYS, 0.0), 0
    for case in recorded(library, given.folder):
        best = dict.fromkeys(WAYS, float("inf"))
        lanes = 0
        for _ in range(given.runs):
            for way, options in WAYS.items():
                lanes, took = seconds(library, case, options)
                best[way] = min(best[way], took)
        rates = " | ".join(f"{lanes / best[way] / 1e6:.0f}" for way in WAYS)
        ratio = best["races"] / best["without"]
        print(f"| {case.name} | {lanes:,} | {rates} | {ratio:.1f} |", flush=True)
        count += lanes
        total = {way: total[way] + best[way] for way in WAYS}
    rates = " | ".join(f"{count / total[way] / 1e6:.0f}" for way in WAYS)
    print(f"| all | {count:,} | {rates} | {total['races'] / total['without']:.1f} |")


if __name__ == "__main__":
    main()
