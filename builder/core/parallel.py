"""Work in the background: begun early, waited for where it is needed.

It prepares the work of a later step, such as a download into the cache: a step that finds the work
undone does it, and raises its errors at its own place.  Work that nobody waits for any
more is given up: its programs are terminated, and its downloads end at their next block.
"""

from __future__ import annotations

import io
import subprocess
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar, copy_context
from typing import IO, Any, AnyStr

PATIENCE = 20.0  # seconds for given-up work to clean up: more than buildx gets to end (``_stop``)


class GivenUpError(Exception):
    """The work around this step is given up."""


class Beside:
    """Work beside the body of ``beside``, each in a daemon: the program may end before it."""

    def __init__(self) -> None:
        self.given_up = False
        self._threads: list[threading.Thread] = []
        self.processes: set[subprocess.Popen[Any]] = set()
        self.lock = threading.Lock()

    def begin(self, work: Callable[[], object]) -> None:
        """Begin ``work`` now."""

        def run() -> None:
            _here.set(self)
            with suppress(Exception):  # whoever needs the result does it again, and raises
                work()

        self._threads.append(threading.Thread(target=copy_context().run, args=(run,), daemon=True))
        self._threads[-1].start()

    def wait(self) -> None:
        """Wait until all of it has ended, well or not."""
        for thread in self._threads:
            thread.join()

    def give_up(self) -> None:
        """End unfinished work."""
        with self.lock:
            self.given_up = True
            for process in self.processes:
                process.terminate()
        for thread in self._threads:
            thread.join(PATIENCE)


_here: ContextVar[Beside | None] = ContextVar("_here", default=None)
"""The work that this thread belongs to."""


@contextmanager
def ends_with_its_work(process: subprocess.Popen[Any]) -> Iterator[None]:
    """While the body waits for a program: it is terminated if the work around it is given up."""
    work = _here.get()
    if work is None:
        yield
        return
    with work.lock:
        work.processes.add(process)
        if work.given_up:
            process.terminate()
    try:
        yield
    finally:
        with work.lock:
            work.processes.discard(process)


def require_wanted() -> None:
    """Raise ``GivenUpError`` where the work around this step is given up."""
    work = _here.get()
    if work is not None and work.given_up:
        raise GivenUpError


@contextmanager
def beside() -> Iterator[Beside]:
    """Begin work beside the body.  After an error or Ctrl-C, unfinished work is given up."""
    found = Beside()
    try:
        yield found
    finally:
        found.give_up()


# The pipes of a child process, as types that are never None.


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
