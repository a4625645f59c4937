from __future__ import annotations

import pytest

from builder.checks.kernel_test import Case, CaseResult, Outcome, cache_types
from builder.image.contents import Contents
from support.smoke_tests import context_of


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


@pytest.mark.parametrize(
    ("case", "passed"),
    [
        ("SOFT_MAX(type=f32,ne=[1024,16,1,1],mask=0): race, soft_max_f32", True),
        ("GROUP_NORM_MUL_ADD(type=f32,ne=[9,9,1280,1],eps=0.000001): [ADD] ERR = 0.05", True),
        ("SOFT_MAX(type=f32,ne=[16,16,1,1],mask=0): race, soft_max_f32", False),
        ("race: soft_max_f32 softmax.cu:114", True),
        ("race: group_norm_f32", True),
        ("race: soft_max_back_f32 softmax.cu:200", False),
        ("SOFT_MAX(type=f32,ne=[1024,16,1,1],mask=0): race, another_kernel", False),
    ],
)
def test_every_image_may_have_the_known_faults_of_ggml(case: str, *, passed: bool) -> None:
    rules = context_of(Contents({}, {}, (), 0)).rules
    found = rules.check("numbers", "softmax", "equal", [(case.partition(":")[0], case)])
    assert found.passed == passed
    assert ("ggml-org/llama.cpp#26385" in found.found) == passed
    assert not list(rules.unused())
