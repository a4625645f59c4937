"""The pipes of a child process, as types that are never None."""

from __future__ import annotations

import subprocess
from typing import IO, AnyStr


def output_of(process: subprocess.Popen[AnyStr]) -> IO[AnyStr]:
    """The standard output of a process that was started with ``stdout=PIPE``."""
    if process.stdout is None:
        raise ValueError("the process was started without stdout=PIPE")
    return process.stdout


def input_of(process: subprocess.Popen[AnyStr]) -> IO[AnyStr]:
    """The standard input of a process that was started with ``stdin=PIPE``."""
    if process.stdin is None:
        raise ValueError("the process was started without stdin=PIPE")
    return process.stdin
