"""The interpreter's C API (``ptx_c.h``) for Python: modules, kernels, numpy arrays as memory."""

from __future__ import annotations

import ctypes
import os
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

FAULTS = (
    "",
    "not computed",
    "out of bounds",
    "misaligned",
    "barrier",
    "race",
    "uninitialized",
    "trap",
    "endless",
    "invalid",
)


class _Options(ctypes.Structure):
    _fields_ = (
        ("grid", ctypes.c_uint32 * 3),
        ("block", ctypes.c_uint32 * 3),
        ("shared", ctypes.c_uint32),
        ("cooperative", ctypes.c_uint32),
        ("threads", ctypes.c_uint32),
        ("races", ctypes.c_uint32),
        ("uninitialized", ctypes.c_uint32),
        ("checksum", ctypes.c_uint32),
        ("fill", ctypes.c_uint32),
        ("most_instructions", ctypes.c_uint64),
    )


class _Result(ctypes.Structure):
    _fields_ = (
        ("fault", ctypes.c_int32),
        ("line", ctypes.c_uint32),
        ("address", ctypes.c_uint64),
        ("block", ctypes.c_uint32 * 3),
        ("thread", ctypes.c_uint32 * 3),
        ("warp_instructions", ctypes.c_uint64),
        ("lane_instructions", ctypes.c_uint64),
        ("checksum", ctypes.c_uint64),
        ("seconds", ctypes.c_double),
        ("cpu_seconds", ctypes.c_double),
    )


class PtxError(Exception):
    """The text is no PTX, or the launch is impossible."""


class PtxFaultError(Exception):
    """A kernel ended early; ``kind`` is one of FAULTS."""

    def __init__(self, text: str, result: Any) -> None:
        super().__init__(text)
        self.kind = FAULTS[result.fault]
        self.result = result
        self.line = result.line
        self.address = result.address
        self.block = tuple(result.block)
        self.thread = tuple(result.thread)


@dataclass(frozen=True)
class Run:
    """What a launch counted; seconds of the host."""

    warp_instructions: int
    lane_instructions: int
    checksum: int
    seconds: float
    cpu_seconds: float
    printed: str


class Library:
    """``libptx.so``."""

    def __init__(self, path: Path) -> None:
        self.c = ctypes.CDLL(os.fspath(path))
        for name in (
            "ptx_error",
            "ptx_fault",
            "ptx_printed",
            "ptx_machine",
            "ptx_lacks",
            "ptx_kernel_name",
        ):
            getattr(self.c, name).restype = ctypes.c_char_p
        self.c.ptx_load.restype = ctypes.c_void_p
        self.c.ptx_load.argtypes = [ctypes.c_char_p, ctypes.c_size_t]
        self.c.ptx_unload.argtypes = [ctypes.c_void_p]
        for name in ("ptx_kernels", "ptx_shared_bytes", "ptx_parameter_bytes"):
            getattr(self.c, name).restype = ctypes.c_int64
        self.c.ptx_kernels.argtypes = [ctypes.c_void_p]
        self.c.ptx_kernel_name.argtypes = [ctypes.c_void_p, ctypes.c_int64]
        for name in ("ptx_lacks", "ptx_shared_bytes", "ptx_parameter_bytes"):
            getattr(self.c, name).argtypes = [ctypes.c_void_p, ctypes.c_char_p]
        self.c.ptx_parameter.argtypes = [
            ctypes.c_void_p,
            ctypes.c_char_p,
            ctypes.c_int,
            ctypes.c_void_p,
            ctypes.c_void_p,
        ]
        self.c.ptx_variable.argtypes = [
            ctypes.c_void_p,
            ctypes.c_char_p,
            ctypes.c_void_p,
            ctypes.c_void_p,
        ]
        self.c.ptx_register.argtypes = [ctypes.c_uint64, ctypes.c_uint64, ctypes.c_int]
        self.c.ptx_unregister.argtypes = [ctypes.c_uint64]
        self.c.ptx_run.argtypes = [
            ctypes.c_void_p,
            ctypes.c_char_p,
            ctypes.c_void_p,
            ctypes.c_char_p,
            ctypes.c_uint32,
            ctypes.c_void_p,
        ]

    def load(self, text: str) -> Module:
        return Module(self, text)

    def error(self) -> str:
        return str(self.c.ptx_error().decode())

    @property
    def machine(self) -> str:
        return str(self.c.ptx_machine().decode())


