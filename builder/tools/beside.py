"""Work in the background: begun early, waited for where it is needed.

It prepares the work of a later step, such as a download into the cache: a step that finds the work
undone does it, and raises its errors at its own place.  Work that nobody waits for any
more is given up: its programs are terminated, and its downloads end at their next block.
"""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar, copy_context
from typing import Any

PATIENCE = 20.0  # seconds for given-up work to clean up: more than buildx gets to end (``_stop``)


class GivenUpError(Exception):
    """The work around this step is given up."""


class _Begun:
    """Work in a thread of its own: a daemon, for the program may end before it."""

    def __init__(self, work: Callable[[], object]) -> None:
        self._work = work
        self.given_up = False
        self._processes: set[subprocess.Popen[Any]] = set()
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=copy_context().run, args=(self._run,), daemon=True)
        self._thread.start()

    def _run(self) -> None:
        _here.set(self)
        with suppress(Exception):  # whoever needs the result does it again, and raises
            self._work()

    def wait(self) -> None:
        self._thread.join()

    def give_up(self) -> None:
        with self._lock:
            self.given_up = True
            for process in self._processes:
                process.terminate()
        self._thread.join(PATIENCE)

    @contextmanager
    def ending(self, process: subprocess.Popen[Any]) -> Iterator[None]:
        with self._lock:
            self._processes.add(process)
            if self.given_up:
                process.terminate()
        try:
            yield
        finally:
            with self._lock:
                self._processes.discard(process)


_here: ContextVar[_Begun | None] = ContextVar("_here", default=None)
"""The work that this thread does beside other work."""


@contextmanager
def ends_with_its_work(process: subprocess.Popen[Any]) -> Iterator[None]:
    """While the body waits for a program: it is terminated if the work around it is given up."""
    work = _here.get()
    if work is None:
        yield
        return
    with work.ending(process):
        yield


def require_wanted() -> None:
    """Raise ``GivenUpError`` where the work around this step is given up."""
    work = _here.get()
    if work is not None and work.given_up:
        raise GivenUpError


class Beside:
    """Begins work beside the body of ``beside``."""

    def __init__(self) -> None:
        self._begun: list[_Begun] = []

    def begin(self, work: Callable[[], object]) -> None:
        """Begin ``work`` now."""
        self._begun.append(_Begun(work))

    def wait(self) -> None:
        """Wait until all of it has ended, well or not."""
        for begun in self._begun:
            begun.wait()

    def give_up(self) -> None:
        """End unfinished work."""
        for begun in self._begun:
            begun.give_up()


@contextmanager
def beside() -> Iterator[Beside]:
    """Begin work beside the body.  After an error or Ctrl-C, unfinished work is given up."""
    found = Beside()
    try:
        yield found
    finally:
        found.give_up()
