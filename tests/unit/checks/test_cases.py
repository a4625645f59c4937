"""The cases of test-backend-ops are read, chosen and judged."""

from __future__ import annotations

import re

import pytest

from builder.checks import kernel_test
from builder.checks.kernel_test import Case, CaseResult, Group, Outcome
from builder.core.errors import UntriedError
from builder.docker.engine import Finished

HEADER = (
    '"backend_name","op_name","op_params","test_mode","supported","error_message",'
    '"backend_reg_name"\n'
)
PRODUCT = "type_a={type},type_b=f32,m=16,n={n},k=256,bs=[1,1],nr=[1,1],per=[0,1,2,3],k_v=0,o=1"


def row(operation: str, parameters: str, supported: int = 1, error: str = "") -> str:
    words = ("CUDA0", operation, parameters, "test", str(supported), error, "CUDA")
    return ",".join(f'"{word}"' for word in words) + "\n"


def rows(output: str, backend: str = "CUDA0", status: int = 0) -> list[CaseResult]:
    return list(kernel_test.results(Finished(status, output), backend))


def product(kind: str, n: int, **changed: str) -> Case:
    parameters = PRODUCT.format(type=kind, n=n)
    for name, value in changed.items():
        parameters = re.sub(rf"\b{name}=[^,]*(,\d+])?", f"{name}={value}", parameters)
    return Case("MUL_MAT", parameters)


def test_a_row_is_read_with_what_was_printed_before_it() -> None:
    output = (
        "ggml_cuda_init: found 1 CUDA devices\n"
        + HEADER
        + row("MUL_MAT", PRODUCT.format(type="q4_0", n=1))
        + "[MUL_MAT] ERR = 1.100000000 > 0.000500000 "
        + row("MUL_MAT", PRODUCT.format(type="iq2_s", n=1), error="test failed")
        + "a line of the backend's\n"
        + row("FLASH_ATTN_EXT", "hsk=64", supported=0, error="not supported")
    )
    good, bad, unsupported = rows(output)
    assert (good.case.values["type_a"], good.why) == ("q4_0", "")
    assert bad.why == "[MUL_MAT] ERR = 1.100000000 > 0.000500000"
    assert bad.case.name == f"MUL_MAT({PRODUCT.format(type='iq2_s', n=1)})"
    assert (unsupported.outcome, unsupported.why) == ("unsupported", "")
    assert not rows(output, "CUDA1")


def test_the_greatest_error_of_a_case_is_kept() -> None:
    stated = "[error 2e-09] a line of the backend's\n[error 3e-07] [error 0] "
    good, bad, unknown = rows(
        f"{HEADER}{stated}{row('ROPE', 'type=f32')}"
        f"[error 1.1] [ROPE] ERR = 1.1 > 0.5 {row('ROPE', 'type=f16', error='test failed')}"
        f"{row('ROPE', 'type=bf16')}"
    )
    assert (good.outcome, good.error, good.why) == ("equal", 3e-7, "")
    assert (bad.error, bad.why) == (1.1, "[ROPE] ERR = 1.1 > 0.5")
    assert unknown.error is None


def test_a_case_that_the_cpu_lacks_has_no_reference() -> None:
    lines = [row("SNAKE_FUSE", f"type={kind}", 0, "not supported") for kind in ("bf16", "f16")]
    lines[0] = lines[0].replace("CUDA0", "CPU")
    lines[1] = lines[1].replace("CUDA0", "CUDA0, CPU")
    without, unsupported = rows(HEADER + "".join(lines))
    assert (without.outcome, unsupported.outcome) == ("without a reference", "unsupported")
    assert without.why == "ggml's CPU code does not compute it"


def test_an_error_of_ten_times_the_least_known_one_is_named() -> None:
    known = {"ROPE(type=f32)": (2e-7, "llama-cpp:0.5.0"), "ADD(type=f32)": (0.0, "hello:1")}

    def why(operation: str, error: float | None) -> str:
        found = CaseResult(Case(operation, "type=f32"), Outcome.EQUAL, error=error)
        return kernel_test.grown(found, known)

    assert why("ROPE", 1.9e-6) == why("ROPE", None) == why("MUL", 1e-4) == why("ADD", 1e-12) == ""
    said = "its error is 2.1e-06, and 2e-07 in llama-cpp:0.5.0: 10 times are allowed"
    assert why("ROPE", 2.1e-6) == said
    assert "0 in hello:1" in why("ADD", 1e-7)