class Module:
    """A module of PTX; PtxError where the text is none."""

    def __init__(self, library: Library, text: str) -> None:
        self.library = library
        data = text.encode()
        self.handle = library.c.ptx_load(data, len(data))
        if not self.handle:
            raise PtxError(library.error())

    def __del__(self) -> None:
        if getattr(self, "handle", None):
            self.library.c.ptx_unload(self.handle)

    def kernels(self) -> list[str]:
        c = self.library.c
        return [
            c.ptx_kernel_name(self.handle, i).decode() for i in range(c.ptx_kernels(self.handle))
        ]

    def lacks(self, kernel: str) -> list[str]:
        """The opcodes of a kernel that the interpreter does not compute."""
        text = self.library.c.ptx_lacks(self.handle, kernel.encode())
        if text is None:
            raise PtxError(self.library.error())
        return list(text.decode().splitlines())

    def variable(self, name: str) -> np.ndarray[Any, np.dtype[np.uint8]]:
        """The bytes of a ``__device__`` variable, shared with the module."""
        address, size = ctypes.c_uint64(), ctypes.c_uint64()
        if self.library.c.ptx_variable(
            self.handle, name.encode(), ctypes.byref(address), ctypes.byref(size)
        ):
            raise KeyError(name)
        memory = (ctypes.c_uint8 * size.value).from_address(address.value)
        return np.ctypeslib.as_array(memory)

    def parameter(self, kernel: str, index: int) -> tuple[int, int]:
        """Offset and size of a parameter, in bytes."""
        offset, size = ctypes.c_uint32(), ctypes.c_uint32()
        if self.library.c.ptx_parameter(
            self.handle, kernel.encode(), index, ctypes.byref(offset), ctypes.byref(size)
        ):
            raise PtxError(self.library.error() or f"{kernel} has no parameter {index}")
        return offset.value, size.value

    def parameters(self, kernel: str, arguments: Sequence[Any]) -> bytes:
        """The parameter block: arrays by address, bytes as they are, numbers by the size there."""
        c = self.library.c
        size_of_all = c.ptx_parameter_bytes(self.handle, kernel.encode())
        if size_of_all < 0:
            raise PtxError(self.library.error())
        block = bytearray(size_of_all)
        for index, value in enumerate(arguments):
            offset, size = self.parameter(kernel, index)
            if isinstance(value, np.ndarray):
                data = struct.pack("<Q", value.ctypes.data)
            elif isinstance(value, bytes):
                data = value
            elif isinstance(value, float):
                data = struct.pack("<f" if size == 4 else "<d", value)
            elif value is None:
                data = bytes(size)
            else:
                data = int(value).to_bytes(size, "little", signed=value < 0)
            if len(data) != size:
                raise PtxError(f"parameter {index} of {kernel} has {size} bytes, not {len(data)}")
            block[offset : offset + size] = data
        return bytes(block)

    def run(
        self,
        kernel: str,
        arguments: Sequence[Any],
        *,
        grid: int | Sequence[int] = 1,
        block: int | Sequence[int] = 32,
        memory: Sequence[np.ndarray[Any, Any]] = (),
        **options: Any,
    ) -> Run:
        """Run a kernel; the arrays among the arguments, and ``memory``, are what it may access.

        Raises PtxFaultError, PtxError.
        """
        c = self.library.c
        launch = _Options()
        for field, value in (("grid", grid), ("block", block)):
            sizes = [value] if isinstance(value, int) else list(value)
            setattr(launch, field, (ctypes.c_uint32 * 3)(*[*sizes, 1, 1][:3]))
        for name, number in options.items():
            setattr(launch, name, int(number))
        parameters = self.parameters(kernel, arguments)
        arrays = [a for a in (*arguments, *memory) if isinstance(a, np.ndarray)]
        result = _Result()
        for array in arrays:
            c.ptx_register(array.ctypes.data, array.nbytes, 1)
        try:
            failed = c.ptx_run(
                self.handle,
                kernel.encode(),
                ctypes.byref(launch),
                parameters,
                len(parameters),
                ctypes.byref(result),
            )
        finally:
            for array in arrays:
                c.ptx_unregister(array.ctypes.data)
        if failed:
            raise PtxError(self.library.error())
        if result.fault:
            raise PtxFaultError(c.ptx_fault().decode(), result)
        return Run(
            result.warp_instructions,
            result.lane_instructions,
            result.checksum,
            result.seconds,
            result.cpu_seconds,
            c.ptx_printed().decode(errors="replace"),
        )
