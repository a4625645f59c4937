"""The names of kernels: as people write them, and which path an engine took by them.

An engine chooses between implementations at run time, by card, model and options: a fallback shows
nowhere but in the names of its kernels.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
import tomllib
from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import IO, Literal, cast, get_args

FILE = Path(__file__).with_name("work.toml")
Work = Literal["attention", "products", "KV cache", "other"]
"""What kernels compute; "products" are matrix products."""
PTX = "compute_"  # how the name of code begins that the driver compiles


@dataclass(frozen=True, slots=True)
class WorkPath:
    """A path that an engine took: "FlashAttention 2", "MMQ"."""

    work: Work
    path: str
    launches: int
    """Launches of its kernels, or calls of cuBLAS."""
    compiled: bool = False
    """Whether the driver compiles some of its kernels at their first launch."""

    @property
    def text(self) -> str:
        """The path in a list: with a note where the driver compiles it."""
        return f"{self.path}, compiled by the driver" if self.compiled else self.path


def paths_taken(
    launches: Iterable[tuple[str, str, int]], calls: Mapping[str, int]
) -> tuple[WorkPath, ...]:
    """The paths of launches, by work and by their number.

    ``launches`` are mangled kernels with the code that the card runs ("sm_120a", "compute_80") and
    a number; ``calls`` are functions of CUDA and how often they were called.
    """
    counts: Counter[tuple[Work, str]] = Counter()
    compiled = set()
    for kernel, code, count in launches:
        if found := _of_kernel(kernel):
            counts[found] += count
            compiled |= {found} if code.startswith(PTX) else set()
    for function, count in calls.items():
        if found := _match("call", function):
            counts[found] += count
    order = get_args(Work)
    taken = sorted(counts.items(), key=lambda item: (order.index(item[0][0]), -item[1], item[0]))
    return tuple(WorkPath(*found, count, found in compiled) for found, count in taken)


def by_work(taken: Iterable[WorkPath]) -> dict[Work, list[WorkPath]]:
    """The paths of each kind of work."""
    found: dict[Work, list[WorkPath]] = {}
    for each in taken:
        found.setdefault(each.work, []).append(each)
    return found


def texts_by_work(taken: Iterable[WorkPath]) -> dict[Work, str]:
    """The paths of each kind of work, in one line each."""
    return {work: ", ".join(each.text for each in some) for work, some in by_work(taken).items()}


@cache
def _entries() -> list[dict[str, str]]:
    found: list[dict[str, str]] = tomllib.loads(FILE.read_text("utf-8"))["entry"]
    return found


@cache
def _of_kernel(name: str) -> tuple[Work, str] | None:
    return _match("kernel", short(demangled(name)).replace("(anonymous namespace)::", ""))


def _match(field: Literal["kernel", "call"], name: str) -> tuple[Work, str] | None:
    for entry in _entries():
        found = re.match(entry[field], name) if field in entry else None
        if found is not None:
            return cast(Work, entry["work"]), found.expand(entry["path"])
    return None


# C++ names as people write them, by the C++ library that NumPy needs as well.
#
# A name may be hostile: each reference to an earlier part can double the demangled text, so 250
# characters fill any memory.  So a process of limited memory and time demangles.

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
