"""C++ names as people write them, by the C++ library that NumPy needs as well."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache

_LIBRARY = "libstdc++.so.6"


def demangled(name: str) -> str:
    """The name of a kernel with its template arguments and parameters.

    A name that is not mangled, or where the library is missing, stays as it is.  Functions with
    internal linkage have a prefix in relocatable device code: ``__nv_static_25__..._Z4mainv``.
    """
    if name.startswith("__nv_static_"):
        name = name[max(0, name.find("_Z")) :]
    demangle = _demangler() if name.startswith("_Z") else None
    return demangle(name) if demangle else name


def short(name: str) -> str:
    """A demangled name without what it returns and without its parameters."""
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
