from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from builder.checks import kernel_test, simulated

DAY = 86400


def test_only_sources_that_are_compiled_count(tmp_path: Path) -> None:
    shutil.copytree(simulated.sources(), tmp_path, dirs_exist_ok=True)
    before = simulated.key_of(tmp_path, "sha256:1")
    for unused in ("README.md", "card/README.md", "ptx/tests/test_more.py"):
        (tmp_path / unused).write_text("new\n")
    assert simulated.key_of(tmp_path, "sha256:1") == before
    for used in (
        "Dockerfile",
        "card/memory.cpp",
        "card/Makefile",
        "ptx/warp.cpp",
        "ptx/ops/lanes.h",
    ):
        (tmp_path / used).write_text("other\n")
        after = simulated.key_of(tmp_path, "sha256:1")
        assert after != before, used
        before = after


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ("avx2 fma bmi2 avx512f avx512bw avx512vl avx512dq", "avx512"),
        ("avx2 fma bmi2 avx512f", "avx2"),
        ("sse2 avx", "portable"),
    ],
)
def test_only_the_best_loops_are_compiled(flags: str, expected: str) -> None:
    assert simulated._best(f"processor\t: 0\nflags\t\t: fpu {flags}\n") == expected


def test_all_loops_are_compiled_for_another_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(simulated.socket, "gethostname", lambda: "another")
    assert simulated._variants() == "avx512 avx2 portable"


def test_tests_of_another_ggml_are_known_by_its_headers(tmp_path: Path) -> None:
    tests, tree = tmp_path / "ggml" / "tests", tmp_path / "tree"
    for folder in (tests.parent / "include", tree / "ggml" / "include"):
        folder.mkdir(parents=True)
        (folder / "ggml.h").write_text("1")
    assert kernel_test.other_headers(tests, tree) == ""
    (tests.parent / "include" / "ggml-new.h").write_text("1")
    assert kernel_test.other_headers(tests, tree) == "ggml-new.h"
    (tree / "ggml" / "include" / "ggml.h").write_text("2")
    (tests.parent / "include" / "ggml-new.h").unlink()
    assert kernel_test.other_headers(tests, tree) == "ggml.h"
