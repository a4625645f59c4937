"""The interpreter, compiled once for each state of its sources."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import time
from pathlib import Path

UNUSED = 7 * 24 * 3600.0  # seconds after which another state's build is removed
SOURCES = Path(__file__).resolve().parents[2]


class BuildError(Exception):
    """No compiler, or the sources do not compile."""


def best_variant() -> str:
    """The loops that this machine would choose (``variants.cpp``): others need not be compiled."""
    if os.uname().machine != "x86_64":
        return "portable"
    flags = Path("/proc/cpuinfo").read_text().split()
    if all(f"avx512{part}" in flags for part in ("f", "bw", "vl", "dq")):
        return "avx512"
    return "avx2" if "avx2" in flags and "fma" in flags else "portable"


def build() -> Path:
    """The directory with ``libptx.so`` and ``ptx``; compiling takes a minute of one core.

    ``PTX_BUILT`` names another one.  Raises BuildError.
    """
    if given := os.environ.get("PTX_BUILT"):
        return Path(given)
    if shutil.which("g++") is None or shutil.which("make") is None:
        raise BuildError("the interpreter needs g++ 12 or later and make: apt-get install g++ make")
    state = hashlib.sha256(best_variant().encode())
    for source in sorted([*SOURCES.glob("*"), *SOURCES.glob("ops/*")]):
        if source.suffix in (".cpp", ".h") or source.name == "Makefile":
            state.update(source.name.encode() + source.read_bytes())
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "builder-ptx"
    out = cache / state.hexdigest()[:16]
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (out / "ptx").exists():
            for old in cache.glob("*/"):
                if time.time() - old.stat().st_mtime > UNUSED:
                    shutil.rmtree(old)
            where = [f"OUT={out}", f"BUILD={out}/build", f"VARIANTS={best_variant()}"]
            done = subprocess.run(
                ["make", f"-j{os.cpu_count()}", *where],
                cwd=SOURCES,
                capture_output=True,
                text=True,
                check=False,
            )
            if done.returncode:
                shutil.rmtree(out, ignore_errors=True)
                raise BuildError("the interpreter does not compile:\n" + done.stderr[-4000:])
            shutil.rmtree(out / "build")
        os.utime(out)  # it is used
    return out
