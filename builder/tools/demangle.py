"""C++ names as people write them, by the C++ library that NumPy needs as well.

A name may be hostile: each reference to an earlier part can double the demangled text, so 250
characters fill any memory.  Names with many references are demangled in a process of limited
memory and time.
"""

from __future__ import annotations

import ctypes
import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import cache

from builder.tools.pipes import input_of, output_of

_LIBRARY = "libstdc++.so.6"
_REFERENCE = re.compile("[ST][0-9A-Z]*_")  # Itanium C++ ABI, 5.1.10 "Compression"
_FEW = 32  # references that double 16 times: a few MB
# A name a line, and its answer a line: the name itself where the answer has more than 64 KiB.
_PROGRAM = """
import ctypes, resource, sys
resource.setrlimit(resource.RLIMIT_AS, (512 << 20, 512 << 20))
resource.setrlimit(resource.RLIMIT_CPU, (5, 5))
demangle, free = ctypes.CDLL(sys.argv[1])["__cxa_demangle"], ctypes.CDLL(None)["free"]
length = ctypes.CDLL(None)["strlen"]
demangle.restype, length.restype = ctypes.c_void_p, ctypes.c_size_t
length.argtypes = free.argtypes = [ctypes.c_void_p]
for line in sys.stdin.buffer:
    found = demangle(line[:-1], None, None, None)
    short = found and length(found) <= 65536
    sys.stdout.buffer.write(ctypes.string_at(found) + b"\\n" if short else line)
    sys.stdout.buffer.flush()
    free(found)
"""


def demangled(name: str) -> str:
    """The name of a kernel with its template arguments and parameters.

    A name that is not mangled, or where the library is missing, stays as it is.  Functions with
    internal linkage have a prefix in relocatable device code: ``__nv_static_25__..._Z4mainv``.
    """
    if name.startswith("__nv_static_"):
        name = name[max(0, name.find("_Z")) :]
    demangle = _demangler() if name.startswith("_Z") else None
    if demangle is None or "\n" in name:
        return name
    if len(_REFERENCE.findall(name)) > _FEW:
        return _helper(os.getpid()).demangled(name)
    return demangle(name)


def short(name: str) -> str:
    """A demangled name without return type and parameters."""
    depth, start, end = 0, 0, len(name)
    for at, character in enumerate(name):
        if character in "<([{":
            # The last parenthesis outside of all others opens the parameters.
            if character == "(" and depth == 0 and at > start:
                end = at
            depth += 1
        elif character in ">)]}":
            depth -= 1
        elif character == " " and depth == 0:
            start, end = at + 1, len(name)
    return name[start:end]


def function_of(name: str) -> str:
    """The demangled name of a function without its template arguments and parameters: ``ns::f``."""
    kept, depth = "", 0
    for character in short(demangled(name).removesuffix(" const")).replace(
        "(anonymous namespace)::", ""
    ):
        depth += character == "<"
        kept += character if depth == 0 else ""
        depth -= character == ">"
    return kept or name


class _Helper:
    """A process that demangles; once it has reached a limit, names stay as they are."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        command = [sys.executable, "-I", "-S", "-c", _PROGRAM, _LIBRARY]
        pipe, null = subprocess.PIPE, subprocess.DEVNULL
        self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=null)

    def demangled(self, name: str) -> str:
        """A demangled name."""
        with self._lock, suppress(OSError, ValueError):  # it has ended
            stream = input_of(self._process)
            stream.write(name.encode(errors="replace") + b"\n")
            stream.flush()
            answer = output_of(self._process).readline()
            if answer.endswith(b"\n"):
                return answer[:-1].decode(errors="replace")
        return name


@cache
def _helper(process: int) -> _Helper:  # noqa: ARG001  (a fork has no helper of its own yet)
    return _Helper()


@cache
def _demangler() -> Callable[[str], str] | None:
    """``__cxa_demangle`` (Itanium C++ ABI, 3.4 "Demangler API")."""
    try:
        function = ctypes.CDLL(_LIBRARY)["__cxa_demangle"]
    except (OSError, AttributeError):
        return None
    function.restype = ctypes.c_void_p
    free = ctypes.CDLL(None)["free"]
    free.argtypes = [ctypes.c_void_p]

    def demangle(name: str) -> str:
        found = function(name.encode(), None, None, None)
        try:
            return ctypes.string_at(found).decode(errors="replace") if found else name
        finally:
            free(found)

    return demangle
