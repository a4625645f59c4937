"""Receives the reports of a container's processes: over a Unix socket, within bounds.

The image may be hostile.  A socket gives its container nothing to write on this machine: no files,
no links, no devices.  A message is a line "PID LENGTH" and so many bytes of JSON, one a connection;
the last one of each process is kept (simulator/card/report.cpp).
"""

from __future__ import annotations

import os
import re
import selectors
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from simulator import SimulatorError

MESSAGE = 4 << 20  # bytes of one message; llama.cpp's have 20 KB
PROCESSES = 256
HELD = 16 << 20  # bytes of all messages
CONNECTIONS = 64  # at one time; others wait
HEADER = re.compile(rb"(\d{1,10}) (\d{1,8})\n")
LONGEST_HEADER = 20
BLOCK = 1 << 16
DRAIN = 5.0  # seconds for messages that were sent before they are asked for


class Receiver:
    """Receives the messages of one container's processes in a thread."""

    def __init__(self, listener: socket.socket) -> None:
        self._listener = listener
        self._ending = os.eventfd(0, os.EFD_CLOEXEC)
        self._selector = selectors.DefaultSelector()
        for each in (listener, self._ending):
            self._selector.register(each, selectors.EVENT_READ)
        self._open: dict[socket.socket, bytearray] = {}
        self._kept: dict[int, bytes] = {}
        self._refused = ""
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._receive, daemon=True)
        self._thread.start()

    def messages(self) -> dict[int, bytes]:
        """The last message of each process, by its id, with all that was sent before this call.

        Raises ``SimulatorError`` where the container sent anything else, or too much.
        """
        until = time.monotonic() + DRAIN
        with self._lock:
            while self._handle() and time.monotonic() < until:
                pass
            if not self._refused:
                return dict(self._kept)
        raise SimulatorError(
            "the container's reports of its simulated cards cannot be used",
            self._refused,
            "a program of the image, and not the simulator, wrote to the simulator's socket",
        )

    def close(self) -> None:
        """Receive nothing more."""
        os.eventfd_write(self._ending, 1)
        self._thread.join()
        self._hang_up()
        self._selector.close()
        os.close(self._ending)

    def _receive(self) -> None:
        while all(key.fd != self._ending for key, _ in self._selector.select()):
            with self._lock:
                self._handle()

    def _handle(self) -> bool:
        """Handle all waiting messages; whether there was one."""
        ready = [key.fileobj for key, _ in self._selector.select(0)]
        for each in ready:
            if each is self._listener:
                self._accept()
            elif each in self._open:
                self._read(each)
        return bool(ready) and not self._refused

    def _accept(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except OSError:  # it is gone again, or all were refused
            return
        connection.setblocking(False)
        self._open[connection] = bytearray()
        self._selector.register(connection, selectors.EVENT_READ)
        if len(self._open) == CONNECTIONS:
            self._selector.unregister(self._listener)

    def _read(self, connection: socket.socket) -> None:
        try:
            block = connection.recv(BLOCK)
        except BlockingIOError:
            return
        except ConnectionError:
            block = b""
        data = self._open[connection]
        data += block
        header = HEADER.match(data)
        length = int(header[2]) if header else 0
        held = sum(map(len, (*self._open.values(), *self._kept.values())))
        if header is None and len(data) >= LONGEST_HEADER:
            self._hang_up("it is no message of the simulator")
        elif length > MESSAGE or held > HELD:
            self._hang_up(f"more than {MESSAGE >> 20} MiB at once, or {HELD >> 20} MiB in all")
        elif header and len(data) >= header.end() + length:
            self._kept[int(header[1])] = bytes(data[header.end() : header.end() + length])
            self._drop(connection)
            if len(self._kept) > PROCESSES:
                self._hang_up(f"more than {PROCESSES} processes")
        elif not block:  # the process was killed
            self._drop(connection)

    def _drop(self, connection: socket.socket) -> None:
        del self._open[connection]
        self._selector.unregister(connection)
        connection.close()
        if len(self._open) == CONNECTIONS - 1:
            self._selector.register(self._listener, selectors.EVENT_READ)

    def _hang_up(self, why: str = "") -> None:
        """Close all connections, and say why: who sends then is refused."""
        self._refused = why or self._refused
        for connection in (*self._open, self._listener):
            with suppress(KeyError, ValueError):  # it waits, or is closed
                self._selector.unregister(connection)
            connection.close()
        self._open.clear()


@contextmanager
def receiving(folder: Path, name: str) -> Iterator[Receiver]:
    """Receive at a socket of that name in ``folder``, which any user of a container may write to.

    The path of a socket has at most 107 bytes (unix(7)), and the directory's may have more.
    """
    directory = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        listener = socket.socket(socket.AF_UNIX)
        listener.setblocking(False)
        listener.bind(f"/proc/self/fd/{directory}/{name}")
    finally:
        os.close(directory)
    (folder / name).chmod(0o666)  # the image's own user writes there
    listener.listen(CONNECTIONS)
    receiver = Receiver(listener)
    try:
        yield receiver
    finally:
        receiver.close()
