"""A started server on a simulated card, with a model folder whose weights are a hole."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from builder.families.family import FolderServer
from builder.families.stated import ROUNDED, StatedLog
from builder.simulator import memory
from builder.simulator.figures import mib
from builder.simulator.report import Report
from builder.smoke import serves
from builder.smoke.device_trial import DeviceTrial, Request, Stacks, check_kernels, memory_check
from builder.smoke.verdict import Check


@dataclass(frozen=True, slots=True)
class FolderTrial(DeviceTrial):
    """A server where Python and PyTorch allocate: its own log says what the memory is for."""

    STOP: ClassVar[int] = 60  # vLLM: eight seconds on an idle machine of two cores
    folder: FolderServer

    def _log(self) -> StatedLog:
        return self.folder.read_log(self.server.container.log())

    def _loaded(self) -> Check:
        return check_loaded(self._log())

    def _answers(self) -> Sequence[Request]:
        """All requests, as none was made on the CPU, after one that compiles kernels."""
        first = ("answers first", f"within {self.serve.seconds} s", self._first_answer)
        return (first, *serves.requests_of(self.server))

    def _first_answer(self) -> str:
        return serves.completes(self.server, seconds=self.serve.seconds)

    def _kernels(self, report: Report) -> Check:
        return check_kernels(report, compiled_too=True)  # wheels have PTX for newer cards

    def _memory(self, report: Report, stacks: Stacks, log: str) -> Check:  # noqa: ARG002
        stated = self.folder.read_log(log)
        return check_memory(report, stated)

    def _stated(self) -> str:
        return self._log().text

    def _by_kind(self, report: Report) -> Mapping[str, int]:
        return memory.with_rest(report, self._log().kinds)


def check_loaded(log: StatedLog) -> Check:
    """The log states a KV cache: its size, its tokens, or both."""
    found = log.text or "its log mentions no KV cache"
    stated = [size for size in (log.kv_cache, log.kv_tokens) if size is not None]
    loaded = bool(stated) and min(stated) > 0
    return Check.of("device", "model", "loaded, with a KV cache", found, loaded)


def check_memory(report: Report, log: StatedLog) -> Check:
    """The log states no more than was allocated, each figure within its rounding."""
    kinds = memory.with_rest(report, log.kinds)
    parts = [f"{kind} {mib(size)}" for kind, size in kinds.items()]
    stated = sum(log.kinds.values())
    allocated = sum(each.at_peak for each in report.allocations)
    lacking = stated - allocated > 2 * ROUNDED
    wrong = [f"its log states {mib(stated)}, allocated were {mib(allocated)}"] if lacking else []
    return memory_check(report, "no less than its own log states", parts, wrong)
