from __future__ import annotations

import pytest

from builder.numbers.cases import Case
from builder.numbers.trial import CaseResult, Outcome
from builder.smoke.numbers import cache_types


def attention(kind: str, outcome: Outcome) -> CaseResult:
    return CaseResult(Case("FLASH_ATTN_EXT", f"hsk=128,type_KV={kind}"), outcome)


def test_a_type_that_no_case_reaches_is_named() -> None:
    found = cache_types({"f16", "turbo3"}, [attention("f16", Outcome.EQUAL)])
    assert found.state == "skipped"
    assert found.found == "compared: f16; not compared: turbo3"


def test_a_type_that_the_engine_leaves_to_the_cpu_is_named() -> None:
    results = [attention("f16", Outcome.DIFFERS), attention("q5_1", Outcome.UNSUPPORTED)]
    found = cache_types({"f16", "q5_1"}, results)
    assert found.passed
    assert found.found == "compared: f16; the engine computes on the CPU: q5_1"


@pytest.mark.parametrize("outcome", [Outcome.NOT_COMPUTED, Outcome.NO_REFERENCE])
def test_a_type_that_one_side_cannot_compute_is_not_compared(outcome: Outcome) -> None:
    found = cache_types({"f16"}, [attention("f16", outcome)])
    assert found.state == "skipped"
    assert found.found == "compared: none; not compared: f16"
