"""C++ names as people write them, by the ABI function of the C++ library of this machine."""

from __future__ import annotations

import ctypes
from functools import cache

LIBRARY = "libstdc++.so.6"


@cache
def demangled(name: str) -> str:
    """``foo(int)`` of ``_Z3fooi``; the name itself where it is not mangled.

    Also where this machine has no C++ library.  Itanium C++ ABI, 3.4: ``__cxa_demangle``.
    """
    libraries = _libraries()
    if libraries is None or not name.startswith("_Z"):
        return name
    cxx, libc = libraries
    status = ctypes.c_int()
    found = cxx.__cxa_demangle(name.encode(), None, None, ctypes.byref(status))
    if not found:
        return name
    try:
        return (ctypes.string_at(found)).decode(errors="replace")
    finally:
        libc.free(ctypes.c_void_p(found))


@cache
def _libraries() -> tuple[ctypes.CDLL, ctypes.CDLL] | None:
    try:
        cxx, libc = ctypes.CDLL(LIBRARY), ctypes.CDLL(None)
    except OSError:
        return None
    cxx.__cxa_demangle.restype = ctypes.c_void_p
    cxx.__cxa_demangle.argtypes = [
        ctypes.c_char_p,
        ctypes.c_void_p,
        ctypes.c_void_p,
        ctypes.POINTER(ctypes.c_int),
    ]
    return cxx, libc


def function_of(name: str) -> str:
    """A demangled name without its parameters and template arguments: ``f`` of ``f<int>(char)``."""
    kept, depth = "", 0
    for character in demangled(name).replace("(anonymous namespace)::", ""):
        depth += character in "<("
        if depth == 0:
            kept += character
        depth -= character in ">)"
    # What comes before a template's name is its return type.
    return kept.strip().rpartition(" ")[2] or name
