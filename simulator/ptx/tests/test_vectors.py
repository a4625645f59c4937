"""Each instruction on corner cases and random operands, against exact arithmetic."""

from __future__ import annotations

import numpy as np
import pytest

from ptxlab import kernels, soft
from ptxlab.interpreter import Library
from ptxlab.operands import TYPES, inputs
from ptxlab.references import CASES, Case


def is_nan(code: int, fmt: soft.Format) -> bool:
    return fmt.decode(code).kind == soft.NAN


def group_of(case: Case) -> str:
    return case.instruction.split()[0].split(".")[0] if case.instruction[0] != "{" else "sequences"


@pytest.mark.parametrize("start", sorted({group_of(case) for case in CASES}))
def test_each_instruction_computes_what_the_document_says(library: Library, start: str) -> None:
    cases = [case for case in CASES if group_of(case) == start]
    text = kernels.HEADER + "".join(
        kernels.kernel(f"k{i}", c.instruction, c.shape) for i, c in enumerate(cases)
    )
    module = library.load(text)
    wrong = []
    for i, case in enumerate(cases):
        assert module.lacks(f"k{i}") == [], case.instruction
        values = inputs(case)
        arrays = [np.array(v, TYPES[b]) for v, b in zip(values, case.shape.sources, strict=True)]
        out = np.zeros(len(values[0]), TYPES[case.shape.result])
        module.run(f"k{i}", [out, len(out), *arrays], grid=(len(out) + 127) // 128, block=128)
        for n, got in enumerate(out.tolist()):
            sources = [v[n] for v in values]
            expected = case.reference(*sources)
            if expected is None:
                if case.nan is None or is_nan(got, case.nan):
                    continue
            elif got == expected:
                continue
            shown = ", ".join(f"{s:#x}" for s in sources)
            wrong.append(
                f"{case.instruction} on {shown}: {got:#x}, not {expected if expected is None else hex(expected)}"
            )
            break
    assert not wrong, "\n".join(wrong)