def test_operations_without_a_compared_case_are_named() -> None:
    found = [
        CaseResult(Case("ROPE", "type=f32"), Outcome.EQUAL),
        CaseResult(Case("ADD", "type=f32"), Outcome.DIFFERS),
        CaseResult(Case("CUMSUM", ""), Outcome.NOT_COMPUTED),
    ]
    named = kernel_test.operations({"ROPE", "ADD", "CUMSUM", "NEW_OP"}, found)
    assert (named.state, named.found) == ("skipped", "without a case: CUMSUM, NEW_OP")
    assert kernel_test.operations({"ROPE", "ADD"}, found).passed


def test_a_failure_without_a_message_is_one() -> None:
    (found,) = rows(HEADER + row("ROPE", "type=f32", error="compare failed"))
    assert found.why == "compare failed"


def test_a_program_that_prints_no_table_says_what_it_printed() -> None:
    with pytest.raises(UntriedError) as raised:
        rows("Usage: test-backend-ops [mode]\n", status=137)
    assert "ended with 137" in raised.value.what
    assert "Usage: test-backend-ops" in raised.value.why


def test_parameters_are_read_with_their_brackets() -> None:
    case = Case("CPY", "type_src=f32,ne=[256,4,4,4],permute_src=[0,2,1,3],_src_transpose=0,x=")
    assert case.values == {
        "type_src": "f32",
        "ne": "[256,4,4,4]",
        "permute_src": "[0,2,1,3]",
        "_src_transpose": "0",
        "x": "",
    }


def test_the_first_case_of_each_combination_is_chosen() -> None:
    group = Group(title="t", operations=["MUL_MAT"], where={"n": ["1"]}, each=["type_a"])
    listed = [
        product("q4_0", 1, k="1024"),
        product("q4_0", 1),
        product("q8_0", 2),
        product("q8_0", 1),
        Case("MUL_MAT_ID", PRODUCT.format(type="q6_K", n=1)),
    ]
    assert group.chosen(listed) == [listed[0], listed[3]]


def test_a_tree_without_a_parameter_keeps_its_cases() -> None:
    group = Group(title="t", operations=["X"], where={"sinks": ["0"], "n": ["1"]})
    assert group.matches(Case("X", "n=1"))
    assert not group.matches(Case("X", "n=1,sinks=1"))


def test_chains_of_operations_are_read_from_among_the_table() -> None:
    output = (
        HEADER
        + "chain ADD_RMS_NORM(type=f32,ne=[64,5,4,3])\n"
        + "not added: attention, because of its constructor\n"
        + row("MUL_MAT", PRODUCT.format(type="q4_0", n=1))
        + "a chain of the log (2)\n"
    )
    assert kernel_test.chains(output) == [Case("ADD_RMS_NORM", "type=f32,ne=[64,5,4,3]")]
    assert kernel_test.lacking(output) == ["attention, because of its constructor"]
    assert [each.case.operation for each in rows(output)] == ["MUL_MAT"]


def test_operations_of_a_group_are_told_apart() -> None:
    group = Group(title="t", operations=["NORM", "NORM_MUL_ADD"], each=["ne"])
    listed = [Case("NORM", "ne=1"), Case("NORM_MUL_ADD", "ne=1"), Case("NORM", "ne=1,v=1")]
    assert group.chosen([*listed, Case("GROUP_NORM", "ne=1")]) == listed[:2]


def test_an_operation_that_no_group_computes_gets_its_first_case_on_a_card() -> None:
    lacking = Case("NEW_OP", "ne=6", supported=False), Case("ADD", "ne=7", supported=False)
    new, on_cpu = Case("NEW_OP", "ne=7"), Case("ON_CPU", "ne=7", supported=False)
    known = product("q4_0", 1)
    *chosen, (others, cases) = kernel_test.chosen_of([known, *lacking, new, on_cpu])
    assert [group for group, _ in chosen] == [*kernel_test.groups()]
    assert (others.title, cases) == (kernel_test.OTHERS, [new])
    assert [group for group, _ in kernel_test.chosen_of([known])] == [*kernel_test.groups()]


def test_the_groups_of_the_farm_are_chosen_by_what_they_say() -> None:
    groups = kernel_test.groups()
    titles = [group.title for group in groups]
    assert len({*titles}) == len(titles)
    few = next(group for group in groups if group.title == "products with few columns")
    kinds = ("q4_0", "iq2_s", "mxf4")
    listed = [product(kind, n) for kind in kinds for n in range(1, 10)]
    assert [case.values["n"] for case in few.chosen(listed)] == ["4", "4", "4"]
