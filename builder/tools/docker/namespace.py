"""Connections from inside the network of a container, without a process in it.

Only root enters another network, and only where the engine's containers run on this machine
(setns(2), network_namespaces(7)).
"""

from __future__ import annotations

import ctypes
import os
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeVar

from builder.tools.docker.containers import Container

CLONE_NEWNET = 0x40000000  # linux/sched.h
LOOPBACK = "127.0.0.1"
Found = TypeVar("Found")


@contextmanager
def network_of(container: Container) -> Iterator[int | None]:
    """A descriptor of the network of a container; None where this process cannot enter it."""
    descriptor = _opened(container)
    try:
        yield descriptor
    finally:
        if descriptor is not None:
            os.close(descriptor)


def connected(network: int, port: int) -> socket.socket:
    """A connection to ``port`` on the loopback of a network.  Raises ``OSError``."""
    return _inside(network, lambda: socket.create_connection((LOOPBACK, port)))


def _opened(container: Container) -> int | None:
    identity, process = container.identity()
    with suppress(OSError):
        descriptor = os.open(f"/proc/{process}/ns/net", os.O_RDONLY)
        # The process may belong to another machine's engine: its id says nothing here.
        try:
            if identity in Path(f"/proc/{process}/cgroup").read_text("utf-8"):
                return _inside(descriptor, lambda: descriptor)
        except OSError:
            os.close(descriptor)
            raise
        os.close(descriptor)
    return None


def _inside(network: int, function: Callable[[], Found]) -> Found:
    """Call a function in a network; returns its result.  Raises ``OSError``.

    The network belongs to a thread, which ends; a socket stays in the network it was made in.
    """
    found: Future[Found] = Future()

    def run() -> None:
        try:
            _enter(network)
            found.set_result(function())
        except OSError as error:
            found.set_exception(error)

    threading.Thread(target=run).start()
    return found.result()


def _enter(network: int) -> None:
    """Move the calling thread.  Raises ``OSError``.  (``os.setns`` is new in Python 3.12.)"""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.setns(network, CLONE_NEWNET) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
