"""C++ names as people write them, by the C++ library that NumPy needs as well.

A name may be hostile: each reference to an earlier part can double the demangled text, so 250
characters fill any memory.  So a process of limited memory and time demangles.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from contextlib import suppress
from functools import cache
from typing import IO, cast

# A name a line, and its answer a line: the name itself where the answer has more than 64 KiB.
_PROGRAM = """
import ctypes, resource, sys
resource.setrlimit(resource.RLIMIT_AS, (512 << 20, 512 << 20))
resource.setrlimit(resource.RLIMIT_CPU, (30, 30))
demangle, free = ctypes.CDLL("libstdc++.so.6")["__cxa_demangle"], ctypes.CDLL(None)["free"]
length = ctypes.CDLL(None)["strlen"]
demangle.restype, length.restype = ctypes.c_void_p, ctypes.c_size_t
length.argtypes = free.argtypes = [ctypes.c_void_p]
for line in sys.stdin.buffer:
    found = demangle(line[:-1], None, None, None)  # Itanium C++ ABI, 3.4 "Demangler API"
    short = found and length(found) <= 65536
    sys.stdout.buffer.write(ctypes.string_at(found) + b"\\n" if short else line)
    sys.stdout.buffer.flush()
    free(found)
"""


def demangled(name: str) -> str:
    """The name of a kernel with its template arguments and parameters.

    A name that is not mangled stays as it is, and each name where the library is missing, or after
    the first one that takes more memory or time than any honest one.  Functions with internal
    linkage have a prefix in relocatable device code: ``__nv_static_25__..._Z4mainv``.
    """
    if name.startswith("__nv_static_"):
        name = name[max(0, name.find("_Z")) :]
    if not name.startswith("_Z") or "\n" in name:
        return name
    with _LOCK:
        process = _process(os.getpid())
        stream = cast("IO[bytes]", process.stdin)
        try:
            stream.write(name.encode(errors="replace") + b"\n")
            stream.flush()
        except (OSError, ValueError):  # the process has ended
            with suppress(OSError):
                stream.close()
            return name
        answer = cast("IO[bytes]", process.stdout).readline()
    return answer[:-1].decode(errors="replace") if answer.endswith(b"\n") else name


_LOCK = threading.Lock()


@cache
def _process(_: int) -> subprocess.Popen[bytes]:
    """The one of this process: a fork has none of its own yet."""
    command = [sys.executable, "-I", "-S", "-c", _PROGRAM]
    pipe, null = subprocess.PIPE, subprocess.DEVNULL
    return subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=null)


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
