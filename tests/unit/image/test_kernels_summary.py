"""What a record keeps of the kernels, and when a night's kernels are worse."""

from __future__ import annotations

import json
from dataclasses import asdict, replace

from pydantic import TypeAdapter

from builder.image.code_paths import KernelSummary, SpillingKernel, worse
from support.kernel_summaries import summary_of


def test_totals_and_the_worst_kernels() -> None:
    (library,) = summary_of(0, 8, 0, 24).libraries
    assert (library.library, library.codes) == ("liba.so", ("none", "sm_120a"))
    assert (library.kernels, library.size, library.spills, library.spilling) == (4, 512, 32, 2)
    assert library.worst == (SpillingKernel("k3", 40, 24, 24), SpillingKernel("k1", 40, 8, 8))


def test_it_is_read_back_and_shortened() -> None:
    found = summary_of(8, 16, 24)
    text = json.dumps(asdict(found))
    assert TypeAdapter(KernelSummary).validate_json(text, strict=True) == found
    assert summary_of(0).shortened(1).libraries == ()
    short = found.shortened(1).libraries[0]
    assert ([each.name for each in short.worst], short.spilling) == (["k2"], 3)


def test_more_spills_are_named_with_the_kernel_that_grew_most() -> None:
    (text,) = worse(summary_of(0, 8, 100), summary_of(0, 2008, 110))
    assert text == (
        "liba.so: 2 of 3 kernels spill 2,118 bytes, before 2 of 3 kernels spill 108 bytes; "
        "k1: 8 -> 2,008 bytes"
    )


def test_a_kernel_that_was_not_kept_has_no_figure_of_before() -> None:
    (text,) = worse(summary_of(1, 2, 3).shortened(0), summary_of(1, 2, 30))
    assert text.endswith("; k2: 30 bytes")


def test_a_new_library_that_spills() -> None:
    new = summary_of(8, path="/opt/libnew.so")
    old = summary_of(0)
    both = replace(new, libraries=old.libraries + new.libraries)
    assert worse(old, both) == ["libnew.so: 1 of 1 kernels spill 8 bytes, before none; k0: 8 bytes"]


def test_as_many_or_fewer_spills_are_not_worse() -> None:
    assert worse(summary_of(8, 8), summary_of(16, 0)) == []
    assert worse(summary_of(8, 8), summary_of(0, 0)) == []
    assert worse(summary_of(0), summary_of(8, card=90)) == []
