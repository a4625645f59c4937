"""Two machines that share a registry: each has a state, a cache and a clock of its own."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from shutil import copytree
from typing import Any

from support.commands import ForkServer

SKEWS = (-240.0, 240.0)
"""Seconds by which the clocks are off."""


@dataclass(frozen=True)
class TwoMachines:
    """Both know what the test itself has built so far, and each what it built itself."""

    server: ForkServer
    folder: Path
    other: str = ""
    """The namespace of the second one, by another address of the registry: images that both build
    at the same time on the one engine have names of their own.  Empty: the first one's."""

    def environment(self, number: int) -> dict[str, str]:
        """The environment of one machine."""
        own = self.folder / f"machine-{number}"
        (own / "cache").mkdir(parents=True, exist_ok=True)
        records = Path(os.environ["BUILDER_STATE_DIR"]) / "records"
        if records.is_dir():
            copytree(records, own / "state" / "records", dirs_exist_ok=True)
        state = {"BUILDER_STATE_DIR": str(own / "state"), "BUILDER_CACHE_DIR": str(own / "cache")}
        namespace = {"BUILDER_NAMESPACE": self.other} if number and self.other else {}
        return {**os.environ, **state, **namespace}

    def at_once(self, *commands: Sequence[str], ahead: float = 0.0) -> list[tuple[int, str, str]]:
        """Run a command on each machine at the same time: exit status, output, messages.

        ``ahead`` are the seconds by which both clocks are before this machine's.
        """
        with ExitStack() as stack:
            running = [
                stack.enter_context(
                    self.server.running(
                        [*map(str, command)],
                        environment=self.environment(number),
                        at=time.time() + ahead + skew,
                    )
                )
                for number, (command, skew) in enumerate(zip(commands, SKEWS, strict=True))
            ]
            texts = [each.communicate() for each in running]
            return [(each.wait(), *text) for each, text in zip(running, texts, strict=True)]


def parsed(done: tuple[int, str, str]) -> Any:
    """The JSON that a command printed."""
    return json.loads(done[1])
