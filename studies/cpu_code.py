"""The speed of ggml's CPU code by generation of CPUs, as rows of studies/measurements.md.

    ./farm build llama-cpp-0.5.0-dev
    .venv/bin/python studies/cpu_code.py IMAGE [--program FILE] [--runs 3] [--json]

IMAGE has CPU code by generation ([llama] cpu_variants).  The products of 4096 x 14336 weights with
one column and with 512 are cases of the tree's test-backend-ops, which the farm keeps of the check
numbers; the program computes with half of the machine's threads.  The code that ggml takes on this
machine is compared with the code for AVX2 (haswell): each alone in a container, in turns, the best
of all runs.  Products are as for experts in host memory (--n-cpu-moe): weights are not repacked.
"""

from __future__ import annotations

import argparse
import json
import re
import sqlite3
import subprocess
import sys
from pathlib import Path

from builder.core.settings import load as load_settings

FOLDER = "/opt/engine/bin"
PROGRAM = f"{FOLDER}/test-backend-ops"
AVX2 = "libggml-cpu-haswell.so"
TYPES = ("bf16", "iq4_xs", "q4_0", "q8_0", "q6_K", "q4_K", "mxfp4")
COLUMNS = (1, 512)
CASES = f"type_a=({'|'.join(TYPES)}),type_b=f32,m=4096,n=({'|'.join(map(str, COLUMNS))}),k=14336,"
TAKEN = re.compile(r"loaded CPU backend from \S*/(\S+)")
Speeds = dict[tuple[str, int], float]
"""Runs in a second, by the type of the weights and the columns."""


def docker(*words: str) -> str:
    """What a command of docker prints, with standard error; ends the study where it fails."""
    done = subprocess.run(
        ["docker", *words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    if done.returncode:
        sys.exit(f"docker {words[0]} ended with {done.returncode}:\n{done.stdout[-2000:]}")
    return done.stdout


def kept_program(image: str) -> Path:
    """The test-backend-ops that the farm compiled for the image."""
    label = '--format={{index .Config.Labels "builder.key"}}'
    key = docker("image", "inspect", label, image).strip()
    folder = load_settings().cache_dir / "numbers"
    found = sorted(folder.glob(f"{key[:12]}-*"))
    if not key or not found:
        sys.exit(f"no test-backend-ops of {image} in {folder}: name one with --program")
    return found[-1]


def run(image: str, program: Path, hidden: list[str], *arguments: str) -> str:
    """One run of the program beside the image's libraries, without the hidden ones."""
    mounts = [f"--volume=/dev/null:{FOLDER}/{name}:ro" for name in hidden]
    mounts.append(f"--volume={program.absolute()}:{PROGRAM}:ro")
    words = ["--network=none", f"--entrypoint={PROGRAM}", image, *arguments]
    return docker("run", "--rm", *mounts, *words)


def speeds(text: str) -> Speeds:
    """The table that the program prints as SQL; its CSV has no times."""
    table = sqlite3.connect(":memory:")
    table.executescript(text[text.index("CREATE TABLE") :])
    found: Speeds = {}
    rows = table.execute("SELECT op_params, time_us FROM test_backend_ops")
    for parameters, microseconds in rows:
        values = dict(part.split("=", 1) for part in re.findall(r"\w+=\w+", parameters))
        found[values["type_a"], int(values["n"])] = 1e6 / float(microseconds)
    return found


def measure(image: str, program: Path, runs: int) -> tuple[str, Speeds, Speeds]:
    """The code that this machine takes, its best speeds, and the speeds of AVX2."""
    listed = docker("run", "--rm", "--entrypoint=ls", image, FOLDER).split()
    variants = [name for name in listed if re.fullmatch(r"libggml-cpu-\S+\.so", name)]
    found = TAKEN.search(run(image, program, [], "support", "-b", "CPU", "-o", "ABS"))
    if found is None or AVX2 not in variants:
        sys.exit(f"{image} has no CPU code by generation: {', '.join(variants) or 'no variants'}")
    best: dict[str, Speeds] = {found[1]: {}, AVX2: {}}
    for number in range(runs):
        for name, kept in best.items():
            hidden = [each for each in variants if each != name]
            words = ("perf", "-b", "CPU", "-o", "MUL_MAT", "-p", CASES, "--output", "sql")
            for case, speed in speeds(run(image, program, hidden, *words)).items():
                kept[case] = max(speed, kept.get(case, 0))
            print(f"run {number + 1} of {runs}: {name}", file=sys.stderr)
    return found[1], best[found[1]], best[AVX2]


def main() -> None:
    """Print the table, or JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("image")
    parser.add_argument("--program", type=Path, help="test-backend-ops of the image's tree")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    program = options.program or kept_program(options.image)
    taken, ours, avx2 = measure(options.image, program, options.runs)
    ratios = {f"{name} {n}": ours[name, n] / avx2[name, n] for name, n in ours}
    if options.json:
        print(json.dumps({"taken": taken, "over": AVX2, "ratios": ratios}, indent=2))
        return
    print(f"| {taken} over {AVX2} | {' | '.join(f'{n} columns' for n in COLUMNS)} |")
    print("|---|" + "---|" * len(COLUMNS))
    for name in TYPES:
        cells = (f"{ratios[f'{name} {n}']:.2f}" for n in COLUMNS if f"{name} {n}" in ratios)
        print(f"| {name} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
