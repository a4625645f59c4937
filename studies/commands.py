"""The CPU time of commands that only read and print, as rows of studies/measurements.md.

    .venv/bin/python studies/commands.py [--recipes N] [--presets N] [--runs N] [--json]

They run on the farm itself, and on one with copies of its recipes and presets under other names.
The user time and the system time of the command and of the docker client are measured, since the
wall time depends on what else runs; the least of the runs counts.  All modules are compiled
already, in a folder of their own: PYTHONDONTWRITEBYTECODE would have each run compile them again.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
COMMANDS = (
    "list",
    "list --presets",
    "choose --card 5090",
    "show hello-sm120-0.1.0",
    "show qwen3.6-27b-dflash@5090-laptop",
)
TAGS = re.compile(r"(?m)^tags .*$")
MOVING = re.compile(r"(?m)^(moving|channel) .*\n")
VERSION = re.compile(r'(?m)^version *= "[^"]+"')


def farm_of(folder: Path, recipes: int, presets: int) -> None:
    """A farm like this one with ``recipes`` and ``presets`` more."""
    for name in ("recipes", "presets", "cards", "patches", "engines", "trials", "dockerfiles"):
        shutil.copytree(REPOSITORY / name, folder / name)
    files = sorted((REPOSITORY / "recipes").glob("*.toml"))
    known = [file for file in files if "extends" not in tomllib.loads(file.read_text("utf-8"))]
    for number in range(recipes):
        text = known[number % len(known)].read_text("utf-8")
        text = MOVING.sub("", TAGS.sub(f'tags = ["copy-{number}"]', text))
        named = tomllib.loads(text)
        version = f"{named['version']}.{number}"
        text = VERSION.sub(f'version = "{version}"', text, count=1)
        (folder / "recipes" / f"{named['engine']}-{version}.toml").write_text(text, "utf-8")
    # A preset that names a faster one would name none of the copies.
    files = sorted((REPOSITORY / "presets").glob("*.toml"))
    plain = [file for file in files if "loses_to" not in file.read_text("utf-8")]
    for number in range(presets):
        file = plain[number % len(plain)]
        shutil.copyfile(file, folder / "presets" / f"{number}-{file.name}")


def cpu_seconds(command: str, catalog: Path, compiled: str) -> float:
    """The CPU time of a command whose compiled modules are in ``compiled``; seconds."""
    words = [sys.executable, "-m", "builder", *command.split(), f"--catalog={catalog}"]
    own = {**os.environ, "PYTHONPYCACHEPREFIX": compiled, "PYTHONDONTWRITEBYTECODE": ""}
    with subprocess.Popen(words, cwd=REPOSITORY, env=own, stdout=subprocess.DEVNULL) as process:
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0:
        raise SystemExit(f"builder {command} ends with {process.returncode}")
    return used.ru_utime + used.ru_stime


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--recipes", type=int, default=975)
    parser.add_argument("--presets", type=int, default=0)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as compiled:
        for command in COMMANDS:
            cpu_seconds(command, REPOSITORY, compiled)
        farm_of(Path(folder), given.recipes, given.presets)
        found = {
            command: [
                round(min(cpu_seconds(command, catalog, compiled) for _ in range(given.runs)), 2)
                for catalog in (REPOSITORY, Path(folder))
            ]
            for command in COMMANDS
        }
    if given.json:
        print(json.dumps(found))
        return
    for command, (own, large) in found.items():
        print(f"| `{command}`: CPU time; with {given.recipes} recipes more | {own} s; {large} s |")


if __name__ == "__main__":
    main()
