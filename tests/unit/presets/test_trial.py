"""Trials by the reports of real ones: llama.cpp with a dense 27B on a card with 24 GB.

``served`` answered a long request at 32768 tokens, ``refused`` found no room for 262144.  Stacks
are cut to nine frames, launches to three.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from builder.core.errors import SmokeError, UntriedError
from builder.engines import logs
from builder.presets import fit
from builder.presets.fit import FitTrial
from simulator import report as frames
from simulator.report import Report, Unsupported, Violation
from support import caches
from support.environment import REPOSITORY

MIB = 1 << 20
DATA = REPOSITORY / "tests/data/fit"


def report_of(name: str) -> Report:
    return Report.model_validate_json(Path(DATA / f"{name}.json").read_bytes())


def evaluated(report: Report, context: int, fault: str = "", log: str = "") -> FitTrial:
    return fit.evaluate(report, frames.named(report), context, fault, log)


def test_a_server_that_answered_fits_with_its_memory_by_kind() -> None:
    found = evaluated(report_of("served"), 32768, log="offloaded 65/65 layers to GPU")
    assert (found.fits, found.why, found.refused) == (True, "", None)
    expected = caches.bytes_of("qwen3.6-27b", 32768, "f16")
    assert abs(found.by_kind["KV cache"] - expected) < MIB
    (card,) = found.cards
    assert card.by_kind == found.by_kind
    parts = sum(found.by_kind.values()) + card.context
    assert card.peak - 4 * MIB < parts <= card.peak == found.peak < card.memory
    assert 0.6 < found.share < 0.8


def test_what_was_refused_is_told_with_its_function() -> None:
    found = evaluated(report_of("refused"), 262144, fault="ended with exit status 1")
    assert not found.fits
    refused = found.refused
    assert refused is not None
    assert refused.requested == 16384 * MIB
    assert refused.kind == "KV cache"
    assert found.why == (
        "no room: 16384 MiB for KV cache by llama_kv_cache::llama_kv_cache, 9979 MiB free"
    )


def test_a_fault_with_room_for_all_is_no_verdict_on_the_model() -> None:
    report = report_of("served")
    lacking = Unsupported(function="cudaFoo", count=1, stack=0)
    with pytest.raises(UntriedError, match="for another reason than memory") as caught:
        evaluated(
            report.model_copy(update={"unsupported": (lacking,)}), 32768, "ended with exit status 1"
        )
    first, second = caught.value.why.splitlines()
    assert first == "ended with exit status 1"
    assert second.startswith("not simulated: cudaFoo by ")
    assert "after --" in caught.value.hint


def test_a_refusal_after_which_the_server_answers_does_not_count() -> None:
    report = report_of("refused")
    found = evaluated(report, 262144)
    assert (found.fits, found.why, found.refused, found.needed) == (True, "", None, None)
    assert found.retried == len(report.failed) > 0
    assert evaluated(report_of("served"), 32768).retried == 0


def test_a_refused_launch_is_no_verdict_although_the_server_answered() -> None:
    refused = Violation(
        kernel="_Z5scalePf", error="cudaErrorInvalidValue", why="2048 threads", stack=0, count=1
    )
    report = report_of("served").model_copy(update={"violations": (refused,)})
    with pytest.raises(UntriedError, match="for another reason than memory") as caught:
        evaluated(report, 32768)
    first, second = caught.value.why.splitlines()
    assert first == "it answered, although the card refused a launch"
    assert second.endswith(": 2048 threads")
    # Nor is a refused allocation, after which it answered.
    retried = report_of("refused").model_copy(update={"violations": (refused,)})
    with pytest.raises(UntriedError, match="for another reason than memory"):
        evaluated(retried, 262144)


def test_layers_that_the_engine_left_to_the_cpu_do_not_fit() -> None:
    log = "load_tensors: offloaded 40/65 layers to GPU"
    found = evaluated(report_of("served"), 32768, log=log)
    assert (found.fits, found.why) == (False, "only 40 of 65 layers are on the card")


def test_a_model_whose_weights_are_elsewhere_does_not_count_as_fitting() -> None:
    found = evaluated(report_of("served"), 32768)
    weights = found.by_kind["weights"]
    fit.require_weights(found, "engine:1", weights)
    fit.require_weights(found, "engine:1", 50 * weights)  # most experts are on the host
    with pytest.raises(SmokeError, match="engine:1 does not load this model") as caught:
        fit.require_weights(found, "engine:1", 200 * weights)
    assert "of weights on the card" in caught.value.why


def test_an_engine_without_names_of_functions_is_given_the_benefit_of_the_doubt() -> None:
    nameless = evaluated(report_of("served"), 32768).model_copy(update={"by_kind": {"other": 99}})
    fit.require_weights(nameless, "engine:1", 100)
    with pytest.raises(SmokeError):
        fit.require_weights(nameless, "engine:1", 10000)


def test_a_model_that_does_not_fit_has_no_weights_to_count() -> None:
    refused = evaluated(report_of("refused"), 262144, fault="ended with exit status 1")
    none = refused.model_copy(update={"by_kind": {}})
    fit.require_weights(none, "engine:1", 1 << 40)


READY = (
    "INFO [gpu_model_runner.py:4879] Model loading took 16.87 GiB memory and 1.7 seconds\n"
    "INFO [gpu_worker.py:440] Available KV cache memory: 3.24 GiB\n"
)
SMALL = READY + (
    "ValueError: To serve at least one request with the models's max seq len (262144), (12.00 GiB "
    "KV cache is needed, which is larger than the available KV cache memory (3.24 GiB). Based on "
    "the available memory, the estimated maximum model length is 50176. Try increasing"
)


def stated(report: Report, fault: str = "", log: str = "") -> FitTrial:
    read = logs.read_vllm(log)
    return fit.evaluate(report, frames.named(report), 32768, fault, read)


def test_vllms_own_log_names_the_parts_of_its_memory() -> None:
    report = report_of("served")
    found = stated(report, log=READY)
    assert (found.fits, found.estimate) == (True, None)
    assert found.by_kind["KV cache"] == round(3.24 * 1024 * MIB)
    assert sum(found.by_kind.values()) >= sum(each.at_peak for each in report.allocations)
    assert found.cards[0].by_kind == found.by_kind
    assert found.stated == "weights 16.87 GiB, room for a KV cache of 3.24 GiB"


def test_a_server_that_serves_less_than_it_was_asked_for_has_no_room() -> None:
    log = "max_total_num_tokens=6202, max_running_requests=48, context_len=32768, available\n"
    report, read = report_of("served"), logs.read_sglang(log)
    found = fit.evaluate(report, frames.named(report), 32768, "", read)
    assert (found.fits, found.estimate) == (False, 6202)
    assert found.why == "no room: a KV cache of 6,202 tokens"


def test_a_refusal_after_which_vllm_answers_does_not_count() -> None:
    assert report_of("refused").failed
    found = stated(report_of("refused"), log=READY)
    assert found.fits
    assert found.retried > 0


@pytest.mark.parametrize(
    ("log", "why", "estimate"),
    [
        (SMALL, "12.00 GiB KV cache is needed, which is larger than", 50176),
        ("ValueError: No available memory for the cache blocks.", "No available memory", 0),
        (
            "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.37 GiB. GPU 0 has a "
            "total capacity of 23.42 GiB of which 2.25 GiB is free. ",
            "Tried to allocate 2.37 GiB.",
            0,
        ),
    ],
)
def test_vllm_says_what_the_card_has_no_room_for(log: str, why: str, estimate: int) -> None:
    found = stated(report_of("served"), "ended with exit status 1", log)
    assert not found.fits
    assert found.why.startswith(f"no room: {why}")
    assert found.estimate == estimate


def test_a_refused_launch_of_vllm_is_no_verdict_although_it_answered() -> None:
    refused = Violation(kernel="_Z5scalePf", error="", why="2048 threads", stack=0, count=1)
    report = report_of("served").model_copy(update={"violations": (refused,)})
    with pytest.raises(UntriedError, match="for another reason than memory"):
        stated(report, log=READY)


def test_another_fault_of_vllm_is_no_verdict_on_the_model() -> None:
    with pytest.raises(UntriedError, match="for another reason than memory"):
        stated(report_of("served"), "ended with exit status 1", "ValueError: unknown option")


def test_a_log_that_goes_on_states_its_figures_once() -> None:
    ready = "Load weight end. type=X, mem usage=1.50 GB\nready"
    end = f"{ready}\nNot enough memory. Please try to increase --mem-fraction-static."
    stated = logs.read_sglang(fit.continued(ready, end))
    assert stated.weights == logs.read_sglang(ready).weights
    assert stated.no_room.startswith("Not enough memory.")
