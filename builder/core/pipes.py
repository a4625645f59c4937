"""The pipes of a child process, as types that are never None."""

from __future__ import annotations

import io
import subprocess
from collections.abc import Iterable
from typing import IO, AnyStr


def output_of(process: subprocess.Popen[AnyStr]) -> IO[AnyStr]:
    """The standard output of a process that was started with ``stdout=PIPE``."""
    if process.stdout is None:
        raise ValueError("the process was started without stdout=PIPE")
    return process.stdout


def lines_of(process: subprocess.Popen[bytes]) -> Iterable[str]:
    """The lines of the standard output of a process, with their ends."""
    return io.TextIOWrapper(output_of(process), "utf-8", "replace")


def input_of(process: subprocess.Popen[AnyStr]) -> IO[AnyStr]:
    """The standard input of a process that was started with ``stdin=PIPE``."""
    if process.stdin is None:
        raise ValueError("the process was started without stdin=PIPE")
    return process.stdin
