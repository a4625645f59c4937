"""A started server of vLLM on a simulated card, with a model folder without weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from builder.servers import vllm_log
from builder.servers.vllm_log import ROUNDED, VllmLog
from builder.simulator import memory
from builder.simulator.figures import mib
from builder.simulator.report import Report
from builder.smoke import serves
from builder.smoke.device_trial import DeviceTrial, Request, Stacks, check_kernels, memory_check
from builder.smoke.verdict import Check


@dataclass(frozen=True, slots=True)
class DummyTrial(DeviceTrial):
    """A server of vLLM: Python and PyTorch allocate, so its own log says what the memory is for."""

    STOP: ClassVar[int] = 60  # eight seconds on an idle machine of two cores

    def _log(self) -> VllmLog:
        return vllm_log.read(self.server.container.log())

    def _loaded(self) -> Check:
        log = self._log()
        found = log.text or "its log mentions neither weights nor KV cache"
        loaded = log.weights is not None and bool(log.kv_tokens)
        return Check.of("device", "model", "loaded, with a KV cache", found, loaded)

    def _answers(self) -> Sequence[Request]:
        """All requests, as none was made on the CPU, after one that compiles kernels."""
        first = ("answers first", f"within {self.serve.seconds} s", self._first_answer)
        return (first, *serves.requests_of(self.server))

    def _first_answer(self) -> str:
        return serves.completes(self.server, seconds=self.serve.seconds)

    def _kernels(self, report: Report) -> Check:
        return check_kernels(report, compiled_too=True)  # wheels have PTX for newer cards

    def _memory(self, report: Report, stacks: Stacks, log: str) -> Check:  # noqa: ARG002
        stated = vllm_log.read(log)
        return check_memory(report, stated)

    def _stated(self) -> str:
        return self._log().text

    def _by_kind(self, report: Report) -> Mapping[str, int]:
        return memory.with_rest(report, self._log().kinds)


def check_memory(report: Report, log: VllmLog) -> Check:
    """The log states no more than was allocated, each figure within its rounding."""
    kinds = memory.with_rest(report, log.kinds)
    parts = [f"{kind} {mib(size)}" for kind, size in kinds.items()]
    stated = kinds["weights"] + kinds["KV cache"]
    allocated = sum(each.at_peak for each in report.allocations)
    lacking = stated - allocated > 2 * ROUNDED
    wrong = [f"its log states {mib(stated)}, allocated were {mib(allocated)}"] if lacking else []
    return memory_check(report, "no less than its own log states", parts, wrong)
