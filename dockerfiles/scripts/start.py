"""Patch what can be patched only at start, then become the engine; the image's entrypoint.

``start.json`` beside this file has the steps, the package that they may change, and the entrypoint
and command that follow.  A step that fails, does not end, does not say what it must, or leaves a
file that is no Python ends the container, and a container that ended so does not start again:
its files are half patched.

    BUILDER_START=only    stop before the engine, with exit status 0

Exit status: that of the step that failed; 124 where it was stopped; 76 where it did not do what
it must; 75 where an earlier start of the same container failed.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

PLACE = Path(__file__).resolve().parent
TIMED_OUT, NOT_DONE, HALF_PATCHED = 124, 76, 75
MOST_NAMED = 20


def say(text: str) -> None:
    """Print a line of our own."""
    print(f"start: {text}", flush=True)


def fail(status: int, why: str) -> NoReturn:
    """End without the engine."""
    say(f"{why}: the engine is not started")
    sys.exit(status)


def snapshot(package: Path) -> dict[str, str]:
    """sha256 of every Python file below the package; of an empty one nothing."""
    found = {}
    for file in sorted(package.rglob("*.py")):
        text = file.read_bytes()
        found[str(file.relative_to(package))] = (
            hashlib.sha256(text).hexdigest() if text.strip() else ""
        )
    return found


def on_signal(number: int, frame: FrameType | None) -> NoReturn:  # noqa: ARG001
    """End when told to: the first process of a container ignores what it does not handle."""
    fail(128 + number, "stopped before the engine was started")


def run(step: dict[str, Any]) -> str:
    """Run one step, its output passed on as it comes; what it printed."""
    command, seconds = step["run"], step["seconds"]
    say(f"running {' '.join(command)}")
    try:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    except OSError as error:
        fail(127, f"{command[0]} cannot be run: {error.strerror}")

    def stop(status: int, why: str) -> NoReturn:
        with suppress(ProcessLookupError):  # it ended just now
            os.killpg(process.pid, signal.SIGKILL)
        fail(status, why)

    def on_alarm(number: int, frame: FrameType | None) -> NoReturn:  # noqa: ARG001
        stop(TIMED_OUT, f"{command[0]} did not end within {seconds} s")

    def on_end(number: int, frame: FrameType | None) -> NoReturn:  # noqa: ARG001
        stop(128 + number, "stopped while patching")

    signal.signal(signal.SIGALRM, on_alarm)
    signal.signal(signal.SIGTERM, on_end)
    signal.signal(signal.SIGINT, on_end)
    signal.alarm(seconds)
    said = []
    assert process.stdout is not None
    for line in process.stdout:
        sys.stdout.buffer.write(line)
        sys.stdout.buffer.flush()
        said.append(line.decode(errors="replace"))
    status = process.wait()
    signal.alarm(0)
    signal.signal(signal.SIGTERM, on_signal)
    signal.signal(signal.SIGINT, on_signal)
    if status != 0:
        code = status if status > 0 else 128 - status
        fail(code, f"{' '.join(command)} failed with exit status {code}")
    return "".join(said)


def check(
    step: dict[str, Any], said: str, package: Path, before: dict[str, str], after: dict[str, str]
) -> list[str]:
    """Fail unless a step said what it must, and what it changed is still Python.

    Returns the files that it changed.
    """
    changed = sorted({*before, *after} - {n for n in before if before[n] == after.get(n)})
    lacking = [text for text in step["says"] if text not in said]
    if lacking:
        fail(NOT_DONE, f"{step['run'][0]} did not say {lacking[0]!r}")
    for name in changed:
        if name not in after:
            fail(NOT_DONE, f"{name} is gone")
        if before.get(name) and not after[name]:
            fail(NOT_DONE, f"{name} is empty")
        try:
            compile((package / name).read_bytes(), name, "exec", dont_inherit=True)
        except (SyntaxError, ValueError) as error:
            fail(NOT_DONE, f"{name} is no Python any more: {error}")
    return changed


def patch(plan: dict[str, Any], marker: Path) -> None:
    """Run every step; the marker stands for as long as the package is half patched."""
    package = Path(plan["package"])
    if marker.exists():
        fail(
            HALF_PATCHED,
            "patching failed in this container before, and its files are half patched "
            "(make a new container)",
        )
    try:
        marker.touch()
    except OSError as error:
        fail(NOT_DONE, f"{marker.parent} cannot be written ({error.strerror}), and patches must be")
    before = snapshot(package)
    for step in plan["steps"]:
        said = run(step)
        after = snapshot(package)
        changed = check(step, said, package, before, after)
        more = f" and {len(changed) - MOST_NAMED} more" if len(changed) > MOST_NAMED else ""
        named = ", ".join(changed[:MOST_NAMED]) + more
        say(f"changed {len(changed)} files of {package}{': ' + named if named else ''}")
        before = after
    marker.unlink()


def main() -> None:
    """Patch, then become the engine."""
    signal.signal(signal.SIGTERM, on_signal)
    signal.signal(signal.SIGINT, on_signal)
    plan = json.loads((PLACE / "start.json").read_text("utf-8"))
    wanted = os.environ.pop("BUILDER_START", "")
    if wanted not in {"", "only"}:
        fail(NOT_DONE, f"BUILDER_START={wanted} is not known: it may be 'only'")
    patch(plan, PLACE / "unfinished")
    engine = [*plan["entrypoint"], *(sys.argv[1:] or plan["command"])]
    if wanted == "only":
        say(f"stopping before {' '.join(engine)}, as BUILDER_START=only asks")
        return
    say(f"starting {' '.join(engine)}")
    # Python ignores these, and a program keeps what is ignored when it is started.
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)
    try:
        os.execvp(engine[0], engine)  # noqa: S606  (no shell is wanted)
    except OSError as error:
        fail(127, f"{engine[0]} cannot be run: {error.strerror}")


if __name__ == "__main__":
    main()
