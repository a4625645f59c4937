"""Restore or save a cache, as actions/cache does: by key, then by prefixes, the newest first.

https://github.com/actions/cache, "Inputs" and "Cache key matching"
"""

import os
import subprocess
import sys
import time
from pathlib import Path

KEPT = Path(os.environ["STAND_INS"]) / "caches"


def log(line: str) -> None:
    sys.stdout.write(f"{line}\n")


def lines(name: str) -> list[str]:
    return [line for line in os.environ.get(name, "").splitlines() if line]


def found(key: str, prefixes: list[str]) -> Path | None:
    """The folder of the newest cache of that key, or of the first prefix that some key has."""
    newest_first = sorted(KEPT.glob("*/key"), reverse=True)
    keys = {file.parent: file.read_text() for file in newest_first}
    for matches in (key.__eq__, *(lambda each, p=p: each.startswith(p) for p in prefixes)):
        for folder, each in keys.items():
            if matches(each):
                return folder
    return None


def restore() -> None:
    folder = found(os.environ["KEY"], lines("RESTORE_KEYS"))
    if folder is None:
        log("no cache is found")
        return
    key = (folder / "key").read_text()
    subprocess.run(["tar", "-xf", folder / "files.tar", "-C", "/"], check=True)
    log(f"restored from {key}")
    with Path(os.environ["GITHUB_OUTPUT"]).open("a") as output:
        output.write(f"cache-matched-key={key}\n")


def save() -> None:
    paths = [Path(line).expanduser() for line in lines("PATHS")]
    there = [str(path.relative_to("/")) for path in paths if path.exists()]
    if not there:
        log("nothing is there to save")
        return
    if any(file.read_text() == os.environ["KEY"] for file in KEPT.glob("*/key")):
        log("another job has saved this key")
        return
    folder = KEPT / f"{time.time_ns()}"
    folder.mkdir(parents=True)
    subprocess.run(["tar", "-cf", folder / "files.tar", "-C", "/", *there], check=True)
    (folder / "key").write_text(os.environ["KEY"])
    log(f"saved as {os.environ['KEY']}")


{"restore": restore, "save": save}[sys.argv[1]]()
