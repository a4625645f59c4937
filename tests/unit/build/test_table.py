"""Tables as files, and what in them is wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from builder.build import compilers as tables
from builder.build.compilers import Compiler, Table
from builder.core.errors import RecipeError
from support.environment import REPOSITORY


def made() -> Table:
    good = Compiler(nvcc="13.2.86", released="2026-07-16", nmse={"q4_0": 1.5e-7, "iq3_s": 3e-14})
    bad = Compiler(
        nvcc="13.2.51",
        released="2026-03-09",
        nmse={"q4_0": 6e-4, "q8_0": float("nan"), "mmq mxfp4 x8": 0.0},
        ended={
            "iq3_s": 'out of bounds, PTX line 7: ld [%rd1], "x"',
            "q6_K": "not computed, PTX line 8: mbarrier",
        },
    )
    return Table(
        recipe="a-1",
        source="https://example.org/a",
        commit="ab" * 20,
        committed="2026-06-28",
        tried="2026-11-23",
        architecture="compute_120a",
        not_compared={"q1_0": "gguf-py does not read it"},
        compiler=[good, bad],
    )


def test_a_fault_and_a_large_error_are_wrong_and_what_was_not_computed_is_not() -> None:
    good, bad = made().compiler
    assert good.wrong == ()
    assert bad.wrong == ("iq3_s", "q4_0", "q8_0")
    assert made().types == ("iq3_s", "q4_0", "q6_K", "q8_0", "mmq mxfp4 x8")


def test_a_written_table_is_read_again(tmp_path: Path) -> None:
    table = made()
    file = tables.write(table, tmp_path)
    assert file == tmp_path / "compilers" / "a-1.toml"
    (found,) = tables.load(tmp_path)
    assert found.model_dump_json() == table.model_dump_json()
    assert "nan" in file.read_text()


def test_an_invalid_table_is_named_with_its_line(tmp_path: Path) -> None:
    file = tables.write(made(), tmp_path)
    file.write_text(file.read_text().replace('tried = "2026-11-23"', "tried = 3"))
    with pytest.raises(RecipeError, match=r"a-1\.toml is invalid") as refused:
        tables.load(tmp_path)
    assert refused.value.problems[0].key == "tried"


def test_the_shipped_threads_and_tables_fit_together() -> None:
    shipped = {each.nvcc: each for table in tables.load(REPOSITORY) for each in table.compiler}
    for thread in tables.threads(REPOSITORY):
        for nvcc in thread.nvcc:
            assert {*thread.types} <= {*shipped[nvcc].results}, thread.thread
