"""The PTX interpreter as a program: compiled on this machine, once for its sources."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from builder.checks.build import key_of, sources
from builder.core.errors import BuildError, WorldError
from builder.core.log import Log
from builder.core.made_once import made_once

COMPILED = ("ptx", "ptx/ops")
VARIANTS = "portable"  # enough for small kernels, and compiled in a third of the time
LINES = 15  # of the compiler's output in an error


def require_compiler() -> None:
    """Raise ``WorldError`` where this machine has no ``g++`` or no ``make``."""
    missing = [name for name in ("g++", "make") if shutil.which(name) is None]
    if missing:
        raise WorldError(
            f"this machine has no {' and no '.join(missing)}",
            "the PTX interpreter is compiled with them, and nvcc reads C++ headers with g++",
            "apt-get install g++ make",
        )


def program(cache: Path, log: Log) -> Path:
    """The program ``ptx``; it is compiled now if need be: two minutes of one core.

    Raises ``WorldError`` where this machine has no compiler, ``BuildError`` where the interpreter
    does not compile.
    """
    require_compiler()
    version = subprocess.run(
        ["g++", "-dumpfullversion"], capture_output=True, text=True, check=False
    )
    key = key_of(sources(), version.stdout.strip(), COMPILED)

    def make(made: Path, own: Path) -> None:
        log("compiling the PTX interpreter, once for these sources: about two minutes")
        _compile(made, own)

    return made_once(cache, "interpreter", key, log, make) / "ptx"


def _compile(made: Path, build: Path) -> None:
    where = [f"OUT={made}", f"BUILD={build}", f"VARIANTS={VARIANTS}"]
    done = subprocess.run(
        ["make", "-C", str(sources() / "ptx"), *where, str(made / "ptx")],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        lines = done.stderr.splitlines()[-LINES:]
        raise BuildError(
            "the PTX interpreter does not compile", "\n".join(lines), "it needs g++ 12 or later"
        )
