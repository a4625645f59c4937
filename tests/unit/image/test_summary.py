"""The verdict on a comparison, in words."""

from __future__ import annotations

from dataclasses import replace

from builder.image.compare import (
    FILE,
    Comparison,
    Difference,
    FileDifference,
    LayerDifference,
    LayerSide,
    summary,
)
from builder.image.device_code import (
    CodeDifference,
    CodeTotals,
    FunctionCode,
    FunctionDifference,
    OtherDifference,
)
from builder.image.layers import Node

OLD, NEW = Node("file", digest="1"), Node("file", digest="2")
CHANGED = FileDifference("/lib/x.so", OLD, NEW, aspects=("content",))
TIME = FileDifference("/etc", Node("directory"), Node("directory", time=1), aspects=("time",))
SAME = Comparison("a:1", "b:1", ("sha256:1", "sha256:2"), 40, ())
EQUAL = CodeDifference((CodeTotals("compute_120", 2, 2, 2), CodeTotals("sm_120", 2, 2, 2)))


def function(name: str, code: str = "sm_120", spills: int | None = 0) -> FunctionDifference:
    before, after = FunctionCode(1, 10, "x", spills=16), FunctionCode(1, 10, "y", spills=spills)
    return FunctionDifference(code, name, before, after, ("SASS",))


def of(*code: CodeDifference, **more: object) -> Comparison:
    files = tuple(replace(CHANGED, code=each) for each in code)
    return replace(SAME, files=files, **more)  # type: ignore[arg-type]


def test_one_image() -> None:
    found = replace(SAME, digests=("sha256:1", "sha256:1"))
    assert summary(found) == ["the same image: sha256:1"]


def test_the_same_files_with_other_times() -> None:
    found = replace(SAME, files=(TIME,))
    assert summary(found)[0] == "the same files: 40 paths; besides, the times of 1 differ"
    assert summary(found, times=True)[0] == "the files differ: 1 changed; 40 are equal"


def test_single_files() -> None:
    found = replace(SAME, digests=None, files=(replace(CHANGED, path=FILE),))
    assert summary(found)[0] == "the files differ"
    found = replace(found, files=(replace(TIME, path=FILE),))
    assert summary(found) == ["the files are equal, apart from their time"]


def test_files_of_all_states() -> None:
    added = FileDifference("/a", None, NEW)
    removed = FileDifference("/b", OLD, None)
    found = replace(SAME, files=(added, removed, replace(removed, path="/c"), CHANGED))
    assert summary(found)[:2] == [
        "the files differ: 1 added, 2 removed, 1 changed; 40 are equal",
        "no file with device code differs",
    ]


def test_configuration_and_layers() -> None:
    values = [Difference(name, (), ("1",)) for name in ("config.Env", "history.1.x", "history.2.x")]
    side = LayerSide(1, "sha256:1", 10_000_000, "COPY")
    equal = LayerDifference(side, side, "equal")
    found = replace(
        SAME, config=tuple(values), layers=(equal, LayerDifference(None, side, "added"))
    )
    assert summary(found)[1:3] == [
        "the configuration differs: config.Env, history",
        "1 of 2 layers are equal; with the first image, 10.0 MB of 20.0 MB of the second one are "
        "downloaded",
    ]
    found = replace(SAME, times=(Difference("created", ("1",), ("2",)),), layers=(equal,))
    assert summary(found)[1:3] == ["the same configuration, apart from times", "the same layers: 1"]


def test_the_same_device_code() -> None:
    assert summary(of(EQUAL))[1:] == [
        "the same device code, byte for byte: 4 entries in 1 file that differ"
    ]


def test_the_same_kernels_in_modules_that_differ() -> None:
    other = OtherDifference("sm_120", ".strtab", 1, 10, 12)
    found = of(CodeDifference((CodeTotals("sm_120", 2, 2, 1),), others=(other,)))
    assert summary(found)[1].startswith("the same kernels, byte for byte: the modules in 1 file")


def test_kernels_count_once_for_all_architectures() -> None:
    functions = (
        function("f()", spills=16),
        function("f()", "compute_120", spills=16),
        function("g()", spills=16),
    )
    totals = (CodeTotals("compute_120", 2, 2, 1), CodeTotals("sm_120", 2, 2, 0))
    assert summary(of(CodeDifference(totals, functions)))[1:] == [
        "the device code differs: 1 of 4 entries are equal; kernels: 2 changed"
    ]


def test_spills_that_go_up_and_down() -> None:
    functions = (
        function("f()", spills=20),
        function("g()", spills=8),
        function("h()", spills=None),
    )
    (text,) = summary(of(CodeDifference((CodeTotals("sm_120", 1, 1, 0),), functions)))[1:]
    assert text.endswith("kernels: 3 changed; spills: up in 1, down in 2")


def test_code_that_only_one_file_has() -> None:
    found = of(CodeDifference((CodeTotals("sm_120", 2, 2, 2), CodeTotals("sm_90", 2, 0, 0))))
    assert summary(found)[1] == "the device code differs: 2 of 4 entries are equal"


def test_what_could_not_be_compared_is_not_the_same() -> None:
    found = replace(SAME, files=(replace(CHANGED, unread="byte 0x40: cut off"),))
    assert not found.same_code
    assert summary(found)[1:] == ["damaged, so that their code could not be compared: /lib/x.so"]
