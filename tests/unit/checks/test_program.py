"""The source of test-backend-ops gets more cases."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from builder.checks import kernel_test
from builder.core.farm import installed

LIST = "static std::vector<std::unique_ptr<test_case>> make_test_cases_eval()"


def test_our_cases_are_added_to_the_trees() -> None:
    source = f"struct test_case;\n{LIST} {{\n}}\nuse(make_test_cases_eval());\n"
    made = kernel_test.with_more_cases(source)
    declared, included, defined = made.splitlines()[1:4]
    assert declared == "static std::vector<std::unique_ptr<test_case>> tree_cases();"
    assert included == '#include "cases.cpp"'
    assert defined == "static std::vector<std::unique_ptr<test_case>> tree_cases() {"
    assert made.count("use(make_test_cases_eval())") == 1


def test_a_tree_with_another_list_stays_as_it_is() -> None:
    assert kernel_test.with_more_cases("int main() {}\n") == "int main() {}\n"


# As ik_llama.cpp's: a function has the list, which names attention of another tree and a case that
# is nowhere.
OLD = """struct test_case {};
struct test_add : public test_case {};
struct test_flash_attn_ext : public test_case { test_flash_attn_ext(int size); };
static bool test_backend(ggml_backend_t backend, test_mode mode, const char * op_name) {
    std::vector<std::unique_ptr<test_case>> test_cases;
    test_cases.emplace_back(new test_add());
    test_cases.emplace_back(new test_flash_attn_ext(64, 64));
    test_cases.emplace_back(new test_pad_ext(64, 1));
    // run tests
    return test_cases.empty();
}
int main() { return 0; }
"""


def test_a_source_of_2024_gets_our_main_and_a_function_that_lists_its_cases() -> None:
    made = kernel_test.modern(OLD)
    before, _, after = made.partition('#include "old_cases.h"\n')
    assert before.startswith('#include "old.h"\nstruct test_case {};\n')
    assert after.startswith(f"{LIST} {{\n")
    for kept in ("new test_add()", "new test_flash_attn_ext(64, 64)"):
        assert kept in after
    for left_out in ("test_pad_ext", "int main() { return 0; }"):
        assert left_out not in made
    assert after.endswith('return test_cases;\n}\n#include "old_main.h"\n')
    assert '#include "cases.cpp"' in kernel_test.with_more_cases(made)


@pytest.mark.parametrize(
    ("name", "other"),
    [
        ("OLD_CASE", re.compile("another case")),
        ("OLD_END", "// another end"),
        ("with_ours", kernel_test.with_more_cases),
    ],
)
def test_a_program_whose_source_is_changed_otherwise_is_another(
    name: str, other: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = kernel_test.program_key()
    assert kernel_test.program_key() == before
    monkeypatch.setattr(kernel_test, name, other)
    assert kernel_test.program_key() != before


# Two cases as test-backend-ops computes them: numbers are drawn, tensors with sentinels between
# are filled, results are compared.
CASES = """#include <cstdio>
enum { GGML_OP_NONE, GGML_OP_MUL_MAT };
struct ggml_tensor { int op; float data[4]; };
static int ggml_nelements(ggml_tensor *) { return 4; }
static int ggml_nbytes(ggml_tensor *) { return 16; }
static void ggml_backend_tensor_set(ggml_tensor * tensor, const float * data, int, int) {
    for (int i = 0; i < 4; i++) tensor->data[i] = data[i];
}
struct compared { double max_err(int) { return 1e-3; } };
static unsigned drawn() {
    thread_local std::default_random_engine gen(std::random_device{}());
    return gen();
}
static void computed(ggml_tensor * t1, double err) {
    ggml_tensor sentinel = {GGML_OP_NONE, {}};
    std::vector<ggml_tensor *> sentinels = {&sentinel};
    printf("drawn %u %u %d\\n", drawn(), drawn(), rand());
    struct callback_userdata { compared * tc; int backend1; };
    compared limits;
    callback_userdata own = {&limits, 0}, * ud = &own;
    const bool differs = err > ud->tc->max_err(ud->backend1);
    printf("%d %g\\n", differs, sentinel.data[3]);
}
int main() {
    ggml_tensor result = {GGML_OP_MUL_MAT, {}}, sentinel = {GGML_OP_NONE, {}};
    computed(&sentinel, 0.0);
    computed(&result, 2e-7);
    computed(&result, 0.5);
    computed(&result, NAN);
}
"""


def test_cases_have_equal_numbers_guards_and_stated_errors(tmp_path: Path) -> None:
    (tmp_path / "numbers.cpp").write_text(kernel_test.with_ours(CASES))
    built, folder = tmp_path / "numbers", installed() / kernel_test.SOURCES
    command = ["g++", "-std=c++20", f"-I{folder}", f"{tmp_path}/numbers.cpp", "-o", str(built)]
    subprocess.run(command, check=True)

    def ran() -> str:
        return subprocess.run([built], capture_output=True, text=True, check=True).stdout

    _, first, *rest = ran().split("drawn ")
    assert len({each.split("\n")[0] for each in (first, *rest)}) == 1
    assert len({*first.split("\n")[0].split()}) == 3
    assert ran() == ran()
    ends = [each.split("\n")[1] for each in (first, *rest)]
    assert ends == ["0 inf", "[error 2e-07] 0 inf", "[error 0.5] 1 inf", "0 inf"]


def test_the_tests_of_the_tree_itself_win_over_those_of_a_part(tmp_path: Path) -> None:
    assert kernel_test.in_tree(tmp_path) is None
    for folder in ("vendor/llama.cpp/tests", "tests"):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "test-backend-ops.cpp").touch()
        assert kernel_test.in_tree(tmp_path) == tmp_path / folder
